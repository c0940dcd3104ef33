# The result of all functions that make a model smaller.

#' The gains and losses of a smaller model
#'
#' The result of `gpu_prune()`, [gpu_quantize()] and [gpu_distill()]: the new
#' model, and measurements of both models side by side. Functions that take a model, such as
#' [gpu_predict()], take the result too: they use its new model.
#'
#' @section Fields:
#' - `$model`: the new Keras model, compiled like the original one.
#' - `$figures`: a data frame, also from `as.data.frame()`: `figure`, `unit`, `before`, `after`,
#'   `ratio`. The figures are the bytes of a `.keras` file without the optimizer's state, and of
#'   that file compressed as by gzip; the parameters, and those that are not 0; the FLOPs of a row's
#'   forward pass (see [gpu_cost()]); the latency of a single row and of a batch, as median and 95th
#'   percentile; loss and metrics.
#' - `$layers`: what changed in each layer: `layer`, `kind`, `change`, `before`, `after`, `unit`.
#' - `$listed`: layers that did not change, and why: `layer`, `kind`, `reason`.
#' - `$history`: the [gpu_history] of the training that was part of it, or `NULL`.
#' - `$metric`, `$drop`: the metric that compares the models, and by how much it got worse.
#' - `$report`: all of it as the core reports it.
#'
#' @section How latency is measured:
#' One measurement is a call of the model as a program of TensorFlow or JAX, from rows on the device
#' to numbers in memory, without the overhead of [gpu_predict()]. After a warm-up, each model is
#' called 30 to 300 times, alternating between the two. Times of less than a millisecond are mostly
#' TensorFlow's overhead.
#' @param x,object A `gpu_compression`.
#' @param row.names,optional Not used.
#' @param ... Not used.
#' @name gpu_compression
NULL

# `record` has the model and the report.
new_gpu_compression <- function(record) {
  report <- record$report
  layers <- records_frame(
    report$layers, c("layer", "kind", "change", "before", "after", "unit")
  )
  new_result(
    list(
      model = record$model, kind = report$kind, figures = compared_figures(report),
      layers = numeric_columns(layers, c("before", "after")),
      listed = records_frame(report$listed, c("layer", "kind", "reason")),
      metric = report$metric, drop = report$drop,
      history = if (!is.null(report$training)) new_gpu_history(report$training),
      notes = report$notes, report = report
    ),
    "gpu_compression"
  )
}

# A row for each figure of both models.
compared_figures <- function(report) {
  before <- list_figures(report$before)
  after <- list_figures(report$after)
  frame <- data.frame(
    figure = names(before$value), unit = before$unit, before = unname(before$value),
    after = unname(after$value[names(before$value)])
  )
  frame$ratio <- ifelse(frame$before == 0, NA, frame$after / frame$before)
  frame
}

list_figures <- function(figures) {
  known <- function(value) as.numeric(value %||% NA)
  sizes <- c(
    "size on disk" = known(figures$disk_bytes), compressed = known(figures$packed_bytes),
    parameters = known(figures$parameters), "non-zeros" = known(figures$nonzeros),
    "FLOPs a row" = known(figures$flops)
  )
  times <- unlist(lapply(figures$latency, function(one) {
    rows <- if (one$rows == 1) "1 row" else paste(format_count(one$rows), "rows")
    rlang::set_names(
      c(one$median_s, one$p95_s), paste0("latency, ", rows, c("", " (95th percentile)"))
    )
  }))
  metrics <- unlist(figures$metrics)
  units <- c("bytes", "bytes", "", "", "FLOPs", rep("s", length(times)), rep("", length(metrics)))
  list(value = c(sizes, times, metrics), unit = units)
}

#' @rdname gpu_compression
#' @export
as.data.frame.gpu_compression <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  x$figures
}

# Print --------------------------------------------------------------------------------------------

#' @rdname gpu_compression
#' @param most How many layers to show.
#' @export
format.gpu_compression <- function(x, most = 10, ...) {
  c(
    sprintf(
      "<gpu_compression> %s: %.3g s, measured on %s", compressed_by(x), x$report$seconds,
      x$report$device
    ),
    format_figures(x),
    format_loss(x),
    format_changes(x$layers, most),
    format_unchanged(x$listed, most),
    wrap_lines(x$notes, "note:     ")
  )
}

compressed_by <- function(x) {
  settings <- x$report$settings
  shown <- settings[vapply(settings, function(one) length(one) == 1 && is.atomic(one), NA)]
  shown <- shown[!names(shown) %in% c("max_drop", "metric", "batch_size", "fit")]
  texts <- sprintf("%s %s", gsub("_", " ", names(shown)), vapply(shown, format, ""))
  verb <- c(
    prune = "pruned", quantize = "quantized", distill = "distilled"
  )[[x$kind]]
  if (length(texts) > 0) sprintf("%s (%s)", verb, paste(texts, collapse = ", ")) else verb
}

format_figures <- function(x) {
  figures <- x$figures
  sides <- if (x$kind == "distill") c("teacher", "student") else c("before", "after")
  cells <- list(
    figures$figure, figure_text(figures$before, figures$unit),
    figure_text(figures$after, figures$unit),
    ifelse(is.na(figures$ratio), "", sprintf("%.2f", figures$ratio))
  )
  names(cells) <- c("", sides, "ratio")
  format_columns(cells, c("left", "right", "right", "right"))
}

figure_text <- function(values, units) {
  mapply(function(value, unit) {
    if (is.na(value)) {
      return("?")
    }
    switch(unit,
      bytes = format_bytes(value), FLOPs = format_si(value), s = format_time(value),
      if (value == round(value)) format_count(value) else format_digits(value)
    )
  }, values, units, USE.NAMES = FALSE)
}

format_loss <- function(x) {
  if (is.null(x$drop)) {
    return("lost:     not known, as no rows were evaluated")
  }
  part <- if (x$report$before$part == "validation") "validation rows" else "all rows"
  how <- if (x$drop > 0) "worse by" else if (x$drop < 0) "better by" else "as before:"
  size <- if (x$drop == 0) "no difference" else format(signif(abs(x$drop), 3))
  sprintf("lost:     %s is %s %s (%s)", x$metric, how, size, part)
}

format_changes <- function(layers, most) {
  if (nrow(layers) == 0) {
    return(NULL)
  }
  shown <- utils::head(layers, most)
  counts <- figure_text(c(shown$before, shown$after), rep(
    ifelse(shown$unit == "FLOPs", "FLOPs", ""), 2
  ))
  at <- seq_len(nrow(shown))
  lines <- sprintf(
    "  %s  %s  %s: %s to %s %s", format(shown$layer), format(shown$kind), shown$change,
    counts[at], counts[-at], shown$unit
  )
  c("changed:", lines, format_more(nrow(layers) - nrow(shown), "$layers"))
}

format_unchanged <- function(listed, most) {
  if (nrow(listed) == 0) {
    return(NULL)
  }
  shown <- utils::head(listed, most)
  lines <- sprintf("  %s  %s  %s", format(shown$layer), format(shown$kind), shown$reason)
  c("as they were:", lines, format_more(nrow(listed) - nrow(shown), "$listed"))
}

# Plots --------------------------------------------------------------------------------------------

#' @rdname gpu_compression
#' @export
plot.gpu_compression <- function(x, ...) {
  drawn <- drawn_figures(x)
  names <- levels(drawn$figure)
  before <- graphics::par("mai", "xpd")
  on.exit(graphics::par(before))
  wide <- max(graphics::strwidth(names, "inches")) + 0.3
  graphics::par(mai = c(0.9, wide, 0.5, 0.9))
  shares <- matrix(100 * drawn$share, nrow = 2, dimnames = list(levels(drawn$model), names))
  places <- graphics::barplot(
    shares,
    beside = TRUE, horiz = TRUE, las = 1, col = compression_colours, border = NA,
    xlim = c(0, max(100, shares)), xlab = paste0("% of the ", levels(drawn$model)[2])
  )
  graphics::par(xpd = NA)
  graphics::text(as.vector(shares), as.vector(places), drawn$text, pos = 4, cex = 0.8)
  graphics::legend(
    0, graphics::par("usr")[4], rev(levels(drawn$model)),
    fill = rev(compression_colours), border = NA, bty = "n", horiz = TRUE, yjust = 0
  )
  invisible(x)
}

#' @rdname gpu_compression
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_compression <- function(object, ...) { # nolint: object_name_linter.
  drawn <- drawn_figures(object)
  ggplot2::ggplot(
    drawn, ggplot2::aes(100 * .data$share, .data$figure, fill = .data$model, label = .data$text)
  ) +
    ggplot2::geom_col(position = "dodge") +
    ggplot2::geom_text(position = ggplot2::position_dodge(0.9), hjust = -0.1, size = 3) +
    ggplot2::scale_fill_manual(
      values = rlang::set_names(compression_colours, levels(drawn$model)),
      breaks = rev(levels(drawn$model))
    ) +
    ggplot2::expand_limits(x = 115 * max(drawn$share)) +
    ggplot2::labs(x = paste0("% of the ", levels(drawn$model)[2]), y = NULL, fill = NULL)
}

# The colours of Okabe and Ito, which colour-blind people can distinguish; after first, because bars
# go up.
compression_colours <- c("#E69F00", "#0072B2")

# Two rows for each figure that is known for both models; the first figure is drawn last, on top.
drawn_figures <- function(x) {
  figures <- x$figures[!is.na(x$figures$ratio) & x$figures$ratio >= 0, ]
  losses <- grepl("95th|loss$", figures$figure)
  figures <- figures[!losses, ]
  figures <- figures[rev(seq_len(nrow(figures))), ]
  sides <- if (x$kind == "distill") c("student", "teacher") else c("model after", "model before")
  after <- figure_text(figures$after, figures$unit)
  before <- figure_text(figures$before, figures$unit)
  data.frame(
    figure = factor(rep(figures$figure, each = 2), figures$figure),
    model = factor(rep(sides, nrow(figures)), sides),
    share = as.vector(rbind(figures$ratio, 1)),
    text = as.vector(rbind(after, before))
  )
}
