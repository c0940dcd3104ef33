# What a training did: made from the core's report, printed, plotted, a data frame.

new_gpu_history <- function(report) {
  report$history <- lapply(report$history, as.numeric)
  report$epoch_s <- as.numeric(report$epoch_s)
  structure(report, class = "gpu_history")
}

#' The history of a training
#'
#' @param x,object A `gpu_history` from [gpu_fit()].
#' @param row.names,optional Not used.
#' @param metric Names of the metrics to plot; by default all, training and validation together.
#' @param ... Passed on to [graphics::matplot()] by `plot()`; otherwise not used.
#' @return `as.data.frame()`: one row an epoch with its number, its metrics and its `seconds`.
#'   `plot()`: `x`, invisibly. `autoplot()`: a ggplot.
#' @name gpu_history
#' @examplesIf interactive()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' fit <- gpu_fit(gpu_mlp(train), train, epochs = 20)
#' as.data.frame(fit)
#' plot(fit)
NULL

#' @rdname gpu_history
#' @export
as.data.frame.gpu_history <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  epochs <- seq_along(x$epoch_s)
  metrics <- lapply(x$history, `[`, epochs)
  data.frame(c(list(epoch = epochs), metrics, list(seconds = x$epoch_s)), check.names = FALSE)
}

#' @export
format.gpu_history <- function(x, ...) {
  last <- vapply(x$history, function(values) values[length(values)], 0)
  stopped <- c(completed = "", early = ", stopped early", interrupted = ", interrupted")
  c(
    sprintf(
      "<gpu_history> %d epoch%s on %s in %.1f s%s",
      x$epochs, if (x$epochs == 1) "" else "s", x$device, x$elapsed_s, stopped[[x$stopped]]
    ),
    if (length(last) > 0) {
      paste("metrics:", paste(names(last), format_numbers(last), collapse = ", "))
    },
    sprintf(
      "speed:   %s rows/s at batch size %s, %.0f %% of the time waiting for rows (%s)",
      count_text(signif(x$samples_per_s, 3)), count_text(x$plan$batch_size), 100 * x$input_share,
      x$plan$mode
    ),
    if (isTRUE(x$plan$dropped_rows > 0)) paste("missing:", x$plan$na_reason),
    sprintf("engine:  %s (%s)", x$engine$engine, x$engine$reason),
    format_trials(x$engine$trials, x$plan$batch_size),
    sprintf("dtype:   %s", x$precision),
    sprintf("placed:  %s%s", format_placement(x$variables), format_peak(x$peak_bytes))
  )
}

# Rows a second of each engine that was tried.
format_trials <- function(trials, batch_size) {
  if (length(trials) == 0) {
    return(NULL)
  }
  one <- function(trial) {
    if (is.null(trial$batch_s)) {
      return(sprintf("%s refused: %s", trial$engine, trial$refused))
    }
    sprintf(
      "%s %s rows/s (start %.1f s)",
      trial$engine, count_text(signif(batch_size / trial$batch_s, 3)), trial$start_s
    )
  }
  paste("tried:  ", paste(vapply(trials, one, ""), collapse = ", "))
}

# Where the model's variables are, which is where its steps ran.
format_placement <- function(variables) {
  counts <- unlist(variables)
  nouns <- ifelse(counts == 1, "variable", "variables")
  paste(sprintf("%d %s on %s", counts, nouns, names(counts)), collapse = ", ")
}

format_peak <- function(bytes) {
  if (is.null(bytes)) "" else sprintf(", at most %.0f MiB of its memory", bytes / 2^20)
}

#' @export
print.gpu_history <- function(x, ...) {
  cli::cat_line(format(x, ...))
  invisible(x)
}

#' @rdname gpu_history
#' @export
plot.gpu_history <- function(x, metric = NULL, ...) {
  groups <- metric_groups(x, metric)
  frame <- as.data.frame(x)
  colours <- c("#1f77b4", "#d95f02")
  before <- graphics::par(mfrow = c(length(groups), 1), mar = c(4, 4, 1, 1))
  on.exit(graphics::par(before))
  for (name in names(groups)) {
    columns <- groups[[name]]
    graphics::matplot(
      frame$epoch, frame[columns],
      type = if (nrow(frame) > 1) "l" else "p", pch = 1, lty = seq_along(columns), lwd = 2,
      col = colours, xlab = "epoch", ylab = name, ...
    )
    graphics::legend(
      "topright",
      legend = ifelse(startsWith(columns, "val_"), "validation", "training"),
      lty = seq_along(columns), lwd = 2, col = colours, bty = "n"
    )
  }
  invisible(x)
}

#' @rdname gpu_history
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_history <- function(object, metric = NULL, ...) { # nolint: object_name_linter.
  groups <- metric_groups(object, metric)
  frame <- as.data.frame(object)
  long <- do.call(rbind, lapply(names(groups), function(name) {
    do.call(rbind, lapply(groups[[name]], function(column) {
      rows <- if (startsWith(column, "val_")) "validation" else "training"
      data.frame(epoch = frame$epoch, metric = name, rows = rows, value = frame[[column]])
    }))
  }))
  ggplot2::ggplot(long, ggplot2::aes(.data$epoch, .data$value, colour = .data$rows)) +
    ggplot2::geom_line() +
    ggplot2::facet_wrap("metric", ncol = 1, scales = "free_y") +
    ggplot2::labs(y = NULL, colour = NULL)
}

# Each metric with its validation twin.
metric_groups <- function(x, metric, call = caller_env()) {
  if (length(x$epoch_s) == 0) {
    abort_gpukeras(
      "The history has no finished epoch to plot.", code = "data", arg = "x", call = call
    )
  }
  known <- grep("^val_", names(x$history), value = TRUE, invert = TRUE)
  wrong <- setdiff(metric, known)
  if (length(wrong) > 0) {
    abort_gpukeras(
      sprintf("The history has no metric `%s`.", wrong[1]),
      code = "spec", hint = paste0("Metrics are ", paste(known, collapse = ", "), "."),
      arg = "metric", call = call
    )
  }
  wanted <- metric %||% known
  twins <- function(name) intersect(c(name, paste0("val_", name)), names(x$history))
  rlang::set_names(lapply(wanted, twins), wanted)
}
