# A search as parallel coordinates: an axis for each setting, a line for each trial.

#' @rdname gpu_tune
#' @export
plot.gpu_tuning <- function(x, ...) {
  drawn <- parallel_lines(x)
  axes <- seq_along(drawn$axes)
  best <- drawn$trial == drawn$trial[1]
  colours <- grDevices::hcl.colors(101, "viridis")[1 + round(100 * drawn$shade)]
  graphics::plot(
    range(axes) + c(-0.25, 0.25), c(-0.05, 1.3),
    type = "n", axes = FALSE, xlab = "", ylab = "", ...
  )
  graphics::segments(axes, -0.05, axes, 1.05, col = "grey70")
  graphics::axis(1, at = axes, labels = drawn$axes, tick = FALSE)
  for (line in rev(seq_along(colours))) {
    graphics::lines(axes, drawn$places[line, ],
      type = "o", pch = 20, col = colours[line], lwd = if (best[line]) 3 else 1
    )
  }
  graphics::text(drawn$labels$axis, drawn$labels$place, drawn$labels$label, cex = 0.8, pos = 4)
  key <- unique(c(1, ceiling(length(colours) / 2), length(colours)))
  graphics::legend("top",
    legend = format_number(drawn$value[key]), col = colours[key], lwd = ifelse(best[key], 3, 1),
    title = paste("Colour:", x$metric), horiz = TRUE, bty = "n", cex = 0.8
  )
  invisible(x)
}

#' @rdname gpu_tune
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_tuning <- function(object, ...) { # nolint: object_name_linter.
  drawn <- parallel_lines(object)
  frame <- data.frame(
    trial = rep(drawn$trial, ncol(drawn$places)), axis = c(col(drawn$places)),
    place = c(drawn$places), value = rep(drawn$value, ncol(drawn$places)),
    best = rep(drawn$trial == drawn$trial[1], ncol(drawn$places))
  )
  frame <- frame[order(frame$best), ]
  ggplot2::ggplot(frame, ggplot2::aes(.data$axis, .data$place, group = .data$trial)) +
    ggplot2::geom_vline(xintercept = seq_along(drawn$axes), colour = "grey70") +
    ggplot2::geom_line(
      ggplot2::aes(colour = .data$value, alpha = .data$best),
      na.rm = TRUE
    ) +
    ggplot2::geom_point(ggplot2::aes(colour = .data$value), na.rm = TRUE) +
    ggplot2::geom_text(
      data = drawn$labels, ggplot2::aes(.data$axis, .data$place, label = .data$label),
      hjust = 0, nudge_x = 0.04, size = 3, inherit.aes = FALSE
    ) +
    ggplot2::scale_alpha_manual(values = c("TRUE" = 1, "FALSE" = 0.5), guide = "none") +
    ggplot2::scale_colour_viridis_c(direction = if (object$mode == "min") 1 else -1) +
    ggplot2::scale_x_continuous(
      breaks = seq_along(drawn$axes), labels = drawn$axes, minor_breaks = NULL
    ) +
    ggplot2::scale_y_continuous(breaks = NULL) +
    ggplot2::labs(x = NULL, y = NULL, colour = object$metric)
}

# Where each trial's line crosses the axes, from 0 to 1: its settings, and its best value of the
# metric. The best trial comes first; `shade` is the place of its value between the best, 0, and the
# worst, 1.
parallel_lines <- function(x, call = caller_env()) {
  frame <- as.data.frame(x)
  value <- frame[[x$metric]] %||% rep(NA_real_, nrow(frame))
  frame <- frame[order(if (x$mode == "min") value else -value, frame$epochs, na.last = NA), ]
  if (nrow(frame) == 0) {
    abort_nothing_drawn("trial", call)
  }
  frame <- frame[!duplicated(frame$trial), ]
  value <- frame[[x$metric]]
  axes <- c(x$names, x$metric)
  scales <- lapply(axes, function(name) scale_axis(frame[[name]], x$settings[[name]]))
  labels <- lapply(seq_along(axes), function(i) cbind(axis = i, scales[[i]]$labels))
  list(
    axes = axes, trial = frame$trial, value = value,
    places = do.call(cbind, lapply(scales, `[[`, "places")),
    shade = abs(value - value[1]) / max(abs(value - value[1]), .Machine$double.xmin),
    labels = do.call(rbind, labels)
  )
}

# Places of values on an axis, with labels at its ends or at each value.
scale_axis <- function(values, setting) {
  if (!is.numeric(values) || !is.null(setting$values)) {
    shown <- vapply(values, show_place, "")
    levels <- unique(stats::na.omit(shown))
    at <- seq(0, 1, length.out = max(2, length(levels)))[seq_along(levels)]
    return(list(places = at[match(shown, levels)], labels = data.frame(place = at, label = levels)))
  }
  ends <- if (is.null(setting$low)) range(values, na.rm = TRUE) else c(setting$low, setting$high)
  turned <- if (isTRUE(setting$log)) log else identity
  width <- diff(turned(ends))
  list(
    places = if (width == 0) values * 0 + 0.5 else (turned(values) - turned(ends[1])) / width,
    labels = data.frame(place = c(0, 1), label = format_number(ends))
  )
}

show_place <- function(value) if (anyNA(value)) NA_character_ else format_choice(value)
