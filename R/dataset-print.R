# Lines of print() for datasets: rows, batches, features, labels, and the cost of each stage.

#' @export
format.gpu_dataset <- function(x, ...) {
  plan <- x$plan
  format_fields(
    format_rows(plan, if (is.null(x$windows)) "rows" else "windows"),
    windows = format_windows(x$windows),
    format_inputs(x),
    if (!identical(x$kind, "batches")) format_outputs(x$label),
    batches = format_batches(plan),
    shuffle = plan$shuffle_reason,
    rows = sprintf("%s (%s)", plan$mode, plan$reason),
    prefetch = if (plan$ahead > 0) "the next block of batches, while the device works on one",
    shard = format_shard(plan),
    "on device" = if (nzchar(x$augment %||% "")) x$augment,
    missing = plan$na_reason,
    skipped = if (nzchar(plan$skipped)) plan$skipped,
    weights = if (isTRUE(x$weighted)) "a weight for each row"
  )
}

#' @param cost Whether to measure the cost of each stage of the pipeline on some blocks, and show it
#'   in microseconds per row. The stages are `read` (from files), `decode` (to pixels, dense rows,
#'   encoded columns), `gather` (a block's rows in the epoch's order), `pull` (a `tf.data` pipeline,
#'   as a whole), `send` (to the device), `cast` or `augment` (including casting and scaling), `map`
#'   and `unpack` (a tensor for each input and output); only those that the dataset has are shown.
#'   Rows that are cached are not read or decoded again.
#' @rdname gpu_dataset
#' @export
print.gpu_dataset <- function(x, cost = FALSE, ...) {
  check_flag(cost)
  NextMethod()
  if (cost) cat_lines(format_cost(call_core("cost", list(data = check_alive(x)$handle))))
  invisible(x)
}

# Microseconds per row of each stage, and its share of the total.
format_cost <- function(stages) {
  seconds <- vapply(stages, `[[`, 0, "row_s")
  share <- if (sum(seconds) > 0) 100 * seconds / sum(seconds) else 0 * seconds
  sprintf(
    "cost:     %-8s %9.3f us a row, %3.0f %%  (%s)", vapply(stages, `[[`, "", "stage"),
    1e6 * seconds, share, vapply(stages, `[[`, "", "what")
  )
}

# The number of streamed rows is not known before the first epoch.
format_rows <- function(plan, unit = "rows") {
  if (plan$rows == 0) {
    return("<gpu_dataset> rows in sequence, not counted yet")
  }
  sprintf(
    "<gpu_dataset> %s training and %s",
    format_count(plan$rows), count_of(plan$validation_rows, paste("validation", unit))
  )
}

format_batches <- function(plan) {
  if (plan$steps_per_epoch == 0) {
    return(sprintf(
      "%s, as many as come (%s)", count_of(plan$batch_size, "rows"), plan$batch_reason
    ))
  }
  last <- if (plan$drop_last) {
    "a short last one is left out"
  } else {
    paste("the last of", format_count(plan$last_batch))
  }
  sprintf(
    "%s, %s an epoch, %s (%s)", count_of(plan$batch_size, "rows"),
    format_count(plan$steps_per_epoch), last, plan$batch_reason
  )
}

# The part of the rows that this worker has; NULL for all.
format_shard <- function(plan) {
  shard <- unlist(plan$shard)
  if (nzchar(plan$share %||% "")) {
    plan$share
  } else if (shard[2] > 1) {
    sprintf("%d of %d workers", shard[1], shard[2])
  }
}

format_features <- function(x) {
  if (identical(x$kind, "batches")) {
    return("as the pipeline gives them, the labels too")
  }
  shape <- paste(unlist(x$shape), collapse = " x ")
  if (identical(x$kind, "strings")) {
    return(paste(shape, if (shape == "1") "text" else "texts", "a row, given to the model as such"))
  }
  if (length(x$columns) == 0) {
    return(paste0(shape, " a row, ", format_scaling(x)))
  }
  kinds <- vapply(x$columns, `[[`, "", "kind")
  count <- function(...) sum(kinds %in% c(...))
  others <- c("dates or times" = count("date", "time"), texts = count("text"))
  others <- others[others > 0]
  paste0(
    sprintf(
      "%s from %s and %s", shape, count_of(count("number", "duration"), "numbers"),
      count_of(count("category"), "categories")
    ),
    sprintf(", and %s", unlist(Map(count_of, others, names(others)))) |> paste(collapse = "")
  )
}

# Windows of time series: their rows, and the rows to predict.
format_windows <- function(rule) {
  if (is.null(rule)) {
    return(NULL)
  }
  ahead <- if (rule$horizon > 0) sprintf(", then %s to predict", count_of(rule$horizon, "rows"))
  stride <- if (rule$stride > 1) sprintf(", a window every %s", count_of(rule$stride, "rows"))
  known <- unlist(rule$known)
  paste0(
    count_of(rule$window, "rows"), ahead, stride,
    if (length(known) > 0) sprintf("; known ahead: %s", shorten(known, 8))
  )
}

format_scaling <- function(x) {
  if (identical(x$kind, "images")) {
    if (isTRUE(x$scaled)) "from 0 to 1" else "from 0 to 255"
  } else if (!isTRUE(x$scaled)) {
    "as they are"
  } else if (isFALSE(x$centred)) {
    "divided by their standard deviation, not centred: zeros stay zeros"
  } else {
    "standardised"
  }
}

format_label <- function(label) {
  if (length(label$pixels) > 0) {
    shape <- paste(unlist(label$shape), collapse = " x ")
    return(sprintf("mask images, %s, %d classes a pixel", shape, length(label$pixels)))
  }
  switch(label$kind %||% "none",
    none = "none",
    number = sprintf("numbers from %s to %s", signif(label$minimum, 4), signif(label$maximum, 4)),
    binary = "two classes, 0 and 1",
    class = sprintf("%d classes (%s)", length(label$levels), shorten(unlist(label$levels))),
    matrix = paste(paste(unlist(label$shape), collapse = " x "), "numbers a row")
  )
}
