# gpu_monitor(): samples of the computer and its GPUs, taken by another process while R computes.

#' Watch the GPU and the computer while code runs
#'
#' Samples the GPUs, this process and the computer while `code` runs, and summarises in one sentence
#' how busy the GPU was. Without a GPU, it samples the processor, memory and reads, and reports why
#' there is no GPU.
#'
#' The samples come from a separate process, which uses about 1 % of one processor core at the
#' default interval, and ends with this session at the latest. It queries the NVIDIA driver (NVML,
#' as `nvidia-smi` does) and the operating system. It runs nothing on the card and uses none of its
#' memory. `code` can be anything: a [gpu_fit()], your own loop, training with 'keras3'.
#'
#' @section Columns of `as.data.frame()`:
#' One row per sample and GPU. Without a GPU, one row per sample, and the GPU's columns are `NA`. A
#' value that the card or the computer does not report is `NA` too, such as the utilization of a MIG
#' slice.
#' - `time_s`: seconds since the code began. `device`: `"GPU:0"` is the first GPU that
#'   `CUDA_VISIBLE_DEVICES` shows.
#' - `utilization_percent`: share of the time in which at least one kernel ran. NVML averages it
#'   over 0.17 to 1 s. `memory_utilization_percent`: share in which the card's memory was read or
#'   written.
#' - `memory_bytes`: the card's memory in use by all processes. TensorFlow takes nearly all of it at
#'   its start unless `gpu_setup(memory = "growth")` is in effect; [gpu_memory()] shows what
#'   TensorFlow uses.
#' - `power_w`, `temperature_c`, `clock_mhz` (of the multiprocessors), `throttling` (why the clocks
#'   were lowered, such as `"power limit"`; `""` if they were not).
#' - `pcie_received_bytes_per_s`, `pcie_sent_bytes_per_s`: over PCI Express, to and from the card,
#'   measured for 20 ms in each interval.
#' - `process_cpu_percent`: of this process, without the processes that it starts, such as that of
#'   [gpu_run()]; 100 is one core. `process_memory_bytes`: resident memory.
#' - `cpu_percent`: of the whole computer, 100 is all cores. `available_memory_bytes`: memory that
#'   can be allocated without swapping.
#' - `disk_read_bytes_per_s`, `network_read_bytes_per_s`: of the whole computer.
#' @section Energy:
#' `$energy` is a data frame with a row for each GPU and one for the processor: `device`, `wh`
#' (watt-hours up to the last sample), `mean_w`, `seconds` and `source`. A GPU's own counter is used
#' (Volta and newer), else its watts over time. The processor's is that of all its packages and
#' their memory (RAPL of Intel and AMD, on Linux), for all programs; usually only root may read it.
#' What was not measured is `NA`, and `source` says why. It is the energy of the devices, without
#' the rest of the computer and its cooling. `gpu_fit(monitor = TRUE)` has it in `$monitor$energy`.
#' @param code The code to watch. Its value is in `$value`; its errors and interrupts are passed on
#'   unchanged.
#' @param interval Seconds between two samples, 0.01 to 60. Processor times are counted in
#'   hundredths of a second, so values are coarse below 0.1. For a run of hours, an interval of
#'   seconds is enough: a day at 0.2 has 432,000 samples.
#' @param x,object A `gpu_monitor`.
#' @param row.names,optional Not used.
#' @param ... For `plot()`: passed on to [graphics::plot.default()]. Otherwise not used.
#' @return A `gpu_monitor`, with `print()`, `plot()`, `ggplot2::autoplot()`, `as.data.frame()` and
#'   `summary()` (mean, median and largest value of each column, as a data frame). Its fields are
#'   `$value`, `$verdict` (the sentence), `$notes`, `$gpu_error` (`""`, or why no GPU was sampled),
#'   `$seconds`, `$interval_s`, `$cores` (that this process may use), `$computer_cores`,
#'   `$memory_total_bytes`, `$samples` (of the computer), `$energy`, `$devices` (for each GPU
#'   `$name`, `$uuid`, `$memory_total_bytes`, `$power_limit_w` and `$samples`), `$summary`.
#' @section Errors:
#' `gpukeras_error_spec` for an interval out of range, `gpukeras_error_runtime_missing` if the
#' Python package psutil is missing.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' seen <- gpu_monitor(gpu_fit(gpu_mlp(train), train, epochs = 20, verbose = FALSE))
#' seen
#' plot(seen)
#' seen$value # the history
#' @export
gpu_monitor <- function(code, interval = 0.2) {
  watch <- start_monitor(interval, "interval")
  on.exit(watch$abandon())
  value <- code
  new_gpu_monitor(watch$stop(), value)
}

# A sampler that runs until it is stopped or abandoned.
start_monitor <- function(interval, arg, call = caller_env()) {
  check_no_na_options(rlang::set_names(list(interval), arg), call)
  args <- list(interval = interval, arg = arg)
  handle <- call_core("monitor_start", args, call = call)$handle
  record <- NULL
  stop <- function() {
    if (is.null(record)) record <<- call_core("monitor_stop", list(handle = handle), call = call)
    record
  }
  # An error of the code is more important than one of its monitor.
  list(stop = stop, abandon = function() try(stop(), silent = TRUE))
}

# gpu_fit(monitor = ): TRUE is the default interval; FALSE starts none, and stop() returns NULL.
start_fit_monitor <- function(monitor, call = caller_env()) {
  if (isFALSE(monitor)) {
    return(list(stop = function() NULL, abandon = function() NULL))
  }
  start_monitor(if (isTRUE(monitor)) 0.2 else monitor, "monitor", call)
}

# Columns become plain vectors, and NaN of Python NA.
new_gpu_monitor <- function(record, value = NULL) {
  record$samples <- as_columns(record$samples)
  record$devices <- lapply(record$devices, function(device) {
    device$samples <- as_columns(device$samples)
    device
  })
  record$energy <- as_energy(record$energy)
  columns <- c("device", "column", "unit", "mean", "median", "max")
  record$summary <- numeric_columns(records_frame(record$summary, columns), columns[4:6])
  new_result(c(list(value = value), record), "gpu_monitor")
}

as_columns <- function(samples) {
  columns <- lapply(samples, function(column) {
    if (is.numeric(column)) {
      column <- as.numeric(column)
      return(ifelse(is.nan(column), NA_real_, column))
    }
    vapply(as.list(column), function(text) as.character(text %||% NA), "", USE.NAMES = FALSE)
  })
  structure(columns, class = "data.frame", row.names = seq_along(columns[[1]]))
}

#' @rdname gpu_monitor
#' @export
as.data.frame.gpu_monitor <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  count <- nrow(x$samples)
  devices <- if (length(x$devices) > 0) x$devices else list(no_device(count))
  frames <- lapply(devices, function(device) {
    name <- data.frame(time_s = x$samples$time_s, device = rep(device$device, count))
    cbind(name, device$samples, x$samples[names(x$samples) != "time_s"])
  })
  do.call(rbind, frames)
}

# The columns of a GPU, where there is none.
no_device <- function(count) {
  numbers <- c(
    "utilization_percent", "memory_utilization_percent", "memory_bytes", "power_w",
    "temperature_c", "clock_mhz", "pcie_received_bytes_per_s", "pcie_sent_bytes_per_s"
  )
  samples <- lapply(rlang::set_names(numbers), function(name) rep(NA_real_, count))
  samples$throttling <- rep(NA_character_, count)
  list(device = NA_character_, samples = as.data.frame(samples))
}

#' @rdname gpu_monitor
#' @export
summary.gpu_monitor <- function(object, ...) {
  object$summary
}

# Printing -----------------------------------------------------------------------------------------

#' @export
format.gpu_monitor <- function(x, ...) {
  count <- nrow(x$samples)
  c(
    sprintf(
      "<gpu_monitor> %.3g s, %s, one each %s s", x$seconds, count_of(count, "samples"),
      format(x$interval_s)
    ),
    x$verdict,
    if (nzchar(x$gpu_error)) x$gpu_error,
    format_energy(x$energy),
    format_notes(x$notes),
    if (count > 0) format_monitored(x)
  )
}

# A table for each of few GPUs, one for all of many, and one for the computer.
format_monitored <- function(x, most = 2) {
  of <- function(device, title) format_measures(x$summary[x$summary$device == device, ], title)
  host <- sprintf(
    "computer (%s of %s cores for this process, %s)", x$cores, x$computer_cores %||% "?",
    format_bytes(x$memory_total_bytes %||% NA)
  )
  cards <- if (length(x$devices) > most) {
    format_cards(x)
  } else {
    unlist(lapply(x$devices, function(card) of(card$device, format_card(card))))
  }
  c(cards, of("host", host))
}

# A line for each GPU.
format_cards <- function(x) {
  pick <- function(device, column, field) {
    row <- x$summary[x$summary$device == device & x$summary$column == column, ]
    if (is.na(row[[field]])) "not told" else format_measure(row[[field]], row$unit)
  }
  lines <- lapply(x$devices, function(card) {
    data.frame(
      GPU = card$device, name = card$name,
      utilization = pick(card$device, "utilization_percent", "mean"),
      memory = pick(card$device, "memory_bytes", "max"),
      power = pick(card$device, "power_w", "mean"),
      temperature = pick(card$device, "temperature_c", "max"),
      "clocks lowered" = pick(card$device, "throttled_percent", "mean"), check.names = FALSE
    )
  })
  c(
    format_frame(do.call(rbind, lines)),
    "  (mean utilization, power and share of lowered clocks; largest memory and temperature)"
  )
}

format_card <- function(card) {
  limit <- if (!is.null(card$power_limit_w)) sprintf(", at most %.0f W", card$power_limit_w)
  total <- format_bytes(card$memory_total_bytes %||% NA)
  sprintf("%s (%s, %s%s)", card$device, card$name, total, limit %||% "")
}

format_measures <- function(rows, title) {
  labels <- unname(measure_labels[rows$column])
  told <- !is.na(rows$mean)
  cells <- lapply(c("mean", "median", "max"), function(name) {
    values <- mapply(format_measure, rows[[name]][told], rows$unit[told])
    format(c(name, ifelse(is.na(rows[[name]][told]), "", values)), justify = "right")
  })
  names <- c(title, if (any(told)) paste0("  ", labels[told]))
  lines <- trimws(paste(format(names), cells[[1]], cells[[2]], cells[[3]]), "right")
  refused <- if (any(!told)) paste0("  not told: ", paste(labels[!told], collapse = ", "))
  c(lines, refused)
}

measure_labels <- c(
  utilization_percent = "utilization", memory_utilization_percent = "memory controller",
  memory_bytes = "memory", power_w = "power", temperature_c = "temperature",
  clock_mhz = "clock", pcie_received_bytes_per_s = "PCIe, to the card",
  pcie_sent_bytes_per_s = "PCIe, from the card", throttled_percent = "clocks lowered",
  process_cpu_percent = "CPU, this process (100 % is a core)",
  process_memory_bytes = "memory, this process", cpu_percent = "CPU, all of the computer",
  available_memory_bytes = "memory available", disk_read_bytes_per_s = "read from disks",
  network_read_bytes_per_s = "read from networks"
)

format_measure <- function(value, unit) {
  switch(unit,
    "%" = sprintf("%.0f %%", value),
    "bytes" = format_bytes(value),
    "bytes/s" = paste0(format_bytes(value), "/s"),
    "degrees C" = sprintf("%.0f %s", value, if (cli::is_utf8_output()) "\u00b0C" else "C"),
    sprintf("%.0f %s", value, unit)
  )
}

# Drawing ------------------------------------------------------------------------------------------

#' @rdname gpu_monitor
#' @export
plot.gpu_monitor <- function(x, ...) {
  frame <- drawn_samples(x)
  grid <- grDevices::n2mfrow(nlevels(frame$panel))
  before <- graphics::par("mfrow", "mar", "mgp", "cex", "xpd")
  on.exit(graphics::par(before))
  lines <- tapply(frame$line, frame$panel, function(line) length(unique(line)))
  above <- 0.6 + 1.1 * ceiling(max(lines) / key_columns) # for the legend
  graphics::par(mfrow = grid, mar = c(3, 4.5, above, 1), mgp = c(2.8, 0.6, 0), cex = 0.83)
  styles <- line_styles(levels(frame$line))
  for (panel in levels(frame$panel)) {
    draw_samples(droplevels(frame[frame$panel == panel, ]), panel, styles, list(...))
  }
  invisible(x)
}

#' @rdname gpu_monitor
#' @exportS3Method ggplot2::autoplot
autoplot.gpu_monitor <- function(object, ...) { # nolint: object_name_linter.
  frame <- drawn_samples(object)
  styles <- line_styles(levels(frame$line))
  ggplot2::ggplot(
    frame, ggplot2::aes(.data$time_s, .data$value, colour = .data$line, linetype = .data$line)
  ) +
    (if (nrow(object$samples) > 1) ggplot2::geom_line(na.rm = TRUE)) +
    (if (nrow(object$samples) <= 30) ggplot2::geom_point(size = 0.8, na.rm = TRUE)) +
    ggplot2::facet_wrap("panel", ncol = 1, scales = "free_y", strip.position = "left") +
    ggplot2::scale_colour_manual(values = styles$col) +
    ggplot2::scale_linetype_manual(values = styles$lty) +
    ggplot2::geom_blank(ggplot2::aes(y = .data$least)) +
    ggplot2::expand_limits(y = 0) +
    ggplot2::labs(x = "seconds", y = NULL, colour = NULL, linetype = NULL) +
    ggplot2::theme(
      strip.placement = "outside", strip.background = ggplot2::element_blank(),
      legend.position = "bottom"
    )
}

# The data of both plots, a row for each point: the panel with its unit, the line in it, and the
# panel's least upper limit. Panels without a value are left out.
drawn_samples <- function(x, call = caller_env()) {
  if (nrow(x$samples) == 0) {
    abort_gpukeras(
      "The monitor has no sample to plot.", code = "data", arg = "x", call = call,
      hint = "Choose a shorter `interval`."
    )
  }
  frame <- rbind(card_lines(x), host_lines(x))
  frame <- frame[frame$panel %in% frame$panel[!is.na(frame$value)], ]
  frame$panel <- factor(frame$panel, unique(frame$panel))
  frame$line <- factor(frame$line, unique(frame$line))
  frame
}

card_lines <- function(x) {
  if (length(x$devices) == 0) {
    return(NULL)
  }
  lines <- lapply(x$devices, function(card) {
    samples <- card$samples
    list(
      draw_line(x, "GPU utilization (%)", card$device, samples$utilization_percent, 100),
      draw_line(
        x, "GPU memory (GiB)", card$device, samples$memory_bytes / 2^30,
        (card$memory_total_bytes %||% 0) / 2^30
      ),
      draw_line(x, "GPU power (W)", card$device, samples$power_w, card$power_limit_w %||% 0)
    )
  })
  frame <- do.call(rbind, unlist(lines, recursive = FALSE))
  frame[order(match(frame$panel, unique(frame$panel))), ] # the panels in their order
}

# With GPUs, only the processor is shown: it shows whether the GPUs wait for it.
host_lines <- function(x) {
  samples <- x$samples
  cores <- x$computer_cores %||% x$cores
  processor <- rbind(
    draw_line(x, "CPU (cores)", "this process", samples$process_cpu_percent / 100, x$cores),
    draw_line(x, "CPU (cores)", "computer", samples$cpu_percent / 100 * cores, cores)
  )
  if (length(x$devices) > 0) {
    return(processor)
  }
  resident <- samples$process_memory_bytes / 2^30
  rbind(
    processor,
    draw_line(x, "memory (GiB)", "this process", resident, 0),
    draw_line(x, "read (MiB/s)", "disks", samples$disk_read_bytes_per_s / 2^20, 1),
    draw_line(x, "read (MiB/s)", "networks", samples$network_read_bytes_per_s / 2^20, 1)
  )
}

draw_line <- function(x, panel, line, values, least) {
  data.frame(
    panel = panel, line = line, time_s = x$samples$time_s, value = values, least = least
  )
}

# The colours of Okabe and Ito, which colour-blind people can distinguish, and dashes for grey
# prints.
line_styles <- function(lines) {
  colours <- unname(grDevices::palette.colors(8, "Okabe-Ito"))[c(6, 7, 4, 2, 8, 3, 1)]
  at <- seq_along(lines) - 1
  list(
    col = rlang::set_names(colours[at %% length(colours) + 1], lines),
    lty = rlang::set_names(at %% 2 + 1, lines)
  )
}

draw_samples <- function(frame, panel, styles, options) {
  top <- max(frame$value, frame$least, na.rm = TRUE)
  lines <- levels(frame$line)
  defaults <- list(
    x = c(0, max(frame$time_s)), y = c(0, top), type = "n", yaxt = "n", xlab = "", ylab = panel
  )
  do.call(graphics::plot.default, utils::modifyList(defaults, options))
  if (is.null(options$xlab)) graphics::title(xlab = "seconds", line = 1.8)
  graphics::axis(2, pretty(c(0, top), 4), las = 1)
  for (line in lines) {
    one <- frame[frame$line == line, ]
    graphics::lines(
      one$time_s, one$value,
      type = if (nrow(one) <= 30) "o" else "l", pch = 20, lwd = 2,
      col = styles$col[[line]], lty = styles$lty[[line]]
    )
  }
  graphics::legend(
    graphics::par("usr")[1], graphics::par("usr")[4], lines,
    col = styles$col[lines], lty = styles$lty[lines], lwd = 2, bty = "n", xpd = NA, yjust = 0,
    ncol = min(key_columns, length(lines)), x.intersp = 0.5,
    cex = if (length(lines) > key_columns) 0.8 else 0.9,
    seg.len = if (length(lines) > key_columns) 1.3 else 2
  )
}

# Columns of a legend.
key_columns <- 4
