# R values into what crosses the border: views with a dim, 1-based codes with their levels.
# Refused here is what Python could not see: NA in integers, logicals and factors arrives there as
# ordinary numbers.

# Features: a matrix or array, or the columns of a data frame.
as_features <- function(x, arg = caller_arg(x), call = caller_env()) {
  if (is.data.frame(x)) {
    columns <- Map(as_column, unname(as.list(x)), names(x), MoreArgs = list(arg = arg, call = call))
    return(list(kind = "columns", columns = unname(columns)))
  }
  if (is.character(x) || !is.numeric(x) && !is.logical(x)) {
    abort_gpukeras(
      sprintf("`%s` must be numeric or a data frame, not %s.", arg, describe(x)),
      code = "data",
      hint = "Text needs levels: put it into a data frame, as character or factor columns.",
      arg = arg, call = call
    )
  }
  check_no_na(x, arg, call)
  list(kind = "array", values = as.array(x), names = as.list(colnames(x)))
}

# One column: numeric, integer, logical, factor or character.
as_column <- function(x, name, arg, call) {
  if (inherits(x, "AsIs")) {
    x <- unclass(x)
  }
  kind <- column_kind(x)
  if (is.null(kind)) {
    abort_gpukeras(
      sprintf("Column `%s` of `%s` is %s: it cannot be a feature.", name, arg, describe(x)),
      code = "data",
      hint = "Columns must be numeric, logical, factor or character.",
      arg = arg, column = name, call = call
    )
  }
  check_no_na(x, arg, call, name = name)
  if (kind == "character") {
    x <- factor(x, levels = sort(unique(x), method = "radix"))
  }
  list(name = name, kind = kind, values = as.array(column_values(x)), levels = as.list(levels(x)))
}

# Labels: a factor, character, logical or numeric vector, or a numeric matrix.
as_labels <- function(y, arg = caller_arg(y), call = caller_env()) {
  if (is.data.frame(y) && length(y) == 1) {
    y <- y[[1]]
  }
  if (is.numeric(y) && length(dim(y)) == 2 && ncol(y) > 1) {
    check_no_na(y, arg, call)
    return(list(kind = "matrix", values = y, names = as.list(colnames(y))))
  }
  if (is.array(y) && length(y) == nrow(y)) {
    y <- as.vector(y)
  }
  if (is.null(column_kind(y))) {
    abort_gpukeras(
      sprintf("`%s` cannot be labels: it is %s.", arg, describe(y)),
      code = "data",
      hint = "Labels are a factor, character, logical or numeric vector, or a numeric matrix.",
      arg = arg, call = call
    )
  }
  as_column(y, name = arg, arg = arg, call = call)
}

column_kind <- function(x) {
  if (is.factor(x)) {
    "factor"
  } else if (is.object(x) || is.list(x) || !is.null(dim(x))) {
    NULL
  } else if (is.character(x) || is.logical(x)) {
    typeof(x)
  } else if (is.numeric(x)) {
    if (is.integer(x)) "integer" else "numeric"
  }
}

# A factor's codes; any other column as it is.
column_values <- function(x) {
  if (is.factor(x)) as.integer(x) else x
}

# Doubles are left to Python, which counts their missing and infinite values while it stages them.
check_no_na <- function(x, arg, call, name = NULL) {
  if (is.double(x) || !anyNA(x)) {
    return(invisible())
  }
  if (is.null(name)) {
    first <- which(apply(is.na(x), length(dim(x)) %||% 1, any))[1]
    name <- colnames(x)[first] %||% as.character(first)
    x <- if (length(dim(x)) == 2) x[, first] else x
  }
  missing <- sum(is.na(x))
  abort_gpukeras(
    sprintf(
      "Column `%s` of `%s` has %d missing value%s.",
      name, arg, missing, if (missing > 1) "s" else ""
    ),
    code = "data",
    hint = "Remove or impute those rows first.",
    arg = arg, column = name, missing = missing, call = call
  )
}
