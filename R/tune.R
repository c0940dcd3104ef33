# gpu_batch_size() and gpu_learning_rate(): the two searches before a training.

#' Find the batch size that keeps the device busy
#'
#' Trains real batches of growing size for a short time each, with the engine that would train the
#' model, and measures rows per second. Sizes double until memory is full, until throughput stops
#' growing (two doublings that gain less than 5 %), or until `to`. The recommended size is the
#' smallest one with 90 % of the best throughput. The model stays as it was, also after errors and
#' interrupts: weights, optimizer, metrics and random state are restored (a model that was not built
#' yet is built).
#'
#' @section What it does not measure:
#' Throughput is not accuracy. A larger batch makes fewer updates per epoch and averages out noise
#' that often helps to generalise, so it usually needs more epochs or a higher learning rate (see
#' [gpu_learning_rate()]). By default, the search therefore leaves at least ten updates per epoch.
#'
#' For streamed rows (a function, a `tf.data.Dataset`), the search repeats the first chunk and
#' requests no more: it measures the device, not the source of the rows.
#'
#' @param model A compiled Keras 3 model.
#' @param data A [gpu_dataset()], or `list(x, y)`.
#' @param from The first size; `NULL` is 32, or all rows if they are fewer.
#' @param to The largest size; `NULL` is a tenth of the training rows, or all of them with
#'   `until = "memory"`.
#' @param until `"knee"` stops when throughput stops growing; `"memory"` continues until memory is
#'   full, to find the largest possible batch (sizes double, so within a factor of two).
#' @param engine As in [gpu_fit()]; `"auto"` measures the graph loop, or the one engine that the
#'   model or the session allows.
#' @param seconds Time for the search; a size that has begun is finished.
#' @param verbose Whether to print each size when it is measured.
#' @return A `gpu_batch_size` with `$recommended`, `$largest` (the largest size that ran),
#'   `$reason`, `$stopped` (`"flat"`, `"memory"`, `"rows"`, `"to"`, `"time"` or `"interrupted"`),
#'   `$device`, `$engine` and `$points`; with `print()`, `plot()`, `ggplot2::autoplot()` and
#'   `as.data.frame()` (one row per size: `batch_size`, `rows_per_s`, `peak_bytes` of a GPU's
#'   memory, `status`). You can pass it to [gpu_fit()] and [gpu_learning_rate()] as `batch_size`;
#'   for the rest of the session, their `batch_size = "auto"` uses the size found for the model,
#'   unless a seed was given: then give the size, as times have found it. An interrupt ends the
#'   search and returns the measurements so far.
#' @section Errors:
#' `gpukeras_error_out_of_memory` if the first size does not fit, `gpukeras_error_model` and
#' `gpukeras_error_data` as in [gpu_fit()].
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(Species ~ ., data = iris)
#' size <- gpu_batch_size(gpu_mlp(train), train, to = 32, seconds = 1, verbose = FALSE)
#' size
#' plot(size)
#' @export
gpu_batch_size <- function(model, data, from = NULL, to = NULL, until = "knee", engine = "auto",
                           seconds = 20, verbose = TRUE) {
  model <- check_model(model)
  data <- as_training(data)
  check_flag(verbose)
  options <- list(from = from, to = to, until = until, engine = engine, seconds = seconds)
  report <- suspendInterrupts(call_core("find_batch_size", list(
    model = model, data = data$handle, options = as_search(options),
    on_event = interruptible(if (verbose) show_size else identity)
  )))
  new_result(report, "gpu_batch_size")
}

#' Find a learning rate
#'
#' The range test of Smith (2017) trains one batch at each of many rising learning rates and records
#' its loss. Rates that are too small change nothing, good ones lower the loss, and rates that are
#' too high make it explode; there the test ends (at four times the lowest smoothed loss). The model
#' stays as it was, also after errors and interrupts: weights, optimizer with its rate or schedule,
#' metrics and random state are restored (a model that was not built yet is built).
#'
#' The test suggests two rates: the rate at which the smoothed loss falls fastest, and a tenth of
#' the rate at which it is lowest. It recommends the smaller of the two, as the highest rate of a
#' schedule or as a constant rate. If the loss does not fall by more than its noise, it recommends
#' none: then try more `steps`, a larger `batch_size`, or another range.
#'
#' @inheritParams gpu_batch_size
#' @param data A [gpu_dataset()], or `list(x, y)`. Data with fewer batches than `steps` is used
#'   several times; a function is called as in training.
#' @param from,to The first and the last learning rate.
#' @param steps Number of rates, with one batch each; at least 10.
#' @param batch_size Rows per batch: a number, a [gpu_batch_size()], or `"auto"`: the size that
#'   [gpu_batch_size()] found for the model in this session, unless a seed was given, or else
#'   the dataset's own. The rate
#'   depends on the batch size: test with the size that you will train with.
#' @return A `gpu_learning_rate` with `$recommended` (or `NULL`), `$steepest`, `$minimum_tenth`,
#'   `$reason`, `$current` (the model's own rate), `$stopped` (`"completed"`, `"diverged"`,
#'   `"non_finite"` or `"interrupted"`) and `$batch_size`; with `print()`, `plot()`,
#'   `ggplot2::autoplot()` and `as.data.frame()` (one row per rate: `rate`, `loss`, `smoothed`). An
#'   interrupt ends the search without a recommendation.
#' @references Smith, L. N. (2017). Cyclical learning rates for training neural networks. *WACV*.
#'   \doi{10.1109/WACV.2017.58}
#' @section Errors:
#' `gpukeras_error_spec` for an invalid range, `gpukeras_error_model` and `gpukeras_error_data` as
#' in [gpu_fit()], `gpukeras_error_out_of_memory`.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8)
#' rate <- gpu_learning_rate(gpu_mlp(train), train, steps = 50)
#' rate
#' plot(rate)
#' @export
gpu_learning_rate <- function(model, data, from = 1e-7, to = 10, steps = 100, batch_size = "auto") {
  model <- check_model(model)
  data <- as_training(data)
  batch_size <- as_batch_size(batch_size) %||% "auto"
  options <- list(from = from, to = to, steps = steps, batch_size = batch_size)
  report <- suspendInterrupts(call_core("find_learning_rate", list(
    model = model, data = data$handle, options = as_search(options),
    on_event = interruptible(identity)
  )))
  new_gpu_learning_rate(report)
}

# `from` is a keyword of Python.
as_search <- function(options, call = caller_env()) {
  check_no_na_options(options, call = call)
  names(options) <- sub("^from$", "low", sub("^to$", "high", names(options)))
  options
}

# A batch size as a number, also from a search; "auto" is NULL. The core checks the rest.
as_batch_size <- function(batch_size, arg = caller_arg(batch_size), call = caller_env()) {
  force(arg)
  batch_size <- plain_number(batch_size, arg, call)
  if (!inherits(batch_size, "gpu_batch_size")) {
    check_no_na_options(rlang::set_names(list(batch_size), arg), call)
    return(if (!identical(batch_size, "auto")) batch_size)
  }
  if (is.null(batch_size$recommended)) {
    abort_gpukeras(
      sprintf("`%s` is a search that was interrupted before it found a size.", arg),
      code = "spec", hint = "Run gpu_batch_size() again.", arg = arg, call = call
    )
  }
  batch_size$recommended
}

show_size <- function(event) {
  speed <- if (is.null(event$rows_per_s)) {
    event$status
  } else {
    paste(format_count(signif(event$rows_per_s, 3)), "rows/s")
  }
  cat_lines("batch size ", format_count(event$batch_size), ": ", speed)
}

# Batch sizes --------------------------------------------------------------------------------------

#' @rdname gpu_batch_size
#' @param x,object A `gpu_batch_size` or `gpu_learning_rate`.
#' @param row.names,optional Not used.
#' @param ... Passed on to [graphics::plot()] by `plot()`; otherwise not used.
#' @export
as.data.frame.gpu_batch_size <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  column <- function(name, empty) {
    unlist(lapply(x$points, function(point) point[[name]] %||% NA)) %||% empty
  }
  data.frame(
    batch_size = as.integer(column("batch_size", integer())),
    rows_per_s = as.numeric(column("rows_per_s", numeric())),
    peak_bytes = as.numeric(column("peak_bytes", numeric())),
    status = as.character(column("status", character()))
  )
}

#' @export
format.gpu_batch_size <- function(x, ...) {
  found <- if (is.null(x$recommended)) "none found" else paste(format_count(x$recommended), "rows")
  format_fields(
    sprintf("<gpu_batch_size> %s on %s", found, x$device),
    if (length(x$points) > 0) format_sizes(as.data.frame(x), x$recommended),
    reason = x$reason,
    engine = sprintf("%s (%s), trained on %s", x$engine, x$engine_reason, x$samples),
    note = "a larger batch makes fewer updates an epoch; throughput is not accuracy",
    width = 9
  )
}

# One line per size; the share is of the best throughput, and an arrow marks the recommended size.
format_sizes <- function(frame, recommended) {
  speed <- ifelse(is.na(frame$rows_per_s), "", format_count(signif(frame$rows_per_s, 3)))
  share <- format_percent(frame$rows_per_s / max(frame$rows_per_s, na.rm = TRUE))
  share[is.na(frame$rows_per_s)] <- ""
  cells <- list("rows" = format_count(frame$batch_size), "rows/s" = speed, "of best" = share)
  if (!all(is.na(frame$peak_bytes))) {
    cells$memory <- ifelse(is.na(frame$peak_bytes), "", format_bytes(frame$peak_bytes))
  }
  notes <- ifelse(frame$status == "ok", "", frame$status)
  notes[frame$batch_size %in% recommended] <- "<- recommended"
  cells <- c(cells, list(notes))
  format_columns(cells, rep(c("right", "left"), c(length(cells) - 1, 1)))
}

#' @rdname gpu_batch_size
#' @export
plot.gpu_batch_size <- function(x, ...) {
  frame <- drawn_sizes(x)
  fits <- !is.na(frame$rows_per_s)
  graphics::plot(
    frame$batch_size, ifelse(fits, frame$rows_per_s, 0),
    log = "x", type = "n", xaxt = "n", ylim = c(0, max(frame$rows_per_s, na.rm = TRUE)),
    xlab = "batch size", ylab = "rows/s", ...
  )
  graphics::axis(1, at = frame$batch_size)
  graphics::lines(frame$batch_size[fits], frame$rows_per_s[fits], type = "b", lwd = 2, pch = 19)
  graphics::points(frame$batch_size[!fits], rep(0, sum(!fits)), pch = 4, col = "#d62728", lwd = 2)
  graphics::abline(v = x$recommended, lty = 2, col = "#1f77b4")
  invisible(x)
}

#' @rdname gpu_batch_size
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_batch_size <- function(object, ...) { # nolint: object_name_linter.
  frame <- drawn_sizes(object)
  fits <- !is.na(frame$rows_per_s)
  full <- data.frame(batch_size = frame$batch_size[!fits], rows_per_s = rep(0, sum(!fits)))
  ggplot2::ggplot(frame[fits, ], ggplot2::aes(.data$batch_size, .data$rows_per_s)) +
    ggplot2::geom_line() +
    ggplot2::geom_point() +
    ggplot2::geom_point(data = full, shape = 4, colour = "#d62728") +
    ggplot2::geom_vline(xintercept = object$recommended, linetype = "dashed") +
    ggplot2::scale_x_continuous(trans = "log2", breaks = frame$batch_size) +
    ggplot2::expand_limits(y = 0) +
    ggplot2::labs(x = "batch size", y = "rows/s")
}

drawn_sizes <- function(x, call = caller_env()) {
  frame <- as.data.frame(x)
  if (all(is.na(frame$rows_per_s))) {
    abort_nothing_drawn("batch size", call)
  }
  frame
}

abort_nothing_drawn <- function(what, call) {
  abort_gpukeras(
    sprintf("The search has measured no %s to plot.", what), code = "data", arg = "x", call = call
  )
}

# Learning rates -----------------------------------------------------------------------------------

new_gpu_learning_rate <- function(report) {
  for (name in c("rates", "losses", "smoothed")) {
    report[[name]] <- as.numeric(unlist(report[[name]]))
  }
  new_result(report, "gpu_learning_rate")
}

#' @rdname gpu_learning_rate
#' @export
as.data.frame.gpu_learning_rate <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  data.frame(rate = x$rates, loss = x$losses, smoothed = x$smoothed)
}

#' @export
format.gpu_learning_rate <- function(x, ...) {
  ends <- c(
    completed = "", diverged = ", where the loss diverged",
    non_finite = ", where the loss became infinite", interrupted = ", where it was interrupted"
  )
  format_fields(
    sprintf("<gpu_learning_rate> %s", format_found(x$recommended)),
    reason = x$reason,
    found = if (!is.null(x$recommended)) {
      sprintf(
        "steepest at %s, a tenth of the lowest at %s",
        format_found(x$steepest), format_found(x$minimum_tenth)
      )
    },
    tried = if (length(x$rates) > 0) {
      sprintf(
        "%d rates from %s to %s%s", length(x$rates), format_found(min(x$rates)),
        format_found(max(x$rates)), ends[[x$stopped]]
      )
    },
    model = sprintf(
      "has %s, unchanged; tested on %s with %s rows a batch",
      format_found(x$current), x$device, format_count(x$batch_size)
    ),
    width = 9
  )
}

# Three digits; words if there is no single rate.
format_found <- function(rate) {
  if (is.null(rate)) {
    return("none suggested")
  }
  if (is.nan(rate)) "several rates" else format_number(rate, 3)
}

#' @rdname gpu_learning_rate
#' @export
plot.gpu_learning_rate <- function(x, ...) {
  frame <- drawn_rates(x)
  graphics::plot(
    frame$rate, frame$loss,
    log = "x", col = "grey60", pch = 20, xlab = "learning rate", ylab = "loss",
    ylim = drawn_range(frame), ...
  )
  graphics::lines(frame$rate, frame$smoothed, lwd = 2)
  graphics::abline(v = x$recommended, lty = 2, col = "#1f77b4")
  invisible(x)
}

#' @rdname gpu_learning_rate
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_learning_rate <- function(object, ...) { # nolint: object_name_linter.
  frame <- drawn_rates(object)
  ggplot2::ggplot(frame, ggplot2::aes(.data$rate)) +
    ggplot2::geom_point(ggplot2::aes(y = .data$loss), colour = "grey60") +
    ggplot2::geom_line(ggplot2::aes(y = .data$smoothed)) +
    ggplot2::geom_vline(xintercept = object$recommended, linetype = "dashed") +
    ggplot2::scale_x_log10() +
    ggplot2::coord_cartesian(ylim = drawn_range(frame)) +
    ggplot2::labs(x = "learning rate", y = "loss")
}

drawn_rates <- function(x, call = caller_env()) {
  if (length(x$rates) == 0) {
    abort_nothing_drawn("rate", call)
  }
  as.data.frame(x)
}

# Limits the loss axis: a loss that explodes at the last rates would flatten the curve before.
drawn_range <- function(frame) {
  bulk <- function(values) range(stats::quantile(values, c(0, 0.9), names = FALSE))
  limits <- range(bulk(frame$smoothed), bulk(frame$loss))
  c(limits[1], min(limits[2] + 0.3 * diff(limits), max(frame$smoothed, limits[2])))
}
