# Plots of histories: a panel for each metric, training and validation together, one history or
# more.

panels_a_page <- 12

# The line of each part of the data, in plot() and autoplot().
data_colours <- c(training = "#1f77b4", validation = "#d95f02")
data_lines <- c(training = 1, validation = 2)

#' @rdname gpu_history
#' @export
plot.gpu_history <- function(x, metric = NULL, ...) {
  frame <- drawn_rows(x, metric)
  styles <- Map(list, col = data_colours, lty = data_lines)
  marks <- list(best = best_epoch(x), resumed = resumed_at(x))
  draw_panels(frame, frame$data, styles[levels(droplevels(frame$data))], marks, list(...))
  invisible(x)
}

#' @rdname gpu_history
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_history <- function(object, metric = NULL, ...) { # nolint: object_name_linter.
  frame <- drawn_rows(object, metric)
  drawn <- ggplot2::ggplot(
    frame,
    ggplot2::aes(.data$epoch, .data$value, colour = .data$data, linetype = .data$data)
  )
  add_panels(drawn, frame, data_colours) +
    mark_epoch(best_epoch(object), "dashed") +
    mark_epoch(resumed_at(object), "dotted")
}

# The finite values of the requested metrics; others are NA.
drawn_rows <- function(x, metric, call = caller_env()) {
  frame <- as.data.frame(x)
  if (nrow(frame) == 0) {
    abort_gpukeras(
      "The history has no finished epoch to plot.", code = "data", arg = "x", call = call
    )
  }
  known <- levels(frame$metric)
  metric <- unlist(lapply(metric, find_components, known))
  wrong <- setdiff(metric, known)
  if (length(wrong) > 0) {
    abort_gpukeras(
      sprintf("The history has no metric `%s`.", wrong[1]),
      code = "spec", hint = paste0("Metrics are ", paste(known, collapse = ", "), "."),
      arg = "metric", call = call
    )
  }
  frame$metric <- factor(frame$metric, unique(metric) %||% known)
  frame$value[!is.finite(frame$value)] <- NA
  frame[!is.na(frame$metric), ]
}

# A metric's own name, or those of its components.
find_components <- function(name, known) {
  parts <- known[startsWith(known, paste0(name, "["))]
  if (name %in% known || length(parts) == 0) name else parts
}

# The epoch that early stopping restored, else that of the lowest validation loss, else NULL.
best_epoch <- function(x) {
  if (isTRUE(x$best_epoch > 0)) {
    return(x$best_epoch)
  }
  losses <- x$history[["val_loss"]]
  if (is.null(losses)) NULL else stats::na.omit(epoch_numbers(x)[best_row(losses, -1)])
}

# Between which epochs a training was continued.
resumed_at <- function(x) {
  if (isTRUE(x$resumed_epochs > 0)) x$resumed_epochs + 0.5
}

# Draws a panel for each metric, with a line for each level of `by`, and restores the device.
draw_panels <- function(frame, by, styles, marks, options) {
  metrics <- levels(frame$metric)
  grid <- grDevices::n2mfrow(min(length(metrics), panels_a_page))
  before <- graphics::par(mfrow = grid, mar = c(4, 4, 1.6, 1))
  on.exit(graphics::par(before))
  for (name in metrics) {
    here <- frame$metric == name
    draw_axes(frame[here, ], name, options, length(styles))
    for (line in names(styles)) {
      rows <- frame[here & by == line, ]
      few <- sum(!is.na(rows$value)) <= 30
      style <- c(styles[[line]], list(type = if (few) "o" else "l", pch = 20, lwd = 2))
      do.call(graphics::lines, c(list(rows$epoch, rows$value), style))
    }
    graphics::abline(v = marks$best, lty = 2, col = "grey50")
    graphics::abline(v = marks$resumed, lty = 3, col = "grey50")
    draw_legend(styles)
  }
}

# Axes for all values, with room for a legend; the panel stays empty if no value is finite.
draw_axes <- function(frame, name, options, entries) {
  empty <- all(is.na(frame$value))
  values <- if (empty) 0:1 else range(frame$value, na.rm = TRUE)
  defaults <- list(
    x = range(frame$epoch), y = leave_room(values, entries),
    type = "n", xlab = "epoch", ylab = name, xaxt = "n", yaxt = if (empty) "n" else "s"
  )
  do.call(graphics::plot.default, utils::modifyList(defaults, options))
  graphics::axis(1, unique(round(pretty(frame$epoch)))) # whole epochs only
  if (empty) graphics::text(mean(defaults$x), 0.5, "no finite value")
}

# The limits of an axis with room above the values for the lines of a legend.
leave_room <- function(limits, entries) {
  line <- graphics::par("cin")[2] * graphics::par("cex")
  share <- min(0.6, (entries + 1) * line / graphics::par("pin")[2])
  span <- if (diff(limits) > 0) diff(limits) else max(abs(limits[1]), 1e-6) / 2
  limits + c(0, span * share / (1 - share))
}

draw_legend <- function(styles) {
  pick <- function(field) vapply(styles, function(style) style[[field]], styles[[1]][[field]])
  graphics::legend(
    "topright",
    legend = names(styles), lty = pick("lty"), col = pick("col"), lwd = 2,
    bg = "white", box.col = NA # over the line of the best epoch
  )
}

# The ggplot2 layers of a plot of one history or several.
add_panels <- function(drawn, frame, colours) {
  seen <- unique(frame[!is.na(frame$value), c("metric", "epoch")])
  lines <- all(table(seen$metric) > 1) # geom_line() warns about single values
  drawn +
    ggplot2::geom_point(size = 0.8, na.rm = TRUE) +
    (if (lines) ggplot2::geom_line(na.rm = TRUE)) +
    ggplot2::scale_colour_manual(values = colours) +
    ggplot2::scale_linetype_manual(values = data_lines) +
    ggplot2::facet_wrap("metric", ncol = if (nlevels(frame$metric) <= 4) 1, scales = "free_y") +
    ggplot2::labs(x = "epoch", y = NULL, colour = NULL, linetype = NULL)
}

mark_epoch <- function(epoch, linetype) {
  if (length(epoch) > 0) {
    ggplot2::geom_vline(xintercept = epoch, linetype = linetype, colour = "grey50")
  }
}
