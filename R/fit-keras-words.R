# What a user of keras3 types first: rows given to gpu_fit() itself, and the words of its fit().

# Words that gpu_dataset() has, and its names for them.
row_words <- c(
  validation = "validation", validation_split = "validation", sample_weight = "weights",
  class_weight = "class_weight", shuffle = "shuffle", steps_per_epoch = "steps"
)

# Words that have no equal here, and what there is instead.
other_words <- c(
  object = "The model is the first argument, `model`.",
  initial_epoch = "`checkpoint` goes on where a training ended.",
  validation_steps = "Use `validation = gpu_dataset(f, steps = )`.",
  validation_batch_size = "Leave it out: rows are validated in large batches.",
  validation_freq = "Leave it out: rows are validated after each epoch.",
  view_metrics = "Use `verbose`, and plot() of the history.",
  steps = "Use gpu_dataset(f, steps = ).", callbacks = "It is for gpu_fit()."
)

# Arguments of keras3's that came through `...`: those that are taken, by name; else what to use.
check_words <- function(words, taken, call = caller_env()) {
  unknown <- setdiff(rlang::names2(words), taken)[1]
  if (length(words) > 0 && !is.na(unknown)) {
    training <- unknown %in% c(names(row_words), "validation_data")
    hint <- if (training) "It is for gpu_fit()." else unname(other_words[unknown])
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

# What gpu_fit() trains on, and how long: list(data, epochs, validation). `y` was not always there:
# of rows that have their labels a number in its place is that of epochs.
as_fit_rows <- function(data, y, epochs, validation, words, model, call = caller_env()) {
  data <- data %||% words$x
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
  words <- words[intersect(names(row_words), names(drop_null(words)))]
  list(data = as_training(data, y, words, model, call), epochs = epochs, validation = validation)
}

has_labels <- function(data) {
  inherits(data, c("gpu_dataset", "gpu_saved")) || is_pair(data) || is_tf_dataset(data) ||
    is.function(data)
}

# The rows to train on: a dataset, or what gpu_dataset() makes one of.
as_training <- function(data, y = NULL, words = list(), model = NULL, call = caller_env()) {
  data <- as_live(data, call)
  if (inherits(data, "gpu_dataset")) {
    check_unsettled(y, words, call)
    return(check_alive(data, call))
  }
  options <- stats::setNames(words, row_words[names(words)])
  if (is.null(y) && rlang::is_bare_list(data)) {
    parts <- as_parts(data, "data", call)
    data <- parts$x
    y <- parts$y
    options$weights <- parts$weights %||% options$weights
  }
  check_rows(data, y, options, call)
  options$encode <- encode_for(data, model)
  data <- name_parts(data, model, "inputs", call)
  y <- name_parts(y, model, "outputs", call)
  if (is.function(data) && !is_python(data)) attr(data, "parts") <- parts_of(model, call)
  # By their names, so that no call of an error holds the rows.
  asked <- lapply(rlang::set_names(names(options)), function(name) call("[[", quote(options), name))
  rlang::inject(gpu_dataset(data, y, !!!asked))
}

# A dataset has its labels and options already.
check_unsettled <- function(y, words, call) {
  word <- if (is.null(y)) utils::head(names(words), 1) else "y"
  if (length(word) > 0) {
    abort_gpukeras(
      sprintf("`%s` comes too late: `data` is a gpu_dataset already.", word),
      code = "spec", arg = word, call = call,
      hint = sprintf(
        "Use gpu_dataset(%s = ), or give gpu_fit() the rows themselves.",
        c(row_words, y = "y")[word]
      )
    )
  }
}

# What can be rows, said in the terms of their kind.
check_rows <- function(data, y, options, call) {
  sequence <- is.function(data) || is_tf_dataset(data)
  if (!is.null(options$steps) && !sequence) {
    abort_gpukeras(
      "`steps_per_epoch` is for rows that come in sequence: an epoch is all rows of `data`.",
      code = "spec", hint = "Leave it out.", arg = "steps_per_epoch", call = call
    )
  }
  if (is.data.frame(data) && is.null(y)) {
    abort_gpukeras(
      "`data` is a data frame, and no column is named as the label.",
      code = "data", hint = "Give `y = \"column\"`, or gpu_dataset(column ~ ., data = ).",
      arg = "y", call = call
    )
  }
  if (!sequence && !are_rows(data) || inherits(data, "python.builtin.generator")) {
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

# Which is a function if it is callable.
is_python <- function(x) inherits(x, "python.builtin.object")

# What gives the names of a model's inputs and outputs, asked for once; NULL without a model.
parts_of <- function(model, call) {
  known <- NULL
  if (!is.null(model)) {
    function() known <<- known %||% call_core("model_parts", list(model = model), call)
  }
}

# Unnamed inputs or outputs by the names that a model has for them, in its order. `model` may be
# what parts_of() gave.
name_parts <- function(x, model, which, call = caller_env()) {
  if (is_alone(x)) {
    return(x[[1]])
  }
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
