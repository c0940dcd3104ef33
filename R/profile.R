# gpu_profile(): where the time of a training step goes.

#' Where does the time of a training go?
#'
#' Trains real steps of `model` on `data` with the engine that would train it, measures and traces
#' them, and reports what limits the training: the wait for rows, the calls that start the
#' computation, or the computation itself. The model stays as it was, also after errors and
#' interrupts: weights, optimizer, metrics and random state are restored (a model that was not built
#' yet is built).
#'
#' @section Verdicts:
#' - `"input-bound"`: the device waits for rows. See the stages of the input, and `cache` of
#'   [gpu_dataset()].
#' - `"launch-bound"`: R, Python and TensorFlow spend most of a step starting operations that end at
#'   once. Larger batches and an engine that trains many batches per call help.
#' - `"compute-bound"`: the operations themselves take the time. A faster device, a lower precision
#'   or a smaller model help.
#' - `"memory-bound"`: the same, limited by the device's memory rather than its arithmetic; reported
#'   only if the trace shows it.
#' - `"undetermined"`: the measurement does not decide, and the sentence says why. If a trace could
#'   not be made or read, no other verdict is reported.
#'
#' `$decided_by` is the share of the step that decided (`name`, `value`) and the number that it was
#' compared with (`threshold`), such as the next largest share.
#'
#' @section How it is measured:
#' A tracer slows down the steps that it traces. So the length of a step is measured without it,
#' once with the real input and once on rows that are already on the device; the time spent waiting
#' for rows is measured by the clock too. The trace of `steps` further steps divides the rest. Each
#' moment counts once: as computation, else as copies between host and device, else as the host's
#' own work, else as idle. The time of a layer is that of its operations, forward and backward; a
#' moment in which several operations run is divided among them.
#'
#' If `data` is a function that returns batches, the batches of these steps are not trained on
#' later.
#'
#' @param model A compiled Keras 3 model.
#' @param data A [gpu_dataset()], or `list(x, y)`.
#' @param steps Steps to trace, after a warm-up.
#' @param engine As in [gpu_fit()]; `"auto"` is the engine that last trained the model, or else the
#'   graph_loop, or the only engine that can train it.
#' @param batch_size Rows per step: a number, a [gpu_batch_size()] result, or `"auto"` as in
#'   [gpu_fit()].
#' @param verify Whether to try each piece of advice that is an argument of [gpu_fit()], so that its
#'   gain is measured too. This takes some seconds for each.
#' @param log_dir A folder to keep the trace in, for [gpu_tensorboard()] with the profile plugin;
#'   `NULL` keeps no trace.
#' @return A `gpu_profile`, a list with
#'   * `$verdict`, `$sentence` and `$decided_by`: see above;
#'   * `$step_s`: seconds per step, the median; `$samples_per_s`: rows per second;
#'   * `$shares`: the shares of the step spent on `input`, `host`, `kernels`, `transfers` and
#'     `idle`, which sum to 1; `NA` if the trace does not show them;
#'   * `$layers`, `$ops`, `$kernels`, `$stages`, `$advice`, `$timeline`: data frames, see
#'     `as.data.frame()`;
#'   * `$input`: the cost of the input: seconds of a step with its real input (`real_s`), of these
#'     waiting (`wait_s`), of a step on rows that are already on the device (`repeated_s`), of a
#'     batch drawn while nothing trains (`alone_s`), and the factor by which training would be
#'     faster if input were free (`speedup_if_free`);
#'   * `$bytes`: bytes per step that were copied `to_device` and `to_host`; `NULL` on a CPU;
#'   * `$peak`: on a GPU whose peak is known, the share of it that the model's FLOPs reach (`share`,
#'     `reached` and `tflops` in \eqn{10^{12}} FLOP/s, `dtype` of the products, `card`, and the data
#'     sheet as `source`); otherwise `NULL`;
#'   * `$device`, `$engine`, `$reason`, `$batch_size`, `$steps`, `$trace` (the folder, or `""`) and
#'     `$notes`.
#'
#'   It has `print()`, `summary()` (the shares), `plot()` (the step as a bar, and a timeline),
#'   `ggplot2::autoplot()` and `as.data.frame()`; [gpu_report()] makes a page of it. It is a plain R
#'   value: `saveRDS()` saves it.
#' @section Errors:
#' `gpukeras_error_spec`, `gpukeras_error_model` and `gpukeras_error_data` as in [gpu_fit()].
#' @seealso [gpu_monitor()] for the device over time, [gpu_cost()] for what a model should cost,
#'   `vignette("where-does-the-time-go", package = "gpukeras")`.
#' @export
#' @order 1
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 4)
#' model <- gpu_mlp(train)
#' profile <- gpu_profile(model, train, steps = 5, engine = "keras")
#' profile
#' plot(profile)
#' head(as.data.frame(profile, what = "ops"))
#' gpu_report(profile, file = tempfile("profile-", fileext = ".html"))
gpu_profile <- function(model, data, steps = 20, engine = "auto", batch_size = "auto",
                        verify = FALSE, log_dir = NULL) {
  model <- check_model(model)
  data <- as_training(data)
  if (!is.null(log_dir)) check_string(log_dir)
  options <- list(
    steps = steps, engine = engine, batch_size = as_batch_size(batch_size), verify = verify,
    log_dir = if (!is.null(log_dir)) path.expand(log_dir)
  )
  interrupts <- new_interrupts()
  report <- interrupts$pass_on(call_core("profile", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    on_event = interrupts$listen
  )))
  new_gpu_profile(report)
}

# Handles interrupts between two calls of the engine. An interrupted profile has no result: Python
# ends with an error, and the interrupt is raised again.
new_interrupts <- function() {
  came <- FALSE
  look <- interruptible(identity)
  list(
    listen = function(event) {
      came <<- came || look(event)
      came
    },
    pass_on = function(code) {
      tryCatch(suspendInterrupts(code), error = function(error) {
        if (came) rlang::interrupt()
        stop(error)
      })
    }
  )
}

# The columns of each table, and their types.
op_columns <- list(name = "", type = "", count = 0, total_s = 0, share = 0)
profile_columns <- list(
  layers = list(
    layer = "", kind = "", forward_s = 0, backward_s = 0, total_s = 0, share = 0
  ),
  ops = op_columns,
  kernels = op_columns,
  stages = list(stage = "", batch_s = 0, share = 0, what = ""),
  advice = list(id = "", text = "", why = "", gain = 0, apply = "", measured = 0),
  timeline = list(lane = "", name = "", kind = "", begin_s = 0, end_s = 0)
)

# The core's record with its tables as data frames.
new_gpu_profile <- function(report) {
  report$shares <- unlist(lapply(report$shares, function(share) as.numeric(share %||% NA)))
  report$stages <- report$input$stages
  report$advice <- lapply(report$advice, function(one) {
    one$apply <- format_apply(one$apply)
    one
  })
  for (name in names(profile_columns)) {
    report[[name]] <- typed_frame(report[[name]], profile_columns[[name]])
  }
  report$input$stages <- NULL
  new_result(report, "gpu_profile")
}

# Arguments as a call of gpu_fit().
format_apply <- function(arguments) {
  if (length(arguments) == 0) {
    return("")
  }
  values <- vapply(arguments, function(value) {
    if (is.numeric(value)) format(value, scientific = FALSE) else deparse(value)
  }, "")
  sprintf("gpu_fit(%s)", paste(names(arguments), values, sep = " = ", collapse = ", "))
}

#' @rdname gpu_profile
#' @export
summary.gpu_profile <- function(object, ...) {
  as.data.frame(object, what = "shares")
}

#' @rdname gpu_profile
#' @param x,object A `gpu_profile`.
#' @param row.names,optional Not used.
#' @param what For `as.data.frame()`, which table:
#'   * `"layers"`: `layer`, `kind`, `forward_s`, `backward_s`, `total_s` per step, and `share` of
#'     the time in which something computed. Rows at the end are for the `optimizer`, for
#'     `loss and metrics`, `input` and `other`;
#'   * `"ops"`: `name`, `type`, `count` and `total_s` per step, `share`; `"kernels"`: the same for a
#'     GPU's kernels;
#'   * `"stages"` of the input: `stage`, `batch_s`, `share` of all stages, `what` it does;
#'   * `"advice"`: `text`, `why`, the expected `gain` as a factor of rows per second (`NA` if it
#'     cannot be predicted), how to `apply` it, and the `measured` gain;
#'   * `"shares"`: `part`, `share` and `seconds` per step;
#'   * `"timeline"`: `lane`, `name`, `kind`, `begin_s`, `end_s` of one or two traced steps. Tracing
#'     makes these steps slower than others.
#'
#'   For `plot()` and `autoplot()`, what to draw: `"step"`, a bar of a step's parts, or
#'   `"timeline"`; `plot()` draws both by default.
#' @param ... For `plot()`: passed on to [graphics::plot.default()]. Otherwise not used.
#' @export
as.data.frame.gpu_profile <- function(x, row.names = NULL, optional = FALSE, ..., # nolint
                                      what = "layers") {
  known <- c(names(profile_columns), "shares")
  if (!rlang::is_string(what) || !what %in% known) {
    listed <- paste0('"', known, '"', collapse = ", ")
    abort_spec(what, "what", paste("one of", listed), rlang::current_env())
  }
  if (what != "shares") {
    return(x[[what]])
  }
  data.frame(
    part = names(x$shares), share = as.numeric(x$shares),
    seconds = as.numeric(x$shares) * x$step_s
  )
}
