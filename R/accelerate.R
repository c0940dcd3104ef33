# accelerate(): scripts of keras3 run unchanged, through gpukeras where that gives the same.

#' Run scripts of keras3 unchanged, and faster
#'
#' After `library(keras3)` and `gpukeras::accelerate()`, a script's own `fit()`, `evaluate()` and
#' `predict()` run through gpukeras' engine where that gives the same result, and through Keras
#' where not. `accelerate_report()` says for each call which it was, and why.
#'
#' The same holds for every Keras model of the session, also one that Python code makes.
#' It does not matter when `accelerate()` is called: before or after `library(keras3)`, before or
#' after Keras or TensorFlow is imported. It does not start Python, so a backend can still be chosen
#' afterwards, by `keras3::use_backend("jax")`. Where calls cannot be looked at, as with Keras on
#' PyTorch, with Keras 2 (`tf_keras`), or after another package has put its own function in the
#' place of Keras' `fit()`, it is said: by an error where Keras is imported already, by a warning of
#' Python when it is imported, and by `accelerate_report()`.
#'
#' `python -m gpukeras.accelerate script.py` does it for a script of Python; with `--report` before
#' the script's name it prints the report at the end.
#'
#' @section What is the same:
#' The losses, the weights, the `history`, what is printed (but for times, and how often a progress
#' bar moves), and what callbacks are told. Rows are shuffled in the order in which Keras would
#' shuffle them, so after `keras3::set_random_seed()` each epoch sees the same batches. Batches of
#' pipelines and generators are read by Keras' own iterator, as often as Keras reads them, and many
#' of them are trained in a call. Numbers that a script draws after a training are those that it
#' would draw after Keras' own. Validation, `evaluate()` and `predict()` keep the script's batch
#' size wherever their result may depend on it (see the section Losses of [gpu_fit()]). Engines may
#' differ from Keras in the last digits of float32. First epochs amplify such differences, so on a
#' CPU they are trained by the engine that rounds as Keras does, and XLA's program takes over in
#' long trainings only. A loss that is no number does not end a training, as in Keras. A call that
#' fails before the first update is run by Keras; a later error is the script's, as Keras raises it,
#' also in its validation rows.
#'
#' @section Which calls are taken over:
#' | pattern | engine |
#' |---|---|
#' | `fit()` of arrays, lists or named lists of arrays, 20 batches or more | gpukeras |
#' | ... with `validation_split`, `validation_data`, `validation_freq`, `initial_epoch` | gpukeras |
#' | ... with `sample_weight`, or `class_weight` for one output | gpukeras |
#' | ... with callbacks that work on epochs: Keras' own, and those written in R | gpukeras |
#' | ... of a model with a `train_step()`, loss, metric or layer of its own | gpukeras |
#' | `fit()` of tf.data pipelines, also of those that shuffle, draw or call Python or R | gpukeras |
#' | `fit()` of a `PyDataset`; of a generator; of batches whose number is unknown | gpukeras |
#' | ... with `class_weight`, `steps_per_epoch`, `validation_steps` | gpukeras |
#' | ... with `shuffle = "batch"` | gpukeras |
#' | `fit()` and `evaluate()` of missing values, of integers of any size | gpukeras |
#' | `fit()` of several outputs, with a short last batch too, on TensorFlow | gpukeras |
#' | `evaluate()` of two batches or more, without callbacks; of tf.data pipelines too | gpukeras |
#' | `predict()` of two batches or more, of arrays and of pipelines that do not draw | gpukeras |
#' | fewer batches: there is nothing to gain | keras |
#' | callbacks that work on each batch; a progress bar of one's own | keras |
#' | ... of unknown number, with `steps_per_execution` | keras |
#' | `evaluate()` and `predict()` of generators and `PyDataset`s | keras |
#' | validation by a generator | keras |
#' | `predict()` of missing values, of integers beyond 2^24, with `steps` | keras |
#' | ... under another `floatx` of Keras than float32 | keras |
#' | texts; ragged and sparse batches of pipelines | keras |
#' | `predict()` of pipelines that do not tell the shape of rows | keras |
#' | on JAX: all but arrays; several outputs with a short last batch | keras |
#' | `run_eagerly`; a `fit()` or `make_train_function()` of one's own | keras |
#' | models of a strategy of TensorFlow's, or that `keras.distribution` spreads on JAX | keras |
#' | calls that callbacks make while a training runs; a second training in another thread | keras |
#' | `train_on_batch()` and loops of one's own | not looked at |
#' @param on Whether calls are looked at; `FALSE` gives Keras its own functions back.
#' @return `accelerate()` invisibly returns whether it was on before. `accelerate_report()` returns
#'   a `gpu_accelerate`: a data frame with one row per call, the first one first, and the columns
#'   `call` (`"fit"`, `"evaluate"` or `"predict"`), `model`, `engine` (`"gpukeras"` or `"keras"`),
#'   `reason`, `rows` (`NA` where they are not known beforehand) and `seconds`. It holds the last
#'   10,000 calls. Its attributes `on` (whether `accelerate()` is on) and `note` (which calls are
#'   not looked at, and why; `""` if all are) are printed where calls are not looked at.
#' @section Errors:
#' `gpukeras_error_spec` if `on` or `clear` is not `TRUE` or `FALSE`.
#' `gpukeras_error_runtime_missing` from `accelerate()` if Keras is imported on another backend than
#' TensorFlow or JAX; it is off then. Those of a script's calls are Keras' own.
#'
#' The report comes with a warning, `gpukeras_warning_accelerate`, if `accelerate()` is on and the
#' functions of Keras are not replaced.
#' @seealso [gpu_fit()] trains with all that gpukeras has, such as checkpoints.
#' @examplesIf gpukeras:::can_run_examples()
#' keras <- reticulate::import("keras")
#' accelerate()
#' layers <- list(keras$layers$Input(list(3L)), keras$layers$Dense(1L))
#' model <- keras$Sequential(layers)
#' model$compile(optimizer = "sgd", loss = "mse")
#' x <- matrix(rnorm(9600), ncol = 3)
#' history <- model$fit(x, array(x[, 1]), verbose = 0L)
#' accelerate_report()
#' accelerate(FALSE)
#' @export
accelerate <- function(on = TRUE) {
  check_flag(on)
  if (python_runs()) {
    return(invisible(call_core("accelerate", list(on = on))))
  }
  was <- the$accelerate
  the$accelerate <- on
  invisible(was)
}

# Python has started. It was not started by accelerate(), since packages that are loaded later, such
# as keras3, still say what it must have. An error would keep Python from starting.
start_accelerating <- function() {
  if (!the$accelerate) {
    return()
  }
  the$accelerate <- FALSE
  tryCatch(call_core("accelerate", list(on = TRUE)), error = function(condition) {
    warn_gpukeras(c("accelerate() takes over no call.", x = said_by(condition)), "accelerate")
  })
}

#' @rdname accelerate
#' @param clear Whether to forget the calls after this report.
#' @export
accelerate_report <- function(clear = FALSE) {
  check_flag(clear)
  if (!python_runs()) {
    note <- if (the$accelerate) "is on, and Python has not started yet." else "is off."
    return(new_accelerate_report(list(), the$accelerate, paste("accelerate()", note)))
  }
  report <- call_core("accelerate_report", list(clear = clear))
  state <- report$state
  if (state$lost) warn_gpukeras(state$note, "accelerate")
  new_accelerate_report(report$calls, state$on, state$note)
}

new_accelerate_report <- function(records, on = TRUE, note = "") {
  columns <- list(`function` = "", model = "", engine = "", reason = "", rows = 0, seconds = 0)
  frame <- typed_frame(records, columns)
  names(frame)[1] <- "call"
  attr(frame, "on") <- on
  attr(frame, "note") <- note
  new_result_frame(frame, "gpu_accelerate")
}

#' @rdname accelerate
#' @param x A `gpu_accelerate`.
#' @param ... Not used.
#' @export
format.gpu_accelerate <- function(x, ...) {
  if (!all(c("call", "model", "engine", "reason", "rows", "seconds") %in% names(x))) {
    return(format_frame(x)) # some of its columns
  }
  cells <- list(
    call = paste0(x$call, "()"), rows = ifelse(is.na(x$rows), "", vapply(x$rows, format_count, "")),
    engine = x$engine, seconds = sprintf("%.2f", x$seconds), reason = x$reason
  )
  c(
    sprintf(
      "<gpu_accelerate> %s, %d through gpukeras", count_of(nrow(x), "calls"),
      sum(x$engine == "gpukeras")
    ),
    format_notes(attr(x, "note")[nzchar(attr(x, "note"))]),
    if (nrow(x) > 0) format_columns(cells, c("left", "right", "left", "right", "left"))
  )
}
