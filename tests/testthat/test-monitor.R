# What the core reports of a monitor.
a_card <- function(number = 0, seconds = 1:4 / 5, ...) {
  count <- length(seconds)
  samples <- list(
    utilization_percent = 60 + 10 * seconds, memory_utilization_percent = rep(20, count),
    memory_bytes = rep(3 * 2^30, count), power_w = rep(NaN, count),
    temperature_c = 40 + seconds, clock_mhz = rep(1380, count),
    pcie_received_bytes_per_s = rep(2^30, count), pcie_sent_bytes_per_s = rep(2^20, count),
    throttling = as.list(rep(c("", "power limit"), length.out = count))
  )
  changes <- list(...)
  samples[names(changes)] <- changes
  list(
    device = paste0("GPU:", number), name = "Tesla V100", uuid = paste0("GPU-", number),
    memory_total_bytes = 16 * 2^30, power_limit_w = 300, samples = samples
  )
}

units <- c(
  utilization_percent = "%", memory_utilization_percent = "%", memory_bytes = "bytes",
  power_w = "W", temperature_c = "degrees C", clock_mhz = "MHz",
  pcie_received_bytes_per_s = "bytes/s", pcie_sent_bytes_per_s = "bytes/s",
  process_cpu_percent = "%", process_memory_bytes = "bytes", cpu_percent = "%",
  available_memory_bytes = "bytes", disk_read_bytes_per_s = "bytes/s",
  network_read_bytes_per_s = "bytes/s"
)

summary_of <- function(device, samples) {
  lapply(intersect(names(units), names(samples)), function(column) {
    told <- Filter(is.finite, samples[[column]])
    found <- if (length(told) > 0) list(mean = mean(told), median = median(told), max = max(told))
    c(list(device = device, column = column, unit = units[[column]]), found)
  })
}

a_monitor_record <- function(cards = list(a_card()), seconds = 1:4 / 5, ...) {
  count <- length(seconds)
  samples <- list(
    time_s = array(seconds), process_cpu_percent = rep(150, count),
    process_memory_bytes = rep(2^30, count), cpu_percent = rep(40, count),
    available_memory_bytes = rep(8 * 2^30, count), disk_read_bytes_per_s = rep(5 * 2^20, count),
    network_read_bytes_per_s = array(rep(NaN, count))
  )
  slowed <- function(card) {
    list(list(device = card$device, column = "throttled_percent", unit = "%", mean = 50))
  }
  summaries <- lapply(cards, function(card) c(summary_of(card$device, card$samples), slowed(card)))
  record <- list(
    interval_s = 0.2, seconds = 0.812, samples = samples, devices = cards, gpu_error = "",
    cores = 4L, computer_cores = 8L, memory_total_bytes = 16 * 2^30,
    summary = c(summary_of("host", samples), unlist(summaries, recursive = FALSE)),
    verdict = "GPU:0 computed 65 % of the time and had nothing to do in the other 35 %.",
    notes = list("The clocks of GPU:0 were lowered 50 % of the time (power limit).")
  )
  record$energy <- c(
    lapply(cards, function(card) an_energy(card$device, 0.0467, 210, "the card's counter")),
    list(an_energy("CPU", NULL, NULL, "only root may read it"))
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

no_gpu_record <- function(...) {
  a_monitor_record(
    cards = list(), notes = list(), gpu_error = "There is no NVIDIA driver on this computer.",
    verdict = "No GPU was sampled: the process used 1.5 of 4 CPU cores on average.", ...
  )
}

an_energy <- function(device, wh, mean_w, source) {
  list(device = device, wh = wh, mean_w = mean_w, seconds = 0.8, source = source)
}

monitored <- function(...) new_gpu_monitor(a_monitor_record(...), "the value")
without_gpu <- function(...) new_gpu_monitor(no_gpu_record(...))

# Records ------------------------------------------------------------------------------------------

test_that("a monitor prints its verdict and a table for each device", {
  expect_snapshot(monitored())
  expect_snapshot(without_gpu())
  expect_snapshot(monitored(cards = lapply(0:2, a_card)))
  withr::local_options(cli.unicode = TRUE)
  expect_identical(format_measure(40, "degrees C"), "40 \u00b0C")
})

test_that("a monitor without a sample prints what is known", {
  empty <- without_gpu(seconds = numeric(), verdict = "It ended before the first sample.")
  expect_snapshot(empty)
  expect_identical(nrow(as.data.frame(empty)), 0L)
  expect_error(plot(empty), class = "gpukeras_error_data")
  expect_snapshot(plot(empty), error = TRUE)
})

test_that("a data frame has a row for each sample and GPU, with the computer's columns", {
  frame <- as.data.frame(monitored(cards = lapply(0:1, a_card)))
  expect_identical(dim(frame), c(8L, 17L))
  expect_identical(frame$device, rep(c("GPU:0", "GPU:1"), each = 4))
  expect_equal(frame$time_s, rep(1:4 / 5, 2))
  expect_identical(frame$throttling, rep(c("", "power limit"), 4))
  expect_true(all(is.na(frame$power_w)) && !any(is.nan(frame$power_w)))
  expect_equal(frame$process_cpu_percent, rep(150, 8))
})

test_that("a data frame has the same columns without a GPU", {
  frame <- as.data.frame(without_gpu())
  expect_identical(names(frame), names(as.data.frame(monitored())))
  expect_identical(frame$device, rep(NA_character_, 4))
  expect_true(all(is.na(frame$utilization_percent)))
  expect_equal(frame$disk_read_bytes_per_s, rep(5 * 2^20, 4))
})

test_that("a card that tells nothing of its clocks has NA", {
  frame <- as.data.frame(monitored(cards = list(a_card(throttling = list(NULL, NULL, "", NULL)))))
  expect_identical(frame$throttling, c(NA, NA, "", NA))
})

test_that("the summary is a data frame", {
  found <- summary(monitored())
  expect_identical(names(found), c("device", "column", "unit", "mean", "median", "max"))
  power <- found[found$column == "power_w", ]
  expect_identical(c(power$mean, power$max), c(NA_real_, NA_real_))
  expect_equal(found$max[found$column == "utilization_percent"], 68)
})

# Plots --------------------------------------------------------------------------------------------

test_that("panels without a value are left out, and units are on the axes", {
  panels <- function(x) levels(drawn_samples(x)$panel)
  expect_identical(panels(monitored()), c("GPU utilization (%)", "GPU memory (GiB)", "CPU (cores)"))
  expect_identical(panels(without_gpu()), c("CPU (cores)", "memory (GiB)", "read (MiB/s)"))
  with_power <- monitored(cards = list(a_card(power_w = rep(150, 4))))
  expect_true("GPU power (W)" %in% panels(with_power))
})

test_that("lines of several GPUs differ", {
  styles <- line_styles(paste0("GPU:", 0:13))
  expect_false(anyDuplicated(paste(styles$col, styles$lty)) > 0)
})

test_that("a monitor is drawn, and the device left as it was", {
  withr::local_pdf(NULL)
  before <- graphics::par("mfrow", "mar", "mgp", "cex")
  for (x in list(monitored(cards = lapply(0:7, a_card)), without_gpu(), without_gpu(seconds = 1))) {
    expect_identical(plot(x), x)
    expect_identical(graphics::par("mfrow", "mar", "mgp", "cex"), before)
  }
})

test_that("ggplot2 draws the same", {
  skip_outside_lane()
  skip_if_not_installed("ggplot2")
  withr::local_pdf(NULL)
  for (x in list(monitored(), without_gpu(), without_gpu(seconds = 1))) {
    drawn <- ggplot2::autoplot(x)
    expect_s3_class(drawn, "ggplot")
    expect_silent(print(drawn))
  }
})

# Watching -----------------------------------------------------------------------------------------

# Answers as the core does, and counts what it is asked.
local_monitor <- function(frame = parent.frame()) {
  asked <- new.env()
  asked$names <- character()
  local_core(function(name, args) {
    asked$names <- c(asked$names, name)
    asked$args <- c(asked$args, list(args))
    answer(if (name == "monitor_start") list(handle = "a handle") else a_monitor_record())
  }, frame)
  asked
}

test_that("code is evaluated once, between start and stop", {
  asked <- local_monitor()
  seen <- gpu_monitor(asked$names <- c(asked$names, "code"), interval = 0.5)
  expect_identical(asked$names, c("monitor_start", "code", "monitor_stop"))
  expect_identical(asked$args[[1]], list(interval = 0.5, arg = "interval"))
  expect_identical(asked$args[[2]], list(handle = "a handle"))
})

test_that("the value of the code is kept, NULL too", {
  local_monitor()
  expect_identical(gpu_monitor(1 + 1)$value, 2)
  expect_true("value" %in% names(gpu_monitor(NULL)))
})

test_that("an error of the code passes on as it is, and the monitor ends", {
  asked <- local_monitor()
  expect_error(gpu_monitor(rlang::abort("mine", class = "my_error")), class = "my_error")
  expect_identical(asked$names, c("monitor_start", "monitor_stop"))
  expect_error(gpu_monitor(stop("plain")), "^plain$", class = "simpleError")
})

test_that("an error of the code is said, not what the monitor then failed of", {
  local_core(function(name, args) {
    if (name == "monitor_stop") stop("the monitor's own") else answer(list(handle = "a handle"))
  })
  expect_error(gpu_monitor(stop("the code's")), "the code's")
})

test_that("NA is no interval", {
  local_monitor()
  expect_error(gpu_monitor(1, NA), "`interval` must be a value", class = "gpukeras_error_spec")
})

test_that("training watches by TRUE or an interval", {
  asked <- local_monitor()
  expect_null(start_fit_monitor(FALSE)$stop())
  expect_identical(asked$names, character())
  watch <- start_fit_monitor(TRUE)
  expect_identical(asked$args[[1]], list(interval = 0.2, arg = "monitor"))
  expect_identical(watch$stop(), watch$stop())
  expect_identical(sum(asked$names == "monitor_stop"), 1L)
  start_fit_monitor(0.5)$abandon()
  expect_identical(asked$args[[3]]$interval, 0.5)
})

# The real sampler ---------------------------------------------------------------------------------

skip_without_psutil <- function() {
  skip_if_not(reticulate::py_module_available("psutil"), "psutil is not installed")
}

test_that("R is sampled while it computes", {
  skip_outside_lane()
  skip_without_core()
  skip_without_psutil()
  seen <- gpu_monitor(
    {
      began <- proc.time()[["elapsed"]]
      while (proc.time()[["elapsed"]] - began < 0.6) sqrt(seq_len(1e4))
      "done"
    },
    interval = 0.05
  )
  expect_identical(seen$value, "done")
  frame <- as.data.frame(seen)
  expect_gt(nrow(seen$samples), 0) # 12 on a computer with nothing else to do
  expect_gt(mean(frame$process_cpu_percent), 0)
  expect_true(all(frame$available_memory_bytes < seen$memory_total_bytes))
  expect_match(seen$verdict, "[.]$")
  if (!has_gpu()) expect_true(nzchar(seen$gpu_error))
})

test_that("intervals out of range are refused", {
  skip_without_core()
  skip_without_psutil()
  for (interval in list(0, -1, 100, "fast", c(1, 2))) {
    expect_error(gpu_monitor(1, interval), "from 0.01 to 60", class = "gpukeras_error_spec")
  }
  expect_error(gpu_monitor(1, NULL), "not NULL", class = "gpukeras_error_spec")
  expect_error(start_fit_monitor("yes"), "`monitor`", class = "gpukeras_error_spec")
})
