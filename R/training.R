#' Train a Keras model
#'
#' Trains the model in place, through Keras' own `fit()` (callbacks, metrics, validation and history
#' are Keras'), but with many batches in a single call: R and Python stay out of the step.
#'
#' @section Engines:
#' Three engines run the same Keras step. `"keras"` calls Keras' own function once a batch.
#' `"superstep"` loops over many batches inside a TensorFlow graph. `"compiled"` is that loop
#' compiled by XLA to a single program. With `"auto"` each trains real batches for a moment in the
#' first epoch (they are updates of the model: nothing is wasted) and the fastest goes on; an engine
#' is only tried when the batches that are left can pay for tracing and compiling it. The history
#' says which was chosen, and the times measured. Dropout draws other numbers in the compiled
#' engine, so force an engine where runs must repeat bit for bit.
#'
#' Callbacks that work on every batch (a class of your own with `on_train_batch_end()`) switch to
#' `"keras"`; Keras' own callbacks see several batches as one, as with its `steps_per_execution`.
#'
#' @param model A compiled Keras 3 model: from keras3, from reticulate, or from [gpu_mlp()].
#' @param data A [gpu_dataset()], or `list(x, y)`.
#' @param epochs Passes over the training rows. Of a function or `tf.data.Dataset` without `steps`,
#'   the first pass tells how many there are.
#' @param validation Rows to validate on after each epoch: a [gpu_dataset()] made with
#'   `recipe = data`, a data frame, or `list(x, y)`. By default those that `data` kept apart.
#' @param batch_size Rows a step; `"auto"` is the dataset's own.
#' @param engine `"auto"`, `"keras"`, `"superstep"` or `"compiled"`.
#' @param callbacks A list of Keras callbacks.
#' @param verbose Whether progress is shown: a bar in a terminal, a line for an epoch elsewhere.
#' @return A `gpu_history`, with `print()`, `plot()`, `as.data.frame()` and `ggplot2::autoplot()`.
#'   It says where the model ran, through which engine and why, rows a second, the share of time
#'   spent waiting for rows, and the GPU's peak memory. Interrupting (Ctrl-C, Esc) stops after the
#'   current call and returns the history so far; the model keeps what it has learned.
#' @section Errors:
#' `gpukeras_error_model` for a model that is not compiled or does not fit the data,
#' `gpukeras_error_data` for labels out of the output's range, `gpukeras_error_out_of_memory`.
#' @examplesIf interactive()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' model <- gpu_mlp(train, units = c(16, 8))
#' fit <- gpu_fit(model, train, epochs = 50)
#' plot(fit)
#' @export
gpu_fit <- function(model, data, epochs = 10, validation = NULL, batch_size = "auto",
                    engine = "auto", callbacks = list(), verbose = TRUE) {
  check_model(model)
  data <- as_training(data)
  if (!is.null(validation)) {
    validation <- as_dataset(validation, data$handle, data, arg = "validation")$handle
  }
  # The listener lets interrupts in, between two calls; anywhere else they would lose the history.
  report <- suspendInterrupts(call_core("fit", list(
    model = model,
    data = data$handle,
    options = check_no_na_options(list(epochs = epochs, engine = engine)),
    validation = validation,
    batch_size = if (!identical(batch_size, "auto")) batch_size,
    callbacks = if (rlang::is_bare_list(callbacks)) callbacks else list(callbacks),
    on_event = progress_listener(verbose)
  )))
  new_gpu_history(report)
}

#' Loss and metrics of a model on data
#'
#' @param model A compiled Keras 3 model.
#' @param data A [gpu_dataset()]; or a data frame, matrix (also sparse), array or paths of files,
#'   which is encoded as the data that trained the model was. A data frame or a file with columns
#'   holds the label column when training used a formula or such files. Rows with missing values are
#'   treated as `na` of [gpu_dataset()] said in training.
#' @param y Labels of a matrix, array or data frame without formula.
#' @param recipe For a model from another session, such as one loaded from a `.keras` file: the
#'   [gpu_recipe()] of its training data. `NULL` takes the one that [gpu_fit()] tied to the model.
#' @param part Which rows of a dataset: `"all"`, `"train"` or `"validation"`. Of a function or a
#'   `tf.data.Dataset` one epoch is evaluated.
#' @param batch_size Rows a batch; `NULL` takes large ones, as nothing is learned.
#' @return A named numeric vector: the loss and each metric.
#' @examplesIf interactive()
#' train <- gpu_dataset(mpg ~ ., data = mtcars[1:24, ])
#' model <- gpu_mlp(train)
#' gpu_fit(model, train, epochs = 20)
#' gpu_evaluate(model, mtcars[25:32, ])
#' @export
gpu_evaluate <- function(model, data, y = NULL, part = "all", batch_size = NULL, recipe = NULL) {
  check_model(model)
  recipe <- use_recipe(model, recipe)
  data <- as_dataset(data, model, recipe, y = y)
  result <- call_core("evaluate", list(
    model = model, data = data$handle, part = part, batch_size = batch_size
  ))
  unlist(result$metrics)
}

#' Predictions as R values
#'
#' New rows are encoded as training encoded them: columns are found by name, factor levels by label,
#' standardised by the training rows' statistics.
#'
#' @param model A Keras 3 model.
#' @param newdata A data frame, matrix (also a sparse one), array or paths of files; or a
#'   [gpu_dataset()], whose rows are taken in their original order (of a function or a
#'   `tf.data.Dataset`: one epoch, in its order).
#' @param type `"response"`: numbers, or probabilities of the classes (of the second one when there
#'   are two). `"class"`: the most probable class, as a factor with the training levels, a logical,
#'   or 0 and 1, as the labels were.
#' @inheritParams gpu_evaluate
#' @return A vector, or a matrix with one row for each row of `newdata` and a named column for each
#'   class or output. Where training had `na = "drop"`, rows with a missing value get `NA`; a
#'   [gpu_dataset()] has left them out already.
#' @section Errors:
#' `gpukeras_error_data` for a missing column, a level that training did not see, a column of
#' another type; for missing values, unless `na` of [gpu_dataset()] said otherwise in training.
#' @examplesIf interactive()
#' train <- gpu_dataset(Species ~ ., data = iris)
#' model <- gpu_mlp(train)
#' gpu_fit(model, train, epochs = 50)
#' table(gpu_predict(model, iris, type = "class"), iris$Species)
#' @export
gpu_predict <- function(model, newdata, type = "response", recipe = NULL) {
  check_model(model)
  check_string(type)
  recipe <- use_recipe(model, recipe)
  args <- list(model = model, type = type)
  newdata <- open_saved(newdata)
  if (inherits(newdata, "gpu_dataset")) {
    args$data <- check_alive(newdata)$handle
  } else {
    args$features <- as_new_features(newdata, recipe, env = caller_env())
  }
  as_prediction(call_core("predict", args))
}

as_new_features <- function(newdata, recipe, env, call = caller_env()) {
  if (is.data.frame(newdata)) {
    check_names(newdata, "newdata", call)
    newdata <- if (nzchar(recipe$formula %||% "")) {
      apply_formula(recipe$formula, newdata, env, call)
    } else {
      known_columns(newdata, recipe)
    }
  }
  as_features(newdata, "newdata", call, recorded_zones(recipe))
}

as_prediction <- function(record) {
  values <- record$values
  if (length(record$missing) > 0) {
    values[slice.index(values, 1) %in% record$missing] <- NA
  }
  levels <- unlist(record$levels)
  if (length(levels) > 0) {
    return(factor(levels[as.vector(values)], levels = levels))
  }
  if (length(dim(values)) < 2) {
    values <- as.vector(values)
    return(if (isTRUE(record$logical)) values == 1 else values)
  }
  if (length(record$names) == ncol(values)) {
    colnames(values) <- unlist(record$names)
  }
  values
}

# The rows to train on: a dataset, or list(x, y).
as_training <- function(data, call = caller_env()) {
  if (rlang::is_bare_list(data, n = 2)) {
    data <- gpu_dataset(data[[1]], data[[2]])
  }
  check_dataset(data, call = call)
}
