# summary() of a history: each metric at its first, best and last epoch, times, reasons.

#' @rdname gpu_history
#' @export
summary.gpu_history <- function(object, ...) {
  kept <- c(
    "epochs", "elapsed_s", "epoch_s", "samples_per_s", "throughput", "input_wait", "where",
    "peak_memory", "reasons", "notes", "stopped"
  )
  new_result(
    c(
      list(
        header = format_ending(object)[1],
        metrics = summarise_metrics(as.data.frame(object)),
        choices = choices_of(object),
        tried = format_trials(object$engine$trials, object$plan$batch_size)
      ),
      unclass(object)[intersect(kept, names(object))]
    ),
    "summary.gpu_history"
  )
}

# A row for each metric and its data: first, best and last value, and the best one's epoch.
summarise_metrics <- function(frame) {
  groups <- split(frame, list(frame$data, frame$metric), drop = TRUE)
  rows <- lapply(unname(groups), function(group) {
    known <- has_value(group$value)
    if (any(known)) group <- group[known, ]
    best <- best_row(group$value, metric_direction(as.character(group$metric[1])))
    data.frame(
      metric = as.character(group$metric[1]), data = as.character(group$data[1]),
      first = group$value[1], best = group$value[best], best_epoch = group$epoch[best],
      last = group$value[nrow(group)]
    )
  })
  if (length(rows) > 0) do.call(rbind, rows)
}

# The index of the best finite value; NA if there is none, or the direction is not known.
best_row <- function(values, direction) {
  values[!is.finite(values)] <- NA
  if (direction == 0) NA_integer_ else c(which.max(direction * values), NA)[1]
}

#' @export
format.summary.gpu_history <- function(x, ...) {
  format_fields(
    x$header,
    format_metric_table(x$metrics),
    time = format_times(x$epoch_s, x$elapsed_s),
    speed = format_fastest(x),
    tried = x$tried,
    placed = format_placed(x),
    "reasons:",
    format_reasons(x$choices, x$reasons),
    if (length(x$notes) > 0) c("notes:", format_notes(x$notes)),
    width = 9
  )
}

format_fastest <- function(x) {
  sprintf(
    "%s rows/s in the fastest epoch, %s of the time waiting for rows",
    format_count(signif(x$samples_per_s, 3)), format_percent(x$input_wait)
  )
}

# The choices that have reasons.
choices_of <- function(x) {
  c(
    engine = x$engine$engine, batch_size = format_count(x$plan$batch_size), rows = x$plan$mode,
    precision = x$precision, stopped = x$stopped,
    learning_rate = if (isTRUE(x$replicas > 1)) format_number(utils::tail(x$learning_rate, 1))
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
  best <- sprintf("%s (epoch %d)", format_number(metrics$best), metrics$best_epoch)
  format_frame(data.frame(
    metric = metrics$metric, data = metrics$data, first = format_number(metrics$first),
    best = ifelse(is.na(metrics$best_epoch), "-", best), last = format_number(metrics$last)
  ))
}

# The first epoch includes tracing, compiling and trying engines.
format_times <- function(epoch_s, elapsed_s) {
  later <- epoch_s[-1]
  paste0(
    sprintf("%.3g s in all", elapsed_s),
    if (length(epoch_s) > 0) sprintf(", first epoch %.3g s", epoch_s[1]),
    if (length(later) > 0) sprintf(", later ones %.3g s (median)", stats::median(later))
  )
}
