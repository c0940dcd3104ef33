# Plots of a profile: the step as a stacked bar, and the timeline. plot() and autoplot() both draw
# step_bars() and timeline_bars().

# The parts of a step in the order of their bar. The colours are those of Okabe and Ito, which
# colour-blind readers can distinguish; they differ in lightness too.
step_colours <- c(
  input = "#E69F00", host = "#56B4E9", kernels = "#009E73", transfers = "#CC79A7",
  idle = "#CCCCCC", unknown = "#DDDDDD"
)
# The same parts by the kinds of a timeline's events.
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
  if ("step" %in% what) draw_step(step_bars(x), list(...))
  if ("timeline" %in% what) draw_timeline(timeline_bars(x), list(...))
  invisible(x)
}

# Which of the two can be drawn: without a trace only the step.
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

# What both plots draw -----------------------------------------------------------------------------

# The shares that are known, and the rest of the step.
drawn_shares <- function(x) {
  known <- x$shares[!is.na(x$shares)]
  rest <- 1 - sum(known)
  if (length(known) > 0 && length(known) < length(x$shares)) c(known, unknown = rest) else known
}

# The parts of the step one after the other.
step_bars <- function(x) {
  shares <- drawn_shares(x)
  unit <- time_unit(x$step_s)
  ends <- cumsum(shares) * x$step_s / unit$second_per
  bars <- data.frame(
    part = factor(names(shares), names(step_colours)), begin = c(0, ends[-length(ends)]),
    end = ends, label = paste(names(shares), format_percent(shares))
  )
  list(bars = bars, title = paste("A step:", x$verdict), axis = unit_label("time of a step", unit))
}

# A row for each lane, the first on top; a bar for each event.
timeline_bars <- function(x) {
  bars <- as.data.frame(x, what = "timeline")
  lanes <- drawn_lanes(bars)
  bars <- bars[bars$lane %in% lanes, ]
  unit <- time_unit(max(bars$end_s))
  bars$row <- match(bars$lane, rev(lanes))
  bars$begin <- bars$begin_s / unit$second_per
  bars$end <- bars$end_s / unit$second_per
  bars$part <- factor(kind_parts[bars$kind], names(step_colours))
  list(
    bars = bars, lanes = rev(shorten_lanes(lanes)), title = timeline_title(lanes),
    axis = unit_label("time", unit)
  )
}

unit_label <- function(text, unit) sprintf("%s (%s)", text, unit$name)

timeline_title <- function(lanes) {
  hidden <- attr(lanes, "hidden")
  paste0("What ran when", if (hidden > 0) sprintf(" (%d lanes with less are left out)", hidden))
}

# Lanes in their order, the host's first; if there are many, the busiest ones.
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

# Base graphics ------------------------------------------------------------------------------------

# The step as one bar, each part labelled if there is room, and all of them in the legend.
draw_step <- function(drawn, options) {
  bars <- drawn$bars
  draw_frame(drawn, c(0, max(bars$end)), c(-0.04, 1.04), 1, options)
  colours <- step_colours[as.character(bars$part)]
  graphics::rect(bars$begin, 0, bars$end, 1, col = colours, border = "white")
  wide <- 0.95 * (bars$end - bars$begin)
  fits <- graphics::strwidth(bars$label) < wide & graphics::strheight(bars$label) < 0.9
  graphics::text(((bars$begin + bars$end) / 2)[fits], 0.5, bars$label[fits])
  draw_key(bars$label, colours, 1.02)
}

draw_timeline <- function(drawn, options) {
  bars <- drawn$bars
  count <- length(drawn$lanes)
  inches <- max(graphics::strwidth(drawn$lanes, units = "inches")) + 0.25
  left <- inches / graphics::par("csi")
  draw_frame(drawn, c(0, max(bars$end)), c(0.5, count + 0.5), left, options)
  graphics::par(xpd = FALSE)
  graphics::abline(h = seq_len(count), col = "grey90")
  graphics::axis(2, seq_len(count), drawn$lanes, tick = FALSE, line = -0.6)
  colours <- step_colours[as.character(bars$part)]
  graphics::rect(
    bars$begin, bars$row - 0.35, bars$end, bars$row + 0.35,
    col = colours, border = colours, lwd = 0.5
  )
  kinds <- levels(droplevels(bars$part))
  draw_key(kinds, step_colours[kinds], count + 0.5)
}

# An empty plot with its title and its time axis; `left` is the margin in lines.
draw_frame <- function(drawn, x, y, left, options) {
  graphics::par(mar = c(3.4, left, 3.6, 1), mgp = c(2.1, 0.7, 0), xpd = NA, las = 1)
  defaults <- list(
    x = x, y = y, type = "n", yaxt = "n", ylab = "", bty = "n", xaxs = "i", yaxs = "i",
    xlab = drawn$axis, main = NULL
  )
  do.call(graphics::plot.default, utils::modifyList(defaults, options))
  if (is.null(options$main)) graphics::mtext(drawn$title, line = 2.2, font = 2)
}

# What the colours mean, in a line above the plot.
draw_key <- function(labels, colours, bottom) {
  graphics::par(xpd = NA)
  graphics::legend(
    mean(graphics::par("usr")[1:2]), bottom, labels, fill = colours, border = NA, horiz = TRUE,
    bty = "n", xjust = 0.5, yjust = 0, x.intersp = 0.5, cex = 0.9
  )
}

# ggplot2 ------------------------------------------------------------------------------------------

#' @rdname gpu_profile
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_profile <- function(object, what = "step", ...) { # nolint: object_name_linter.
  what <- drawn_parts(object, what)
  if (length(what) > 1) {
    abort_spec(what, "what", '"step" or "timeline"', caller_env())
  }
  if (what == "step") ggplot_step(step_bars(object)) else ggplot_timeline(timeline_bars(object))
}

ggplot_step <- function(drawn) {
  bars <- drawn$bars
  labels <- rlang::set_names(bars$label, bars$part)
  drawn$bars$row <- 1
  ggplot_bars(drawn, 0.25) +
    ggplot2::scale_fill_manual(
      values = step_colours, aesthetics = c("fill", "colour"), breaks = bars$part, labels = labels
    ) +
    ggplot2::theme(
      axis.text.y = ggplot2::element_blank(), axis.ticks.y = ggplot2::element_blank(),
      panel.grid.major.y = ggplot2::element_blank()
    )
}

ggplot_timeline <- function(drawn) {
  ggplot_bars(drawn, 0.35) +
    ggplot2::scale_fill_manual(values = step_colours, aesthetics = c("fill", "colour")) +
    ggplot2::scale_y_continuous(breaks = seq_along(drawn$lanes), labels = drawn$lanes)
}

ggplot_bars <- function(drawn, half) {
  ggplot2::ggplot(drawn$bars, ggplot2::aes(fill = .data$part, colour = .data$part)) +
    ggplot2::geom_rect(
      ggplot2::aes(
        xmin = .data$begin, xmax = .data$end, ymin = .data$row - half, ymax = .data$row + half
      ),
      linewidth = 0.2
    ) +
    ggplot2::labs(x = drawn$axis, y = NULL, fill = NULL, colour = NULL, title = drawn$title) +
    ggplot2::theme(legend.position = "top", panel.grid.minor.y = ggplot2::element_blank())
}
