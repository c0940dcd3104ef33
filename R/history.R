# The class `gpu_history`: what a training did.

# Adds the fields that users read to the core's report. `report` may be of an older gpukeras, or
# come from JSON, where NaN is null.
new_gpu_history <- function(report) {
  report$history <- Map(as_values, report$history, names(report$history))
  for (name in c("epoch_s", "epoch_rows", "learning_rate")) {
    report[[name]] <- if (!is.null(report[[name]])) as_numbers(report[[name]])
  }
  report$history <- mark_unvalidated(report)
  report$notes <- as_chr(report$notes)
  report$reasons <- name_reasons(report)
  report$where <- format_placement(report$variables)
  report$metrics <- report$history
  report$params <- list(epochs = report$epochs, steps = report$plan$steps_per_epoch)
  if (!is.null(report$epoch_rows)) report$throughput <- report$epoch_rows / report$epoch_s
  report$input_wait <- report$input_share
  report$peak_memory <- as.numeric(report$peak_bytes %||% NA)
  new_result(report, "gpu_history")
}

as_numbers <- function(x) {
  vapply(as.list(x), function(one) as.numeric(one %||% NaN), 0, USE.NAMES = FALSE)
}

# The metrics with NA, not NaN, in epochs that no validation followed, as `validation_freq` tells.
mark_unvalidated <- function(report) {
  epochs <- epoch_numbers(report)
  freq <- report$validation_freq %||% 1
  each <- length(freq) == 1 && !is.list(freq)
  validated <- if (each) epochs %% max(1, freq) == 0 else epochs %in% unlist(freq)
  metrics <- report$history
  for (name in names(metrics)[is_validation(as.character(names(metrics)))]) {
    values <- metrics[[name]]
    metrics[[name]][is.nan(values) & !utils::tail(validated, NROW(values))] <- NA
  }
  metrics
}

# Whether epochs have a value; NaN is one.
has_value <- function(values) is.nan(values) | !is.na(values)

# A metric's value in each epoch: a vector, or a matrix with a row for each epoch if the values are
# arrays. NaN where an epoch has none.
as_values <- function(values, name) {
  rows <- lapply(as.list(values), as_components, name)
  if (max(0, lengths(rows)) < 2) {
    return(as_numbers(values))
  }
  names <- names(rows[[which.max(lengths(rows))]])
  filled <- t(vapply(rows, function(row) row[names], numeric(length(names))))
  filled[is.na(filled)] <- NaN
  dimnames(filled) <- list(NULL, names)
  filled
}

# The numbers of a value by name: "f1_score[2]", or "confusion[1,2]" of the first row of a matrix.
as_components <- function(value, name) {
  if (length(value) < 2) {
    return(rlang::set_names(as.numeric(value %||% NaN), name))
  }
  parts <- unname(Map(as_components, as.list(value), paste0(name, "[", seq_along(value), "]")))
  parts <- unlist(parts)
  rlang::set_names(parts, gsub("][", ",", names(parts), fixed = TRUE))
}

# The values of each metric, and of each component of one whose values are arrays.
component_values <- function(history) {
  parts <- Map(function(values, name) {
    if (is.matrix(values)) asplit(values, 2) else rlang::set_names(list(values), name)
  }, history, names(history))
  lapply(unlist(unname(parts), recursive = FALSE), as.vector)
}

name_reasons <- function(report) {
  known <- list(
    engine = report$engine$reason, batch_size = report$plan$batch_reason, rows = report$plan$reason
  )
  given <- as.list(report$reasons)
  known[names(given)] <- given
  unlist(Filter(nzchar, Filter(Negate(is.null), known))) %||% character()
}

#' The history of a training
#'
#' The result of [gpu_fit()]: how the metrics developed, where the model ran, how fast, and why.
#'
#' @section Fields:
#' - `$history`: a vector for each metric, with Keras' names; names of validation metrics have the
#'   prefix `val_`, and are `NA` in epochs without a validation. A metric whose value is an array,
#'   such as `F1Score()`, has a matrix with one row per epoch; elsewhere each of its components
#'   counts as a metric: `f1_score[1]`.
#' - `$metrics`, `$params`: as those of keras3's histories: `$metrics` is `$history`, `$params`
#'   holds the number of the last epoch and the `steps` of an epoch.
#' - `$learning_rate`: the rate at the end of each epoch.
#' - `$where`: the devices that hold the model's variables, as text.
#' - `$throughput`: training rows per second of each epoch, including its validation;
#'   `$samples_per_s`: that of the fastest epoch.
#' - `$input_wait`: share of the time spent waiting for rows, from 0 to 1.
#' - `$peak_memory`: most bytes of the GPU's memory that were held; `NA` on the CPU, and on JAX
#'   where an earlier training of the session held more.
#' - `$reasons`: a named character vector of reasons for the choice of engine, batch size, location
#'   of the rows and precision, and for the end of the training.
#' - `$notes`: events during the training, such as resuming from a checkpoint.
#' - `$monitor`: a [gpu_monitor()], if you requested one.
#' - `$epochs`, `$rows`, `$elapsed_s`, `$epoch_s`: the amount of work and its time.
#' - `$stopped`: `"completed"`, `"early"`, `"interrupted"`, or `"non_finite"` if the loss became NaN
#'   or infinite. `$best_epoch`: the epoch whose weights early stopping restored, or 0.
#'
#' @param x,object A `gpu_history` from [gpu_fit()] or [read_history()], or several from `rbind()`.
#' @param row.names,optional,deparse.level Not used.
#' @param wide Whether a row is an epoch instead of a single value.
#' @param metric Names of the metrics to plot, without `val_`; the default is all. The name of an
#'   array metric stands for all its components.
#' @param ... For `rbind()`: histories, preferably with names: `rbind(small = fit1, big = fit2)`.
#'   For `plot()`: passed on to [graphics::plot.default()]. Otherwise not used.
#' @return
#' - `as.data.frame()`: one row per value, with columns `epoch`, `metric`, `value` and `data`
#'   (`"training"` or `"validation"`). With `wide = TRUE`, one row per epoch, with its metrics, its
#'   `learning_rate` and its `seconds`.
#' - `summary()`: the first, best and last value of each metric with its epoch, the times and the
#'   reasons. The metric's name determines whether a high or a low value is best; the best value is
#'   `NA` if it does not.
#' - `plot()`: `x`, invisibly. `autoplot()`: a ggplot. A dashed line marks the best epoch: the one
#'   that early stopping restored, or else the one with the lowest validation loss. A dotted line
#'   marks where a training resumed from a checkpoint.
#' - `rbind()`: a data frame as above with `model` as first column, of class `gpu_histories`: it
#'   prints one line per history, and `plot()` and `autoplot()` draw the histories over each other.
#'   Its `summary()` is a data frame with one row per history.
#' @name gpu_history
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' fit <- gpu_fit(gpu_mlp(train), train, epochs = 10, verbose = FALSE)
#' summary(fit)
#' head(as.data.frame(fit))
#' plot(fit)
#'
#' other <- gpu_fit(gpu_mlp(train, units = 8), train, epochs = 10, verbose = FALSE)
#' rbind(large = fit, small = other)
NULL

#' @rdname gpu_history
#' @export
as.data.frame.gpu_history <- function(x, row.names = NULL, optional = FALSE, ..., # nolint
                                      wide = FALSE) {
  check_flag(wide)
  epochs <- epoch_numbers(x)
  values <- lapply(metric_values(x), last_of, length(epochs))
  names <- as.character(names(values))
  if (wide) {
    return(wide_frame(x, epochs, values))
  }
  validation <- is_validation(names)
  plain <- ifelse(validation, sub("^val_", "", names), names)
  each <- rep(seq_along(names), each = length(epochs))
  data.frame(
    epoch = rep(epochs, length(names)),
    metric = factor(plain[each], unique(plain)),
    value = as.numeric(unlist(values)),
    data = factor(ifelse(validation[each], "validation", "training"), c("training", "validation"))
  )
}

wide_frame <- function(x, epochs, values) {
  columns <- c(
    list(epoch = epochs), values,
    if (!is.null(x$learning_rate)) list(learning_rate = x$learning_rate),
    list(seconds = x$epoch_s)
  )
  data.frame(lapply(columns, last_of, length(epochs)), check.names = FALSE)
}

# The numbers of the epochs that have values, the last ones: those before `initial_epoch`, or before
# a checkpoint, may have none.
epoch_numbers <- function(x) {
  count <- max(0L, vapply(x$history, NROW, 0L), length(x$epoch_s))
  as.integer(max(0, x$epochs - count)) + seq_len(count)
}

# The values of the last epochs, with NA for earlier ones.
last_of <- function(values, count) {
  c(rep(NA, max(0, count - length(values))), utils::tail(values, count))
}

# A callback that changes the learning rate logs it as if it were a metric.
metric_values <- function(x) {
  component_values(x$history[setdiff(names(x$history), c("learning_rate", "lr"))])
}

# A metric may itself be named `val_...`: then there is a `val_val_...`, or no `val_loss`.
is_validation <- function(names) {
  known <- "val_loss" %in% names || !"loss" %in% names
  startsWith(names, "val_") & known & !paste0("val_", names) %in% names
}

# 1 if a high value of a metric is better, -1 if a low one is, 0 if its name does not say: by the
# words of the core's models/metric_modes.py, as histories are summarised without Python too.
metric_direction <- function(names) {
  vapply(tolower(names), direction_of_name, numeric(1), USE.NAMES = FALSE)
}

direction_of_name <- function(name) {
  words <- strsplit(name, "[^a-z0-9]+")[[1]]
  words <- c(words, sub("[0-9]+$", "", words))
  up <- any(words %in% maximised_words) || grepl("io_u|true_positives|true_negatives", name)
  down <- any(words %in% minimised_words) ||
    grepl("false_positives|false_negatives|cross_entropy", name)
  if ("loss" %in% words) -1 else up - down
}

maximised_words <- c(
  "acc", "accuracy", "auc", "precision", "recall", "f1", "fbeta", "r2", "iou", "dice", "similarity",
  "sensitivity", "specificity", "kappa", "mcc", "psnr", "ssim", "correlation", "concordance"
)
minimised_words <- c(
  "error", "mse", "mae", "mape", "msle", "rmse", "crossentropy", "divergence", "poisson", "hinge",
  "logcosh", "cosh", "huber", "deviance", "nll", "brier", "perplexity", "pinball", "kld"
)

# Printing -----------------------------------------------------------------------------------------

#' @export
format.gpu_history <- function(x, ...) {
  format_fields(
    format_ending(x),
    metrics = format_last(x),
    best = if (isTRUE(x$best_epoch > 0)) paste("epoch", x$best_epoch),
    speed = format_speed(x),
    missing = if (isTRUE(x$plan$dropped_rows > 0)) x$plan$na_reason,
    engine = sprintf("%s (%s)", x$engine$engine, x$engine$reason),
    dtype = paste0(x$precision, format_skipped(x$skipped_steps)),
    placed = format_placed(x),
    saved = if (nzchar(x$checkpoint %||% "")) x$checkpoint,
    monitor = x$monitor$verdict,
    board = if (nzchar(x$tensorboard %||% "")) x$tensorboard,
    track = format_tracking(x$tracking),
    format_notes(x$notes[!is_alarm(x)]),
    width = 9
  )
}

format_tracking <- function(tracking) {
  ended <- if (nzchar(tracking$fault %||% "")) " (not to its end)"
  if (!is.null(tracking)) paste0(tracking$where, ended)
}

# The first line, and a second one if the model may be damaged.
format_ending <- function(x) {
  endings <- c(
    completed = "", early = ", stopped early", interrupted = ", interrupted",
    non_finite = ", STOPPED: the loss is not a finite number"
  )
  ending <- if (x$stopped %in% names(endings)) endings[[x$stopped]] else paste0(", ", x$stopped)
  before <- x$resumed_epochs %||% 0
  c(
    sprintf(
      "<gpu_history> %s%s on %s in %.1f s%s", count_of(x$epochs, "epochs"),
      if (before > 0) sprintf(" (%d of them in an earlier run)", before) else "",
      format_devices(x), x$elapsed_s, ending
    ),
    if (any(is_alarm(x))) paste("!", x$notes[is_alarm(x)])
  )
}

# The note of a training that had to be stopped.
is_alarm <- function(x) {
  x$stopped == "non_finite" & startsWith(x$notes, "Stopped: ")
}

# The metrics after the last epoch.
format_last <- function(x, most = 8) {
  values <- metric_values(x)
  last <- vapply(values, last_value, 0)
  if (length(last) == 0) {
    return(NULL)
  }
  shown <- utils::head(paste(names(last), format_number(last)), most)
  more <- length(last) - length(shown)
  paste0(
    paste(shown, collapse = ", "),
    if (more > 0) sprintf(" and %d more: summary()", more)
  )
}

last_value <- function(values) utils::tail(c(NA_real_, values[has_value(values)]), 1)

format_speed <- function(x) {
  micro <- x$micro_batch
  shared <- isTRUE(x$replicas > 1)
  parts <- if (shared) {
    sprintf(" (%s on each of %s)", format_count(micro), count_replicas(x))
  } else if (isTRUE(micro != x$plan$batch_size)) {
    sprintf(" in parts of %s", format_count(micro))
  }
  sprintf(
    "%s rows/s at batch size %s%s, %s of the time waiting for rows (%s)",
    format_count(signif(x$samples_per_s, 3)), format_count(x$plan$batch_size), parts %||% "",
    format_percent(x$input_share), x$plan$mode
  )
}

# The number of replicas, such as "8 devices, 2 a worker".
count_replicas <- function(x) {
  if (!isTRUE(x$workers > 1)) {
    return(sprintf("%d devices", x$replicas))
  }
  each <- x$replicas / x$workers
  if (each > 1) {
    return(sprintf("%d devices, %g a worker", x$replicas, each))
  }
  sprintf("%d workers", x$workers)
}

# All devices of this process.
format_devices <- function(x) {
  paste(unlist(x$devices) %||% x$device, collapse = " and ")
}

format_skipped <- function(steps) {
  if (!isTRUE(steps > 0)) {
    return("")
  }
  sprintf(", %s skipped by loss scaling", count_of(steps, "steps"))
}

# Rows per second of each engine that was tried.
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
      trial$engine, format_count(signif(batch_size / trial$batch_s, 3)), trial$start_s
    )
  }
  paste(vapply(trials, one, ""), collapse = ", ")
}

# The devices of the model's variables, where its steps ran.
format_placement <- function(variables) {
  counts <- unlist(variables)
  nouns <- ifelse(counts == 1, "variable", "variables")
  paste(sprintf("%d %s on %s", counts, nouns, names(counts)), collapse = ", ")
}

# The devices, and the peak memory on the GPU.
format_placed <- function(x) {
  peak <- if (!is.na(x$peak_memory)) format_bytes(x$peak_memory)
  paste0(x$where, sprintf(", at most %s of its memory", peak))
}
