#' Loss and metrics of a model on data
#'
#' @param model A compiled Keras 3 model.
#' @param data A [gpu_dataset()]; or a data frame, matrix (also sparse), array, `tf.data.Dataset` or
#'   paths of files, which is encoded like the training data. If training used a formula or files
#'   with columns, a data frame or file with columns must contain the label column, and the column
#'   of the weights if training had one, which weighs the rows. Missing values are treated as `na`
#'   of [gpu_dataset()] specified in training.
#' @param y Labels of a matrix, array or data frame, or of files. If training used a formula, they
#'   take the place of its label, unless that is computed, as in `log(y) ~ .`; they may then be the
#'   name of a column. Any other data has its own: `y` is an error.
#' @param recipe For a model from another session, such as one loaded from a `.keras` file: the
#'   [gpu_recipe()] of its training data. `NULL` uses the recipe that [gpu_fit()] attached to the
#'   model.
#' @param part Which rows of a dataset to use: `"all"`, `"train"` or `"validation"`. For a function
#'   or a `tf.data.Dataset`, one epoch is evaluated.
#' @param batch_size Rows per batch. `NULL` uses large batches, because nothing is learned, or 32,
#'   as in Keras, if the loss or a metric may depend on the batch (see the section Losses of
#'   [gpu_fit()]); the batches of a `tf.data.Dataset` or a function are then its own.
#' @param devices Devices that share the rows, as in [gpu_fit()]; `NULL` is the device of the model.
#'   In a [gpu_cluster()], `"all"` divides the rows among the workers, which must all make the same
#'   call, and all get the whole result.
#' @param ... Arguments of keras3: `x`, `sample_weight` in [gpu_evaluate()]; `callbacks`, a list of
#'   Keras callbacks, to which all rows are one batch; `verbose`, `FALSE` or 0 for no progress bar,
#'   which a call of more than two seconds has at a terminal; and `batch_size` in [gpu_predict()],
#'   which has no effect: see its section on batches.
#' @return A named numeric vector: the loss and each metric; for a metric whose value is an array,
#'   each component, such as `f1_score[1]`. Its attribute `"note"` says why batches were Keras', if
#'   they were, and which results of several devices may differ from those of one.
#'   Rows without weights that trained the model by weights are a warning
#'   `gpukeras_warning_weights`: a model keeps the name of a column of weights, not weights given as
#'   a vector. Give such rows as a [gpu_dataset()] with `weights`.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars[1:24, ])
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' gpu_evaluate(model, mtcars[25:32, ])
#' @export
gpu_evaluate <- function(model, data, y = NULL, part = "all", batch_size = NULL, recipe = NULL,
                         devices = NULL, ...) {
  model <- check_model(model)
  words <- check_keras_arguments(list(...), c("x", "sample_weight", "verbose", "callbacks"))
  recipe <- use_recipe(model, recipe)
  check_no_na_options(list(batch_size = batch_size))
  data <- if (missing(data)) words$x else data
  verbose <- words$verbose %||% TRUE
  data <- as_dataset(
    data, model, recipe, y, words$sample_weight, model = model, verbose = verbose
  )
  result <- call_core("evaluate", list(
    model = model, data = data$handle, part = part, batch_size = batch_size,
    devices = as_devices(devices), callbacks = as_keras_callbacks(words$callbacks),
    on_event = call_listener(verbose, "evaluating", "rows")
  ))
  warn_unweighed(result$unweighed)
  metrics <- unlist(result$metrics)
  if (nzchar(result$note)) attr(metrics, "note") <- result$note
  metrics
}

# Warns of training rows that are scored without the weights by which they trained.
warn_unweighed <- function(share) {
  if (share > 0) {
    warn_gpukeras(c(
      sprintf(
        "%s of the rows trained `model` by weights, and have none now: each counts as one.",
        if (share < 0.995) format_percent(share) else "All"
      ),
      i = "Give them as gpu_dataset(weights = ), or name a column of weights in training."
    ), "weights")
  }
}
