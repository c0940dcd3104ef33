# R values as arguments of the core: arrays without a copy, 1-based codes with their levels. NA in
# integers, logicals and factors would arrive in Python as ordinary numbers, so it is sent as NaN,
# and in codes as 0. The core decides what to do about missing values.

# Features: a matrix or array, also of texts, the columns of a data frame, a sparse matrix, a file's
# path, or a named list of these. `zones` has the time zone in which training computed weekday and
# hour of each column (nested by input for a list); `scale` says whether to standardise the inputs
# of a list.
as_features <- function(x, arg = caller_arg(x), call = caller_env(), zones = list(),
                        scale = NULL) {
  if (is_unlabelled(x)) {
    x <- x[[1]]
  }
  if (is_named_list(x)) {
    return(as_inputs(x, arg, call, zones, scale))
  }
  if (is_tf_dataset(x)) {
    return(tf_features(x))
  }
  as_plain_features(plain_tensor(plain_integer64(x, arg, call)), arg, call, zones)
}

# Features that are no list of inputs.
as_plain_features <- function(x, arg, call, zones) {
  if (is.data.frame(x)) {
    columns <- Map(
      as_column, as.list(x), names(x), zones[names(x)],
      MoreArgs = list(arg = arg, call = call)
    )
    return(list(kind = "columns", columns = unname(columns)))
  }
  if (inherits(x, "sparseMatrix")) {
    return(as_sparse(x))
  }
  if (is_path(x)) {
    return(as_file(x, arg, call))
  }
  if (is.character(x)) {
    return(as_strings(x, arg, call))
  }
  if (!is.numeric(x) && !is.logical(x)) {
    abort_no_features(x, arg, call)
  }
  list(kind = "array", values = as.array(with_nan(x)), names = as.list(last_names(x)))
}

# Names along the last dimension, which are those of the columns; a vector has none.
last_names <- function(x) {
  if (length(dim(x)) > 1) dimnames(x)[[length(dim(x))]]
}

# The hint names the most likely intention.
abort_no_features <- function(x, arg, call) {
  hint <- if (is.list(x)) {
    "Several inputs are a list with a name for each."
  }
  abort_gpukeras(
    sprintf("`%s` must be numeric or a data frame, not %s.", arg, describe(x)),
    code = "data", hint = hint %||% "", arg = arg, call = call
  )
}

# A sparse matrix is sent as the slots of a dgCMatrix: its zeros are never stored.
as_sparse <- function(x) {
  if (!inherits(x, "dgCMatrix")) {
    for (class in c("CsparseMatrix", "generalMatrix", "dMatrix")) {
      x <- methods::as(x, class)
    }
  }
  list(
    kind = "sparse", dim = as.list(x@Dim), p = as.array(x@p), i = as.array(x@i),
    x = as.array(x@x), names = as.list(x@Dimnames[[2]])
  )
}

# One column of a data frame.
as_column <- function(x, name, zone, arg, call) {
  x <- plain_column(x, arg, call)
  kind <- column_kind(x)
  if (is.null(kind)) {
    abort_gpukeras(
      sprintf("Column `%s` of `%s` is %s: it cannot be a feature.", name, arg, describe(x)),
      code = "data",
      hint = if (inherits(x, "haven_labelled")) {
        "Use haven::as_factor() if its numbers are codes, haven::zap_labels() if they are numbers."
      } else {
        "Columns must be numeric, logical, factor, character, dates or times."
      },
      arg = arg, column = name, call = call
    )
  }
  check_levels(x, name, arg, call)
  c(list(name = name, kind = kind), column_values(x, kind, zone))
}

# Levels are known by their text: a missing one is "NA", and in an interaction "a:b" and "c" make
# the same one as "a" and "b:c".
check_levels <- function(x, name, arg, call) {
  problem <- if (anyNA(levels(x)) && "NA" %in% levels(x)) {
    c(
      "has both a missing level and the level \"NA\".",
      "Give the text another name, or leave out addNA()."
    )
  } else if (anyDuplicated(levels(x)) > 0) {
    c("has two levels of the same name.", "Leave `:` out of the names of levels.")
  }
  if (!is.null(problem)) {
    abort_gpukeras(
      sprintf("Column `%s` of `%s` %s", name, arg, problem[1]),
      code = "data", hint = problem[2], arg = arg, column = name, call = call
    )
  }
}

# The values of a column, by its kind.
column_values <- function(x, kind, zone = NULL) {
  switch(kind,
    character = code_values(factor(x, levels = sort(unique(x), method = "radix"))),
    factor = code_values(x),
    date = list(values = as.array(as.double(x))),
    time = time_values(x, zone %||% time_zone(x)),
    duration = list(values = as.array(as.double(x)), units = attr(x, "units")),
    list(values = as.array(with_nan(x)), levels = list())
  )
}

code_values <- function(x) {
  codes <- as.integer(x)
  if (anyNA(codes)) {
    codes[is.na(codes)] <- 0L
  }
  list(values = as.array(codes), levels = as.list(levels(x)))
}

# Seconds since 1970 in UTC, with the zone's offset at each of them.
time_values <- function(x, zone) {
  offsets <- as.array(as.double(zone_offsets(x, zone)))
  list(values = as.array(as.double(x)), offsets = offsets, zone = zone)
}

# R takes a zone such as "+02:00", as files may have, for UTC.
zone_offsets <- function(x, zone) {
  fixed <- regmatches(zone, regexec("^([+-])([0-9]{2}):?([0-9]{2})$", zone))[[1]]
  if (length(fixed) > 0) {
    seconds <- 3600 * as.double(fixed[3]) + 60 * as.double(fixed[4])
    return(rep(if (fixed[2] == "-") -seconds else seconds, length(x)))
  }
  # R before 4.3 gives UTC no offsets.
  as.POSIXlt(x, tz = zone)$gmtoff %||% rep(0, length(x))
}

# The zone in which a time prints. The session's own is recorded by name, because it may change.
time_zone <- function(x) {
  zone <- attr(x, "tzone")[1] %||% ""
  if (nzchar(zone)) {
    return(zone)
  }
  # Sys.timezone() keeps what it once found, also where TZ is set later, and warns in containers
  # without systemd.
  set <- sub("^:", "", Sys.getenv("TZ"))
  own <- if (nzchar(set)) set else suppressWarnings(Sys.timezone())
  if (is.na(own)) "UTC" else own
}

# The zones that a recipe, or features, recorded: by column, for several inputs by input.
recorded_zones <- function(recipe) {
  if (length(recipe$inputs) > 0) {
    zones <- lapply(recipe$inputs, function(part) recorded_zones(part$recipe %||% part$features))
    return(stats::setNames(zones, vapply(recipe$inputs, `[[`, "", "name")))
  }
  times <- Filter(function(column) identical(column$kind, "time"), recipe$columns)
  stats::setNames(lapply(times, `[[`, "zone"), vapply(times, `[[`, "", "name"))
}

# Labels: a factor, character, logical or numeric vector, an array of any shape with several numbers
# per row, a .npy file's path, or a named list of these.
as_labels <- function(y, arg = caller_arg(y), call = caller_env()) {
  if (is_named_list(y)) {
    return(as_outputs(y, arg, call))
  }
  if (is_npy(y)) {
    return(as_file(y, arg, call))
  }
  if (is.data.frame(y) && length(y) == 1) {
    y <- y[[1]]
  }
  survival <- inherits(y, "Surv")
  y <- if (survival) {
    plain_survival(y, arg, call)
  } else {
    plain_tensor(plain_integer64(y, arg, call))
  }
  if (is_label_array(y)) {
    names <- if (length(dim(y)) == 2) as.list(colnames(y))
    matrix <- list(arg = arg, kind = "matrix", values = with_nan(y), names = names %||% list())
    return(c(matrix, if (survival) list(survival = TRUE)))
  }
  as_label_column(y, arg, call)
}

# Survival times as a matrix of the columns time and status. Missing ones are the core's to refuse.
plain_survival <- function(y, arg, call) {
  type <- attr(y, "type")
  if (!identical(type, "right")) {
    abort_gpukeras(
      sprintf("`%s` is censored by type \"%s\"; gpukeras takes \"right\" only.", arg, type),
      code = "data", hint = "Use survival::Surv(time, status).", arg = arg, call = call
    )
  }
  early <- sum(unclass(y)[, "time"] <= 0, na.rm = TRUE)
  if (early > 0) {
    abort_gpukeras(
      sprintf("`%s` has %s of 0 or less in its column `time`.", arg, count_of(early, "times")),
      code = "data", hint = "Survival times are positive.", arg = arg, column = "time", call = call
    )
  }
  matrix(as.double(y), nrow(y), 2, dimnames = list(NULL, c("time", "status")))
}

# A label for each row; numbers keep the shape of their array.
as_label_column <- function(y, arg, call) {
  shape <- if (is_number_array(y)) dim(y)
  if (is.array(y) && length(y) == nrow(y)) {
    y <- as.vector(y)
  }
  check_one_label(y, arg, call)
  kind <- check_label_kind(column_kind(plain_column(y)), y, arg, call)
  check_levels(y, arg, arg, call)
  labels <- c(list(name = arg, arg = arg, kind = kind), column_values(plain_column(y), kind))
  if (is.ordered(y)) labels$ordered <- TRUE
  if (!is.null(shape)) dim(labels$values) <- shape
  labels
}

# Several classes per row, such as one per time step, have no levels that the core could store.
check_one_label <- function(y, arg, call) {
  if (!is.array(y) || length(dim(y)) < 2 || is_number_array(y)) {
    return(invisible())
  }
  abort_gpukeras(
    sprintf(
      "`%s` has %s labels a row, and those must be numbers, not %s.", arg,
      format_count(length(y) / nrow(y)), if (is.factor(y)) "factor levels" else typeof(y)
    ),
    code = "data", hint = "Give classes as integers from 0, in an array of the same dim().",
    arg = arg, call = call
  )
}

check_label_kind <- function(kind, y, arg, call) {
  if (is.null(kind) || kind %in% c("date", "time", "duration")) {
    hint <- if (inherits(y, "formula")) {
      "A formula and a data frame make a dataset: gpu_dataset(formula, data = )."
    } else {
      "Labels are a factor, character, logical or numeric vector, or an array of numbers."
    }
    abort_gpukeras(
      sprintf("`%s` cannot be labels: it is %s.", arg, describe(y)),
      code = "data",
      hint = if (is.null(kind)) hint else paste(hint, "as.numeric() makes numbers of times."),
      arg = arg, call = call
    )
  }
  kind
}

# A column as a vector: of an array of one dimension, as tapply() and table() give, and of a
# POSIXlt, which is a list.
plain_column <- function(x, arg = "x", call = caller_env()) {
  x <- drop_asis(plain_integer64(x, arg, call))
  if (length(dim(x)) == 1) {
    dim(x) <- NULL
    oldClass(x) <- setdiff(oldClass(x), "table")
  }
  if (inherits(x, "POSIXlt")) as.POSIXct(x) else x
}

# I() and noquote() mark values and change none.
drop_asis <- function(x) {
  marks <- c("AsIs", "noquote")
  if (inherits(x, marks)) oldClass(x) <- setdiff(oldClass(x), marks)
  x
}

# Integers of the package bit64 are stored in the bits of doubles, so they must be converted.
plain_integer64 <- function(x, arg, call) {
  if (!inherits(x, "integer64")) {
    return(x)
  }
  if (!rlang::is_installed("bit64")) {
    abort_gpukeras(
      sprintf("`%s` has 64-bit integers, which need the package bit64.", arg),
      code = "data", hint = "Install bit64, or convert them by as.double() where it is loaded.",
      arg = arg, call = call
    )
  }
  # Beyond 2^53 as.double() warns of the digits that it loses.
  values <- bit64::as.double.integer64(x)
  if (is.null(dim(x))) stats::setNames(values, names(x)) else array(values, dim(x), dimnames(x))
}

# Classes of numbers that would reach Python as other ones: bits of an integer, or a number of
# minutes, of metres, of a code.
number_classes <- c("integer64", "difftime", "units", "haven_labelled")

# A number, or several, that are no column of features or labels: every check and every call of the
# core reads them by this. Numbers with a unit are refused, as nobody knows which one is meant.
plain_number <- function(x, arg = caller_arg(x), call = caller_env()) {
  if (!is.object(x) || !inherits(x, number_classes)) {
    return(x)
  }
  if (inherits(x, "integer64")) {
    return(exact_integer64(x, arg, call))
  }
  if (!inherits(x, "haven_labelled")) {
    abort_gpukeras(
      sprintf("`%s` must be plain numbers, not %s.", arg, describe(x)),
      code = "spec", hint = "Convert them to numbers of the unit that is meant: as.numeric().",
      arg = arg, call = call
    )
  }
  names <- names(x)
  stats::setNames(as.vector(unclass(x)), names)
}

# 64-bit integers that doubles hold exactly.
exact_integer64 <- function(x, arg, call) {
  values <- suppressWarnings(plain_integer64(x, arg, call))
  if (any(abs(values) >= 2^53, na.rm = TRUE)) {
    abort_gpukeras(
      sprintf("`%s` has 64-bit integers of 2^53 or more, whose last digits R's numbers lose.", arg),
      code = "spec", arg = arg, call = call
    )
  }
  values
}

# Arguments of the core, or a list of options, at any depth. Most have no such numbers, which one
# look by compiled code tells.
plain_arguments <- function(args, call = caller_env(), arg = "...") {
  found <- FALSE
  rapply(args, function(x) found <<- TRUE, classes = number_classes)
  if (found) plain_list(args, arg, call) else args
}

plain_list <- function(args, arg, call) {
  names <- rlang::names2(args)
  for (place in seq_along(args)) {
    value <- args[[place]]
    name <- if (nzchar(names[place])) names[place] else arg
    if (is.list(value)) {
      args[[place]] <- plain_list(value, name, call)
    } else if (!is.null(value)) {
      args[[place]] <- plain_number(value, name, call)
    }
  }
  args
}

# A data frame whose integers of bit64 are doubles, so that R's functions compute with them.
plain_frame <- function(data, arg = "data", call = caller_env()) {
  wide <- vapply(data, inherits, NA, "integer64")
  data[wide] <- lapply(data[wide], plain_integer64, arg, call)
  data
}

is_number_array <- function(y) (is.numeric(y) || is.logical(y)) && length(dim(y)) > 1

# Several numbers per row.
is_label_array <- function(y) is_number_array(y) && length(y) > nrow(y)

column_kind <- function(x) {
  if (is.factor(x)) {
    "factor"
  } else if (inherits(x, c("Date", "POSIXct", "difftime"))) {
    time_kind(x)
  } else if (!is.object(x) && !is.list(x) && is.null(dim(x))) {
    vector_kind(x)
  }
}

time_kind <- function(x) {
  if (!is.numeric(unclass(x)) || !is.null(dim(x))) {
    return(NULL)
  }
  if (inherits(x, "Date")) "date" else if (inherits(x, "POSIXct")) "time" else "duration"
}

vector_kind <- function(x) {
  if (is.character(x) || is.logical(x)) {
    typeof(x)
  } else if (is.numeric(x)) {
    if (is.integer(x)) "integer" else "numeric"
  }
}

# Doubles with NaN for NA. Values without NA are not copied.
with_nan <- function(x) {
  if (!is.double(x) && anyNA(x)) {
    storage.mode(x) <- "double"
  }
  x
}

# A TensorFlow tensor or NumPy array as an R array.
plain_tensor <- function(x) {
  if (inherits(x, c("tensorflow.tensor", "tensorflow.python.types.core.Tensor"))) {
    x <- x$numpy()
  }
  if (inherits(x, "numpy.ndarray")) as.array(x) else x
}
