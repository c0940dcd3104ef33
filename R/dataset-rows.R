# Rows given as a list: list(x, y, weights), by name or by position.

# Keras' name for the weights is accepted too.
row_list_names <- c(x = "x", y = "y", weights = "weights", sample_weight = "weights")

# Whether a list is list(x, y, weights), unnamed or with these names, rather than a model's inputs.
is_row_list <- function(data, recipe = NULL) {
  if (!rlang::is_bare_list(data) || !length(data) %in% 2:3) {
    return(FALSE)
  }
  names <- rlang::names2(data)
  inputs <- vapply(recipe$inputs, `[[`, "", "name")
  all(names %in% c("", names(row_list_names))) && !setequal(names, inputs)
}

# Its parts, matched as R matches arguments: by name, then by position.
split_row_list <- function(data, arg, call = caller_env()) {
  given <- rlang::names2(data)
  unknown <- setdiff(given, c("", names(row_list_names)))
  if (length(unknown) > 0) {
    abort_row_list(sprintf("has an element `%s`", unknown[1]), arg, call)
  }
  names <- unname(row_list_names[match(given, names(row_list_names))])
  twice <- names[duplicated(names) & !is.na(names)]
  if (length(twice) > 0) {
    abort_row_list(sprintf("has `%s` twice", twice[1]), arg, call)
  }
  free <- setdiff(row_list_names, names)
  names[is.na(names)] <- free[seq_len(sum(is.na(names)))]
  parts <- stats::setNames(data, names)
  if (is.null(parts[["x"]])) {
    abort_row_list("has no `x`", arg, call)
  }
  list(x = parts[["x"]], y = parts[["y"]], weights = parts[["weights"]])
}

abort_row_list <- function(problem, arg, call) {
  abort_gpukeras(
    sprintf("The list `%s` %s.", arg, problem),
    code = "data", hint = "Rows are list(x, y), or list(x = , y = , weights = ).",
    arg = arg, call = call
  )
}

# Whether a list is list(x) or list(x, NULL): rows without labels.
is_unlabelled <- function(data) {
  rlang::is_bare_list(data) && length(data) %in% 1:3 && is.null(names(data)) &&
    !is.null(data[[1]]) && all(vapply(data[-1], is.null, NA))
}

#' @export
gpu_dataset.list <- function(x, ...) { # nolint: object_name_linter.
  if (is_unlabelled(x)) gpu_dataset(x[[1]], ...) else gpu_dataset.default(x, ...)
}

# Rows given as a dataset, a data frame, a matrix, or list(x, y), encoded as the training rows of
# `source`: a dataset's handle or a model with this `recipe`.
as_dataset <- function(data, source, recipe, y = NULL, weights = NULL, arg = "data",
                       model = NULL, verbose = TRUE, call = caller_env()) {
  check_given(data, arg, call)
  data <- open_saved(data)
  if (inherits(data, "gpu_dataset")) {
    check_dataset_options(y, drop_null(list(sample_weight = weights)), arg, call)
    return(check_alive(data, call))
  }
  formula <- recipe$formula %||% ""
  parts <- list()
  if (is.null(y) && is_row_list(data, recipe)) {
    parts <- split_row_list(data, arg, call)
    data <- parts$x
    y <- parts$y
    weights <- parts$weights %||% weights
  }
  data <- name_parts(data, model, "inputs", call)
  y <- name_parts(y, model, "outputs", call)
  weights <- name_in_order(weights, model, "outputs", call)
  if (is.data.frame(data)) check_names(data, arg, call)
  if (is.data.frame(data) && nzchar(formula)) {
    parts <- split_new_rows(formula, data, call, y)
    data <- parts$x
    y <- parts$y
    weights <- weights %||% parts$weights()
  }
  features <- as_new_rows(data, recipe, arg, call)
  if (is_labelled(features, y)) {
    features[c("label", "weights")] <- file_labels(formula, y, weights, call)
    y <- NULL
  }
  labels <- if (!is.null(y)) as_recipe_labels(y, parts$label %||% "y", recipe, call)
  rows <- new_source(features, labels, FALSE, formula, arg)
  inform_dropped(stage_rows(
    rows, list(shuffle = FALSE), weights, recipe = source, verbose = verbose, call = call
  ))
}

# Whether columns of files have the labels.
is_labelled <- function(features, y) {
  identical(features$kind, "table") && (is.null(y) || rlang::is_string(y))
}

# New rows as arguments of the core, with the columns that the recipe names.
as_new_rows <- function(data, recipe, arg, call = caller_env()) {
  if (is.data.frame(data) && !is.null(recipe$windows)) {
    return(as_window_features(data, recipe, arg, call))
  }
  as_recipe_features(known_columns(data, recipe, call), recipe, arg, call)
}

# Says how many rows were left out of a dataset that is not printed.
inform_dropped <- function(data) {
  if (data$plan$dropped_rows > 0) {
    inform_gpukeras(i = data$plan$na_reason)
  }
  data
}

# The columns that the recipe names; others are ignored.
known_columns <- function(data, recipe, call = caller_env()) {
  if (rlang::is_bare_list(data)) {
    return(known_inputs(data, recipe))
  }
  if (!is.data.frame(data) || length(recipe$columns) == 0) {
    return(check_preparable(data, recipe, call))
  }
  data[intersect(vapply(recipe$columns, `[[`, "", "name"), names(data))]
}
