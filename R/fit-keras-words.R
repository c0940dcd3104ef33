# Rows given to gpu_fit() itself, and the arguments of keras3's fit().

# Arguments that gpu_dataset() has, with its names for them.
keras_row_arguments <- c(
  validation = "validation", validation_split = "validation", sample_weight = "weights",
  class_weight = "class_weight", shuffle = "shuffle", steps_per_epoch = "steps"
)

# Arguments that the training itself has, with Keras' names.
keras_fit_arguments <- c(
  "initial_epoch", "validation_freq", "validation_batch_size", "validation_steps"
)

# Arguments without an equivalent, with hints.
keras_only_arguments <- c(
  object = "The model is the first argument, `model`.",
  initial_epoch = "It is for gpu_fit().",
  validation_steps = "It is for gpu_fit().",
  validation_batch_size = "It is for gpu_fit().", validation_freq = "It is for gpu_fit().",
  view_metrics = "It is for gpu_fit().",
  steps = "Use gpu_dataset(f, steps = )."
)

# Checks the arguments of keras3 in `...` against those that are accepted.
check_keras_arguments <- function(words, taken, call = caller_env()) {
  unknown <- setdiff(rlang::names2(words), taken)[1]
  if (length(words) > 0 && !is.na(unknown)) {
    training <- unknown %in% c(names(keras_row_arguments), "validation_data")
    hint <- if (training) "It is for gpu_fit()." else unname(keras_only_arguments[unknown])
    abort_gpukeras(
      if (nzchar(unknown)) {
        sprintf("Unknown argument `%s`.", unknown)
      } else {
        "An argument has no name."
      },
      code = "spec", arg = unknown, call = call,
      hint = if (is.na(hint)) "The help page lists the arguments." else hint
    )
  }
  words
}

# The data, epochs, validation and Keras' options of gpu_fit(): list(data, epochs, validation,
# options). For data with labels, a number in the place of `y` is `epochs`.
as_fit_rows <- function(data, y, epochs, validation, words, model, verbose = TRUE,
                        call = caller_env()) {
  data <- data %||% words$x
  if (length(y) == 1) y <- plain_number(y, call = call)
  epochs <- plain_number(epochs, call = call)
  if (length(validation) == 1) validation <- plain_number(validation, call = call)
  words <- plain_arguments(words, call)
  if (rlang::is_bare_numeric(y, 1) && has_labels(data)) {
    if (!is.numeric(epochs)) validation <- epochs
    epochs <- y
    y <- NULL
  }
  validation <- validation %||% words$validation_data
  if (rlang::is_bare_numeric(validation, 1)) {
    words$validation <- validation
    validation <- NULL
  }
  options <- drop_null(words)[intersect(keras_fit_arguments, names(drop_null(words)))]
  if (!in_sequence(data)) {
    options$steps_per_epoch <- words$steps_per_epoch
    words$steps_per_epoch <- NULL
  }
  words <- words[intersect(names(keras_row_arguments), names(drop_null(words)))]
  list(
    data = as_training(data, y, words, model, verbose, call), epochs = epochs,
    validation = validation,
    options = lapply(options, function(value) if (length(value) > 1) as.list(value) else value)
  )
}

# Whether rows come one after the other, so that an epoch may end anywhere.
in_sequence <- function(data) is.function(data) || is_tf_dataset(data) || is_py_dataset(data)

has_labels <- function(data) {
  inherits(data, c("gpu_dataset", "gpu_saved")) || is_row_list(data) || in_sequence(data)
}

# The rows to train on as a dataset.
as_training <- function(data, y = NULL, words = list(), model = NULL, verbose = TRUE,
                        call = caller_env()) {
  check_given(data, "data", call)
  data <- resolve_saved(data, call)
  if (inherits(data, "gpu_dataset")) {
    check_dataset_options(y, words, "data", call)
    return(check_alive(data, call))
  }
  options <- stats::setNames(words, keras_row_arguments[names(words)])
  if (is.null(y) && rlang::is_bare_list(data)) {
    parts <- split_row_list(data, "data", call)
    data <- parts$x
    y <- parts$y
    options$weights <- parts$weights %||% options$weights
  }
  check_rows(data, y, options, call)
  data <- as_text_rows(data, y, model)
  options$encode <- encode_for(data, model)
  data <- name_parts(data, model, "inputs", call)
  y <- name_parts(y, model, "outputs", call)
  options$weights <- name_in_order(options$weights, model, "outputs", call)
  if (is.function(data) && !is_python(data)) attr(data, "parts") <- parts_of(model, call)
  # Arguments as `.options[[name]]`, so that the call of an error does not contain the rows. A data
  # frame may have a column `options`, which weights would be looked for in.
  .options <- options # nolint: object_usage_linter.
  asked <- lapply(
    rlang::set_names(names(options)), function(name) call("[[", quote(.options), name)
  )
  rlang::inject(gpu_dataset(data, y, !!!asked, verbose = verbose))
}

# Refuses labels and options if the data is already a dataset.
check_dataset_options <- function(y, words, arg, call) {
  word <- if (is.null(y)) utils::head(names(words), 1) else "y"
  if (length(word) > 0) {
    abort_gpukeras(
      sprintf("`%s` comes too late: `%s` is a gpu_dataset already.", word, arg),
      code = "spec", arg = word, call = call,
      hint = sprintf(
        "Use gpu_dataset(%s = ), or give the rows themselves.",
        c(keras_row_arguments, y = "y")[word]
      )
    )
  }
}

# Checks that data can be rows, with a hint for each kind.
check_rows <- function(data, y, options, call) {
  if (is.data.frame(data) && is.null(y)) {
    abort_gpukeras(
      "`data` is a data frame, and no column is named as the label.",
      code = "data", hint = "Give `y = \"column\"`, or gpu_dataset(column ~ ., data = ).",
      arg = "y", call = call
    )
  }
  others <- c("python.builtin.generator", "keras.src.layers.layer.Layer") # models are layers
  if (!in_sequence(data) && !are_rows(data) || inherits(data, others)) {
    abort_gpukeras(
      sprintf("`data` must be a gpu_dataset or rows, not %s.", describe(data)),
      code = "spec", arg = "data", call = call,
      hint = "Such as gpu_dataset(), list(x, y), or an R function that makes a batch a call."
    )
  }
}

are_rows <- function(x) {
  is.numeric(x) || is.logical(x) || is.character(x) || is.list(x) ||
    inherits(x, c("formula", "sparseMatrix", "numpy.ndarray", "tensorflow.tensor"))
}

is_python <- function(x) inherits(x, "python.builtin.object") # a function too, if callable

# A function that gives the names of a model's inputs and outputs, cached; NULL without a model.
parts_of <- function(model, call) {
  known <- NULL
  if (!is.null(model)) {
    function() known <<- known %||% call_core("model_parts", list(model = model), call)
  }
}

# Gives unnamed inputs or outputs the model's names, in its order.
name_parts <- function(x, model, which, call = caller_env()) {
  if (is_unlabelled(x)) x[[1]] else name_in_order(x, model, which, call)
}

# The same for a list whose elements may be NULL. `model` may be a function of parts_of().
name_in_order <- function(x, model, which, call) {
  if (!rlang::is_bare_list(x) || !is.null(names(x)) || is.null(model)) {
    return(x)
  }
  parts <- if (is_python(model)) parts_of(model, call) else model
  names <- unlist(parts()[[which]])
  if (length(names) == 0) { # nor has one that is not built yet, or that is a class of one's own
    return(place_parts(x, which))
  }
  if (length(names) != length(x)) {
    abort_gpukeras(
      sprintf("The model has %s, but the list has %d.", count_of(length(names), which), length(x)),
      code = "data", hint = paste0("They are ", shorten(names, 8), "."), call = call
    )
  }
  stats::setNames(x, names)
}
