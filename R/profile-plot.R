# A profile drawn: the step as a stacked bar, and what ran when.

# The parts of a step in the order of their bar. Colours are Okabe and Ito's, which are told apart
# in all kinds of colour blindness, and differ in lightness too.
step_colours <- c(
  input = "#E69F00", host = "#56B4E9", kernels = "#009E73", transfers = "#CC79A7",
  idle = "#CCCCCC", unknown = "#DDDDDD"
)
# How timelines call the same.
kind_parts <- c(input = "input", host = "host", kernel = "kernels", transfer = "transfers")
most_lanes <- 14

#' @rdname gpu_profile
#' @export
plot.gpu_profile <- function(x, what = c("step", "timeline"), ...) {
  what <- drawn_parts(x, what)
  both <- length(what) == 2
  before <- graphics::par(c("mar", "mgp", "xpd", "las", if (both) "mfrow"))
  on.exit(graphics::par(before))
  if (both) graphics::layout(matrix(1:2), heights = c(5, 8))
  if ("step" %in% what) draw_step(x, ...)
  if ("timeline" %in% what) draw_timeline(as.data.frame(x, what = "timeline"), ...)
  invisible(x)
}

# What of the two can be drawn; a trace that says nothing leaves the step alone.
drawn_parts <- function(x, what, call = caller_env()) {
  known <- c("step", "timeline")
  if (!is.character(what) || length(what) == 0 || !all(what %in% known)) {
    abort_spec(what, "what", '"step", "timeline" or both', call)
  }
  there <- known[c(length(drawn_shares(x)) > 0, nrow(x$timeline) > 0)]
  drawn <- intersect(known, intersect(what, there))
  if (length(drawn) == 0) {
    abort_gpukeras(
      sprintf("The profile has no %s to plot.", paste(what, collapse = " and no ")),
      code = "data", hint = "print() says why.", arg = "x", call = call
    )
  }
  drawn
}

# The parts that are known, and what is left of the step.
drawn_shares <- function(x) {
  known <- x$shares[!is.na(x$shares)]
  rest <- 1 - sum(known)
  if (length(known) > 0 && length(known) < length(x$shares)) c(known, unknown = rest) else known
}

# The step as one bar, each part labelled in it where there is room, and all of them in the legend.
draw_step <- function(x, ...) {
  graphics::par(mar = c(3.4, 1, 3.6, 1), mgp = c(2.1, 0.7, 0), xpd = NA, las = 1)
  unit <- time_unit(x$step_s)
  shares <- drawn_shares(x)
  ends <- cumsum(shares) * x$step_s / unit$second_per
  starts <- c(0, ends[-length(ends)])
  title <- sprintf("A step: %s", x$verdict)
  defaults <- list(
    x = range(0, ends), y = 0:1, type = "n", yaxt = "n", ylab = "", bty = "n", xaxs = "i",
    xlab = sprintf("time of a step (%s)", unit$name), main = NULL
  )
  do.call(graphics::plot.default, utils::modifyList(defaults, list(...)))
  colours <- step_colours[names(shares)]
  graphics::rect(starts, 0, ends, 1, col = colours, border = "white")
  label_parts(starts, ends, shares)
  if (is.null(list(...)$main)) graphics::mtext(title, line = 2.2, font = 2)
  draw_key(paste(names(shares), percent(shares)), colours, 1.02)
}

label_parts <- function(starts, ends, shares) {
  text <- paste(names(shares), percent(shares))
  fits <- graphics::strwidth(text) < 0.95 * (ends - starts) & graphics::strheight(text) < 0.9
  graphics::text(((starts + ends) / 2)[fits], 0.5, text[fits])
}

# A row for each lane, the first on top; a bar for each thing that ran.
draw_timeline <- function(frame, ...) {
  lanes <- drawn_lanes(frame)
  frame <- frame[frame$lane %in% lanes, ]
  unit <- time_unit(max(frame$end_s))
  labels <- shorten_lanes(lanes)
  inches <- max(graphics::strwidth(labels, units = "inches")) + 0.25
  lines <- inches / graphics::par("csi")
  graphics::par(mar = c(3.4, lines, 3.6, 1), mgp = c(2.1, 0.7, 0), xpd = FALSE, las = 1)
  rows <- match(frame$lane, rev(lanes))
  defaults <- list(
    x = c(0, max(frame$end_s)) / unit$second_per, y = c(0.5, length(lanes) + 0.5), type = "n",
    yaxt = "n", ylab = "", bty = "n", xaxs = "i", yaxs = "i",
    xlab = sprintf("time (%s)", unit$name), main = NULL
  )
  do.call(graphics::plot.default, utils::modifyList(defaults, list(...)))
  graphics::abline(h = seq_along(lanes), col = "grey90")
  graphics::axis(2, seq_along(lanes), rev(labels), tick = FALSE, line = -0.6)
  colours <- step_colours[kind_parts[frame$kind]]
  graphics::rect(
    frame$begin_s / unit$second_per, rows - 0.35, frame$end_s / unit$second_per, rows + 0.35,
    col = colours, border = colours, lwd = 0.5
  )
  kinds <- intersect(names(step_colours), kind_parts[frame$kind])
  if (is.null(list(...)$main)) graphics::mtext(timeline_title(lanes), line = 2.2, font = 2)
  draw_key(kinds, step_colours[kinds], length(lanes) + 0.5)
}

timeline_title <- function(lanes) {
  hidden <- attr(lanes, "hidden")
  paste0("What ran when", if (hidden > 0) sprintf(" (%d lanes with less are left out)", hidden))
}

# What the colours mean, in a line above the plot.
draw_key <- function(labels, colours, bottom) {
  graphics::par(xpd = NA)
  graphics::legend(
    mean(graphics::par("usr")[1:2]), bottom, labels, fill = colours, border = NA, horiz = TRUE,
    bty = "n", xjust = 0.5, yjust = 0, x.intersp = 0.5, cex = 0.9
  )
}

# Lanes in their order, the host's first; of many those in which most happened.
drawn_lanes <- function(frame) {
  busy <- tapply(frame$end_s - frame$begin_s, frame$lane, sum)
  kept <- names(utils::head(sort(busy, decreasing = TRUE), most_lanes))
  lanes <- unique(c(frame$lane[frame$kind == "host"], frame$lane))
  structure(lanes[lanes %in% kept], hidden = length(lanes) - length(kept))
}

shorten_lanes <- function(lanes, most = 28) {
  lanes <- as.character(lanes)
  ifelse(nchar(lanes) > most, paste0(substr(lanes, 1, most - 3), "..."), lanes)
}

# The unit in which a time has one to three digits before the point.
time_unit <- function(seconds) {
  units <- c(us = 1e-6, ms = 1e-3, s = 1)
  name <- if (!isTRUE(seconds >= 1e-3)) "us" else if (seconds < 1) "ms" else "s"
  list(name = name, second_per = units[[name]])
}

#' @rdname gpu_profile
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_profile <- function(object, what = "step", ...) { # nolint: object_name_linter.
  what <- drawn_parts(object, what)
  if (length(what) > 1) {
    abort_spec(what, "what", '"step" or "timeline"', caller_env())
  }
  if (what == "step") ggplot_step(object) else ggplot_timeline(object)
}

ggplot_step <- function(x) {
  unit <- time_unit(x$step_s)
  shares <- drawn_shares(x)
  parts <- names(shares)
  frame <- data.frame(
    part = factor(parts, rev(parts)), time = as.numeric(shares) * x$step_s / unit$second_per
  )
  labels <- rlang::set_names(paste(parts, percent(shares)), parts)
  ggplot2::ggplot(frame, ggplot2::aes(.data$time, "step", fill = .data$part)) +
    ggplot2::geom_col(width = 0.5, colour = "white") +
    ggplot2::scale_fill_manual(values = step_colours, breaks = parts, labels = labels) +
    ggplot2::labs(
      x = sprintf("time of a step (%s)", unit$name), y = NULL, fill = NULL,
      title = paste("A step:", x$verdict)
    ) +
    ggplot2::theme(
      legend.position = "top", axis.text.y = ggplot2::element_blank(),
      axis.ticks.y = ggplot2::element_blank(), panel.grid.major.y = ggplot2::element_blank()
    )
}

ggplot_timeline <- function(x) {
  frame <- as.data.frame(x, what = "timeline")
  lanes <- drawn_lanes(frame)
  frame <- frame[frame$lane %in% lanes, ]
  unit <- time_unit(max(frame$end_s))
  frame$row <- match(frame$lane, rev(lanes))
  frame$begin <- frame$begin_s / unit$second_per
  frame$end <- frame$end_s / unit$second_per
  frame$part <- factor(kind_parts[frame$kind], names(step_colours))
  ggplot2::ggplot(frame, ggplot2::aes(fill = .data$part, colour = .data$part)) +
    ggplot2::geom_rect(
      ggplot2::aes(
        xmin = .data$begin, xmax = .data$end, ymin = .data$row - 0.35, ymax = .data$row + 0.35
      ),
      linewidth = 0.2
    ) +
    ggplot2::scale_fill_manual(values = step_colours, aesthetics = c("fill", "colour")) +
    ggplot2::scale_y_continuous(breaks = seq_along(lanes), labels = rev(shorten_lanes(lanes))) +
    ggplot2::labs(
      x = sprintf("time (%s)", unit$name), y = NULL, fill = NULL, colour = NULL,
      title = timeline_title(lanes)
    ) +
    ggplot2::theme(legend.position = "top", panel.grid.minor.y = ggplot2::element_blank())
}
