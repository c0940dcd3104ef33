# The class `gpu_fits`: the table of gpu_fit_many().

new_gpu_fits <- function(handle, settings, group_column = NULL) {
  record <- call_core("fits_table", list(fits = handle))
  record$handle <- handle
  record$group_column <- group_column
  members <- record$members
  record$members <- NULL
  record$histories <- lapply(members, function(one) Map(as_values, one$history, names(one$history)))
  record$settings <- unique(unlist(lapply(settings, names)))
  record$metric <- choose_fits_metric(record$histories)
  record$table <- members_frame(members, record$histories, settings)
  fits <- new_result(record, "gpu_fits")
  fits$predictions <- held_out_frame(handle)
  warn_failed_fits(members)
  fits
}

warn_failed_fits <- function(members) {
  errors <- Filter(nzchar, as_chr(lapply(members, `[[`, "error")))
  if (length(errors) > 0) {
    models <- count_of(length(errors), "models")
    warn_gpukeras(sprintf("%s could not be trained: %s.", models, errors[1]), "many")
  }
}

# The metric by which models are compared: the loss on rows held out, or else on those trained.
choose_fits_metric <- function(histories) {
  names <- unique(unlist(lapply(histories, names)))
  if ("val_loss" %in% names) "val_loss" else "loss"
}

members_frame <- function(members, histories, settings) {
  column <- function(name) vapply(members, function(one) one[[name]], members[[1]][[name]])
  frame <- data.frame(model = seq_along(members))
  if (length(unlist(settings)) > 0) {
    frame <- cbind(frame, records_frame(settings)[column("setting"), , drop = FALSE])
  }
  seeds <- lapply(members, `[[`, "seed")
  if (!"seed" %in% names(frame) && !is.null(seeds[[1]])) frame$seed <- unlist(seeds)
  for (name in c("fold", "group")) if (any(nzchar(column(name)))) frame[[name]] <- column(name)
  for (name in c("rows", "held_out", "epochs", "best_epoch", "stopped")) {
    frame[[name]] <- column(name)
  }
  rownames(frame) <- NULL
  cbind(frame, end_values(members, histories))
}

# Each metric after the epoch whose weights the model has.
end_values <- function(members, histories) {
  names <- unique(unlist(lapply(histories, names)))
  values <- lapply(rlang::set_names(names), function(name) {
    as.vector(mapply(function(member, history) {
      end <- if (member$best_epoch > 0) member$best_epoch else member$epochs
      values <- history[[name]]
      if (end == 0 || is.null(values) || is.matrix(values)) NA_real_ else values[end]
    }, members, histories))
  })
  as.data.frame(values, optional = TRUE)
}

# The predictions of all models for the rows that they held out; NULL if there are none.
held_out_frame <- function(handle) {
  record <- call_core("fits_held_out", list(fits = handle))
  if (is.null(record)) {
    return(NULL)
  }
  values <- as.matrix(record$values)
  names <- unlist(record$names)
  colnames(values) <- if (ncol(values) == 1) "prediction" else names %||% seq_len(ncol(values))
  data.frame(model = record$models, row = record$rows, values, check.names = FALSE)
}

#' @rdname gpu_fit_many
#' @param x,object A `gpu_fits`.
#' @param row.names,optional Not used.
#' @export
as.data.frame.gpu_fits <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  x$table
}

#' @rdname gpu_fit_many
#' @param i A model's number, or `"best"`; other names are fields.
#' @export
`[[.gpu_fits` <- function(x, i) {
  if (rlang::is_string(i) && i != "best") {
    return(unclass(x)[[i]])
  }
  number <- if (identical(i, "best")) best_fit(x) else i
  call_core("fits_model", list(fits = live_fits(x), number = number))
}

# The handle of a table whose models are still in memory.
live_fits <- function(fits, call = caller_env()) {
  handle <- unclass(fits)$handle
  if (is_dead(handle)) {
    abort_gpukeras(
      "This gpu_fits is from another R session: its models are gone.",
      code = "model", hint = "Save those that you need: gpu_save(fits[[1]], path).",
      arg = "fits", call = call
    )
  }
  handle
}

#' @export
length.gpu_fits <- function(x) nrow(unclass(x)$table)

# The model with the best metric.
best_fit <- function(fits) {
  values <- metric_of(fits$table, fits$metric)
  better <- if (metric_direction(fits$metric) > 0) -values else values
  c(which.min(better), 1L)[1]
}

#' @rdname gpu_fit_many
#' @param metric The name of a metric; the loss on rows held out by default.
#' @export
summary.gpu_fits <- function(object, metric = NULL, ...) {
  frame <- object$table
  metric <- metric %||% object$metric
  check_metric_of(metric, frame)
  by <- intersect(c(setdiff(object$settings, "seed"), "group"), names(frame))
  parts <- split(frame, setting_of(frame, by))
  rows <- lapply(parts, function(part) {
    values <- counted_values(metric_of(part, metric))
    cbind(part[1, by, drop = FALSE], data.frame(
      models = length(values), mean = mean(values),
      std_err = stats::sd(values) / sqrt(length(values))
    ))
  })
  found <- do.call(rbind, unname(rows))
  direction <- metric_direction(metric)
  found$rank <- if (direction == 0) {
    NA
  } else {
    rank(-direction * found$mean, na.last = "keep", ties.method = "min")
  }
  rownames(found) <- NULL
  structure(found[order(found$rank), ], metric = metric)
}

# The values of the models that were trained and measured. One that diverged makes the mean NaN:
# those of its setting that did not would look better than the setting is.
counted_values <- function(values) {
  values <- values[!is.na(values) | is.nan(values)]
  values[!is.finite(values)] <- NaN
  values
}

# The setting of each row of a table as a factor of the places of its values: by their texts, 1 and
# 5.5 would be that of 1.5 and 5, and NA and vectors none.
setting_of <- function(table, columns) {
  if (length(columns) == 0) {
    return(factor(rep("", nrow(table))))
  }
  places <- lapply(table[columns], function(column) {
    known <- unique(column)
    match(column, if (is.list(column)) known else sort(known, na.last = TRUE))
  })
  interaction(places, drop = TRUE)
}

# A metric's values; a setting may have its name.
metric_of <- function(table, metric) {
  settings <- seq_len(match("stopped", names(table)))
  table[-settings][[metric]]
}

check_metric_of <- function(metric, frame, call = caller_env()) {
  known <- names(frame)[match("stopped", names(frame)):ncol(frame)][-1]
  if (!rlang::is_string(metric) || !metric %in% known) {
    abort_gpukeras(
      "`metric` is not among the metrics of the models.",
      code = "spec", hint = sprintf("They are %s.", shorten(known, 8)), arg = "metric", call = call
    )
  }
}

#' @export
format.gpu_fits <- function(x, ...) {
  table <- x$table
  shown <- utils::head(summary(x), 6)
  cells <- shown[setdiff(names(shown), "rank")]
  numbers <- vapply(cells, is.double, NA)
  cells[numbers] <- lapply(cells[numbers], function(column) {
    vapply(column, format_number, "")
  })
  c(
    sprintf("<gpu_fits> %s, %s", count_of(nrow(table), "models"), format_ends(table$stopped)),
    format_fields(
      together = x$plan$reason, rows = sprintf("%s a step of each model", x$batch_size),
      time = format_time(x$elapsed_s), metric = x$metric
    ),
    format_columns(lapply(cells, as.character), "right"),
    format_more(nrow(summary(x)) - nrow(shown), "summary()"),
    format_notes(x$notes)
  )
}

format_ends <- function(stopped) {
  counts <- table(stopped)
  paste(sprintf("%d %s", counts, gsub("_", "-", names(counts))), collapse = ", ")
}

# The metrics of all epochs of all models, one row each.
fits_history <- function(fits, metric) {
  parts <- lapply(seq_along(fits$histories), function(place) {
    values <- fits$histories[[place]][[metric]]
    data.frame(model = rep(place, length(values)), epoch = seq_along(values), value = values)
  })
  do.call(rbind, parts)
}

#' @rdname gpu_fit_many
#' @export
plot.gpu_fits <- function(x, metric = NULL, ...) {
  metric <- metric %||% x$metric
  check_metric_of(metric, x$table)
  found <- fits_history(x, metric)
  graphics::plot(range(found$epoch), range(found$value, finite = TRUE),
    type = "n", xlab = "epoch", ylab = metric, ...
  )
  for (one in split(found, found$model)) graphics::lines(one$epoch, one$value, col = "#0072B255")
  mean <- tapply(found$value, found$epoch, mean)
  graphics::lines(as.integer(names(mean)), mean, lwd = 2)
  invisible(x)
}

#' @rdname gpu_fit_many
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_fits <- function(object, metric = NULL, ...) { # nolint: object_name_linter.
  metric <- metric %||% object$metric
  check_metric_of(metric, object$table)
  found <- fits_history(object, metric)
  ggplot2::ggplot(found, ggplot2::aes(.data$epoch, .data$value, group = .data$model)) +
    ggplot2::geom_line(colour = "#0072B2", alpha = 0.4) +
    ggplot2::labs(x = "epoch", y = metric)
}
