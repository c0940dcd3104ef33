# gpu_reproduce(): two trainings from the same state, and what differs first.

#' Find out whether a training repeats, and what differs first
#'
#' Trains a model twice from the same state: weights, optimizer, seeds of layers, random generators
#' of Python and NumPy, order of the rows. If metrics and weights are the same bit by bit, it says
#' so. If not, it names the first thing that differs. The model is left as it was.
#'
#' The search goes from large to small: rows of two epochs; then single steps, each run twice from
#' one state; of the first step that differs the outputs of the layers, in their order; the
#' gradients, from the end of the model; the optimizer's update. For a layer it lists operations
#' that can differ from run to run: random ones without a seed, and on a GPU those that TensorFlow
#' lists as not deterministic. Steps are compared as Keras compiles them, layers in eager mode.
#'
#' On a GPU, `gpu_setup(deterministic = TRUE)` makes TensorFlow use kernels that repeat, or refuse.
#' @param model A compiled Keras model.
#' @param data A [gpu_dataset()].
#' @param epochs Epochs of each of the two trainings.
#' @param steps Steps that are looked at, at most, to find the first one that differs.
#' @param engine As in [gpu_fit()], but `"auto"` is `"repeatable"`: the same in both trainings.
#' @return A `gpu_reproduction`, which `print()` shows: `$equal`, `$sentence`; of what differs first
#'   `$kind` (`"rows"`, `"layer"`, `"gradient"`, `"optimizer"`, `"compiled"` for a difference that
#'   eager mode does not have, on JAX `"step"` without more, `"unknown"`), `$name`,
#'   `$layer_class`, `$operations` and `$step`; the first `$epoch` and `$metric` that differ, with
#'   both `$values`; `$largest`, the largest difference of a weight at the end; `$settings`, a data
#'   frame of settings that decide whether trainings repeat (`name`, `value`, `effect`).
#' @section Errors:
#' As in [gpu_fit()].
#' @seealso `gpu_setup(seed = , deterministic = )`.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, seed = 1)
#' gpu_reproduce(gpu_mlp(train, dropout = 0.2, seed = 1), train)
#' @export
gpu_reproduce <- function(model, data, epochs = 2, steps = 100, engine = "auto") {
  model <- check_model(model)
  data <- check_dataset(data)
  options <- list(epochs = epochs, steps = steps, engine = engine)
  new_gpu_reproduction(suspendInterrupts(call_core("reproduce", list(
    model = model, data = data$handle, options = check_no_na_options(options)
  ))))
}

new_gpu_reproduction <- function(record) {
  record$operations <- as_chr(record$operations)
  record$values <- as.numeric(unlist(record$values))
  record$settings <- records_frame(record$settings, c("name", "value", "effect"))
  new_result(record, "gpu_reproduction")
}

#' @export
format.gpu_reproduction <- function(x, ...) {
  settings <- x$settings
  differs <- if (x$epoch > 0) {
    values <- format(x$values, digits = 17, trim = TRUE)
    sprintf("%s of epoch %d: %s and %s", x$metric, x$epoch, values[1], values[2])
  }
  format_fields(
    wrap_line(x$sentence, "<gpu_reproduction> "),
    differs = differs,
    weights = if (!x$equal) paste("differ by at most", format_number(x$largest, 2)),
    "settings:",
    paste0("  ", format(settings$name), "  ", format(settings$value), "  ", settings$effect),
    width = 10
  )
}
