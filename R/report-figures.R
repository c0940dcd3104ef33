# Plots of a report: drawn by the plot() methods of results, embedded as SVG or PNG.

# The plots of a part as lines of HTML, or a note why there are none.
html_figures <- function(part, id, kind = figure_kind()) {
  if (is.null(utils::getS3method("plot", part$class, optional = TRUE))) {
    return(NULL)
  }
  if (kind == "none") {
    return(html_tag("p", "This R can draw neither SVG nor PNG: no plot.", class = "note"))
  }
  folder <- tempfile("figures-")
  dir.create(folder)
  on.exit(unlink(folder, recursive = TRUE))
  tryCatch(
    {
      files <- draw_pages(function() plot(part$value), folder, 8.5, figure_height(part), kind)
      label <- sprintf("%s: plot", part$title)
      unlist(Map(html_figure, files, label, paste0(id, "-", seq_along(files), "-"), kind))
    },
    gpukeras_error = function(error) html_tag("p", said_by(error), class = "note")
  )
}

figure_kind <- function() {
  c("svg", "png", "none")[c(capabilities("cairo"), capabilities("png"), TRUE)][1]
}

# The height of a part's plot in inches.
figure_height <- function(part) {
  panels <- function(metrics) {
    max(3.5, 2.5 * grDevices::n2mfrow(max(1, min(metrics, panels_a_page)))[1])
  }
  switch(part$class,
    gpu_history = panels(length(metric_values(part$value))),
    gpu_histories = panels(nlevels(as.data.frame(part$value)$metric)),
    gpu_profile = if (nrow(part$value$timeline) > 0) 6 else 2.8,
    gpu_monitor = 7,
    4.5
  )
}

# Draws into files, one a page, and restores the user's device.
draw_pages <- function(draw, folder, width, height, kind) {
  before <- grDevices::dev.cur()
  path <- file.path(folder, paste0("page-%03d.", kind))
  if (kind == "svg") {
    grDevices::svg(path, width, height, bg = "transparent", pointsize = 11)
  } else {
    grDevices::png(path, width, height, units = "in", res = 144, bg = "transparent", pointsize = 11)
  }
  device <- grDevices::dev.cur()
  graphics::par(mar = c(4, 4.5, 1.5, 1))
  tryCatch(draw(), finally = {
    grDevices::dev.off(device)
    if (before > 1) grDevices::dev.set(before)
  })
  list.files(folder, full.names = TRUE)
}

# `prefix` makes the ids of this SVG unique on the page.
html_figure <- function(file, label, prefix, kind) {
  label <- html_text(label)
  drawn <- if (kind == "svg") {
    svg <- readLines(file, encoding = "UTF-8")
    svg <- svg[!grepl("^<[?]xml", svg)]
    svg <- gsub('(\\bid="|href="#|url[(]#)', paste0("\\1", prefix), svg)
    sub("<svg ", sprintf('<svg role="img" aria-label="%s" ', label), svg, fixed = TRUE)
  } else {
    bytes <- readBin(file, "raw", file.size(file))
    data <- gsub("\n", "", jsonlite::base64_enc(bytes), fixed = TRUE)
    sprintf('<img alt="%s" src="data:image/png;base64,%s">', label, data)
  }
  c("<figure>", drawn, "</figure>")
}
