# Rows given as a list: list(x, y, weights), by name or by position.

# Keras' word for the weights is taken too.
part_names <- c(x = "x", y = "y", weights = "weights", sample_weight = "weights")

# Whether a list is list(x, y, weights), and not the inputs of a model: unnamed, or with these names.
is_pair <- function(data, recipe = NULL) {
  if (!rlang::is_bare_list(data) || !length(data) %in% 2:3) {
    return(FALSE)
  }
  names <- rlang::names2(data)
  inputs <- vapply(recipe$inputs, `[[`, "", "name")
  all(names %in% c("", names(part_names))) && !setequal(names, inputs)
}

# Its parts: those with a name by their names, the others in the order that is left, as R matches
# arguments.
as_parts <- function(data, arg, call = caller_env()) {
  given <- rlang::names2(data)
  unknown <- setdiff(given, c("", names(part_names)))
  if (length(unknown) > 0) {
    abort_parts(sprintf("has an element `%s`", unknown[1]), arg, call)
  }
  names <- unname(part_names[match(given, names(part_names))])
  twice <- names[duplicated(names) & !is.na(names)]
  if (length(twice) > 0) {
    abort_parts(sprintf("has `%s` twice", twice[1]), arg, call)
  }
  free <- setdiff(part_names, names)
  names[is.na(names)] <- free[seq_len(sum(is.na(names)))]
  parts <- stats::setNames(data, names)
  if (is.null(parts[["x"]])) {
    abort_parts("has no `x`", arg, call)
  }
  list(x = parts[["x"]], y = parts[["y"]], weights = parts[["weights"]])
}

abort_parts <- function(problem, arg, call) {
  abort_gpukeras(
    sprintf("The list `%s` %s.", arg, problem),
    code = "data", hint = "Rows are list(x, y), or list(x = , y = , weights = ).",
    arg = arg, call = call
  )
}

# The rows to train on: a dataset, list(x, y), or a tf.data pipeline.
as_training <- function(data, call = caller_env()) {
  if (is_pair(data)) {
    parts <- as_parts(data, "data", call)
    data <- gpu_dataset(parts$x, parts$y, weights = parts$weights)
  } else if (is_tf_dataset(data)) {
    data <- gpu_dataset(data)
  }
  check_dataset(data, call = call)
}
