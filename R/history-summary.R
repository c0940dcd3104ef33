# What summary() tells of a training: each metric at its first, best and last epoch, times, reasons.

#' @rdname gpu_history
#' @export
summary.gpu_history <- function(object, ...) {
  kept <- c(
    "epochs", "elapsed_s", "epoch_s", "samples_per_s", "throughput", "input_wait", "where",
    "peak_memory", "reasons", "notes", "stopped"
  )
  structure(
    c(
      list(
        header = format_ending(object)[1],
        metrics = summarise_metrics(as.data.frame(object)),
        choices = choices_of(object),
        tried = format_trials(object$engine$trials, object$plan$batch_size)
      ),
      unclass(object)[intersect(kept, names(object))]
    ),
    class = "summary.gpu_history"
  )
}

# A row for each metric and its data: first, best and last value, and the best one's epoch.
summarise_metrics <- function(frame) {
  groups <- split(frame, list(frame$data, frame$metric), drop = TRUE)
  rows <- lapply(unname(groups), function(group) {
    best <- best_row(group$value, metric_direction(as.character(group$metric[1])))
    data.frame(
      metric = as.character(group$metric[1]), data = as.character(group$data[1]),
      first = group$value[1], best = group$value[best], best_epoch = group$epoch[best],
      last = group$value[nrow(group)]
    )
  })
  if (length(rows) > 0) do.call(rbind, rows)
}

# Where the best finite value is; NA where there is none, or it is not known what is good.
best_row <- function(values, direction) {
  values[!is.finite(values)] <- NA
  if (direction == 0) NA_integer_ else c(which.max(direction * values), NA)[1]
}

#' @export
format.summary.gpu_history <- function(x, ...) {
  c(
    x$header,
    format_metric_table(x$metrics),
    format_times(x$epoch_s, x$elapsed_s),
    sprintf(
      "speed:   %s rows/s in the fastest epoch, %.0f %% of the time waiting for rows",
      count_text(signif(x$samples_per_s, 3)), 100 * x$input_wait
    ),
    x$tried,
    paste0("placed:  ", x$where, format_peak(if (!is.na(x$peak_memory)) x$peak_memory)),
    "reasons:",
    format_reasons(x$choices, x$reasons),
    if (length(x$notes) > 0) c("notes:", format_notes(x$notes))
  )
}

# What the reasons are given for.
choices_of <- function(x) {
  c(
    engine = x$engine$engine, batch_size = count_text(x$plan$batch_size), rows = x$plan$mode,
    precision = x$precision, stopped = x$stopped,
    learning_rate = if (isTRUE(x$replicas > 1)) format_numbers(utils::tail(x$learning_rate, 1))
  )
}

format_reasons <- function(choices, reasons) {
  given <- as.list(reasons)[names(choices)]
  why <- vapply(given, function(one) if (is.null(one)) "" else sprintf(" (%s)", one), "")
  sprintf("* %s: %s%s", names(choices), choices, why)
}

format_metric_table <- function(metrics) {
  if (is.null(metrics)) {
    return(NULL)
  }
  best <- sprintf("%s (epoch %d)", format_numbers(metrics$best), metrics$best_epoch)
  format_frame(data.frame(
    metric = metrics$metric, data = metrics$data, first = format_numbers(metrics$first),
    best = ifelse(is.na(metrics$best_epoch), "-", best), last = format_numbers(metrics$last)
  ))
}

# The first epoch has what is only done once: tracing, compiling, trying engines.
format_times <- function(epoch_s, elapsed_s) {
  later <- epoch_s[-1]
  paste0(
    sprintf("time:    %.3g s in all", elapsed_s),
    if (length(epoch_s) > 0) sprintf(", first epoch %.3g s", epoch_s[1]),
    if (length(later) > 0) sprintf(", later ones %.3g s (median)", stats::median(later))
  )
}

#' @export
print.summary.gpu_history <- function(x, ...) {
  cat_lines(format(x, ...))
  invisible(x)
}
