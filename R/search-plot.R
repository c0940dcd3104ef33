# A search as parallel coordinates: an axis for each setting, a line for each trial.

#' @rdname gpu_tune
#' @export
plot.gpu_tuning <- function(x, ...) {
  drawn <- parallel_lines(x)
  axes <- seq_along(drawn$axes)
  colours <- grDevices::hcl.colors(100, "viridis", rev = TRUE)[drawn$rank]
  graphics::plot(
    range(axes) + c(-0.25, 0.25), c(-0.05, 1.05),
    type = "n", axes = FALSE, xlab = "", ylab = "", ...
  )
  graphics::abline(v = axes, col = "grey70")
  graphics::axis(1, at = axes, labels = drawn$axes, tick = FALSE)
  for (line in rev(seq_len(nrow(drawn$places)))) {
    wide <- if (drawn$rank[line] == 1) 3 else 1
    graphics::lines(axes, drawn$places[line, ], type = "o", pch = 20, col = colours[line],
      lwd = wide
    )
  }
  graphics::text(drawn$labels$axis, drawn$labels$place, drawn$labels$label, cex = 0.8, adj = -0.1)
  invisible(x)
}

#' @rdname gpu_tune
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_tuning <- function(object, ...) { # nolint: object_name_linter.
  drawn <- parallel_lines(object)
  frame <- data.frame(
    trial = rep(drawn$trial, ncol(drawn$places)), axis = c(col(drawn$places)),
    place = c(drawn$places), value = rep(drawn$value, ncol(drawn$places)),
    best = rep(drawn$rank == 1, ncol(drawn$places))
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
      hjust = -0.15, size = 3, inherit.aes = FALSE
    ) +
    ggplot2::scale_alpha_manual(values = c("TRUE" = 1, "FALSE" = 0.5), guide = "none") +
    ggplot2::scale_colour_viridis_c(direction = if (object$mode == "min") -1 else 1) +
    ggplot2::scale_x_continuous(breaks = seq_along(drawn$axes), labels = drawn$axes) +
    ggplot2::scale_y_continuous(breaks = NULL) +
    ggplot2::labs(x = NULL, y = NULL, colour = object$metric)
}

# Where each trial's line crosses the axes, from 0 to 1: its settings, and its last value of the
# metric. `rank` is a colour from 1, the best, to 100.
parallel_lines <- function(x, call = caller_env()) {
  frame <- as.data.frame(x)
  frame <- frame[!is.na(frame[[x$metric]] %||% rep(NA, nrow(frame))), ]
  if (nrow(frame) == 0) {
    abort_nothing_drawn("trial", call)
  }
  frame <- frame[!duplicated(frame$trial, fromLast = TRUE), ]
  value <- frame[[x$metric]]
  axes <- c(x$names, x$metric)
  scales <- lapply(axes, function(name) scale_axis(frame[[name]], x$settings[[name]]))
  order <- rank(if (x$mode == "min") value else -value, ties.method = "first")
  labels <- lapply(seq_along(axes), function(i) cbind(axis = i, scales[[i]]$labels))
  list(
    axes = axes, trial = frame$trial, value = value,
    places = do.call(cbind, lapply(scales, `[[`, "places")),
    rank = 1 + round(99 * (order - 1) / max(1, length(order) - 1)),
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
