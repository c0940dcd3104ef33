# What the core reports of the two searches.
a_size_report <- function(...) {
  point <- function(batch_size, rows_per_s, peak_bytes = NULL, status = "ok") {
    list(
      batch_size = batch_size, rows_per_s = rows_per_s, peak_bytes = peak_bytes, status = status
    )
  }
  report <- list(
    points = list(point(32L, 101234), point(64L, 195432), point(128L, 204321)),
    recommended = 64L, largest = 128L, device = "CPU:0", engine = "graph_loop",
    reason = "the smallest with 90% of the best throughput (96% of 204,321 rows/s)",
    stopped = "to", engine_reason = "as asked", samples = "its own rows", elapsed_s = 3.2
  )
  changes <- list(...)
  report[names(changes)] <- changes
  report
}

a_gpu_report <- function() {
  a_size_report(device = "GPU:0", stopped = "memory", points = list(
    list(batch_size = 32L, rows_per_s = 1e5, peak_bytes = 300 * 2^20, status = "ok"),
    list(batch_size = 64L, rows_per_s = 2e5, peak_bytes = 1.5 * 2^30, status = "ok"),
    list(batch_size = 128L, rows_per_s = NULL, peak_bytes = NULL, status = "out of memory")
  ))
}

a_rate_report <- function(...) {
  report <- list(
    rates = list(1e-4, 1e-3, 1e-2, 0.1), losses = list(1, 0.9, 0.5, 40),
    smoothed = list(1, 0.95, 0.8, 11), steepest = 0.004321, minimum_tenth = 0.001,
    recommended = 0.001, stopped = "diverged", current = 0.001, batch_size = 32L,
    reason = "a tenth of the rate of the lowest loss, below the one where it falls fastest",
    device = "CPU:0", elapsed_s = 1.2
  )
  changes <- list(...)
  report[names(changes)] <- changes
  report
}

sizes <- function(...) new_result(a_size_report(...), "gpu_batch_size")
rates <- function(...) new_gpu_learning_rate(a_rate_report(...))

nothing_measured <- function() {
  changed <- a_size_report(
    points = list(), stopped = "interrupted",
    reason = "nothing was measured: the search was interrupted"
  )
  changed["recommended"] <- changed["largest"] <- list(NULL)
  new_result(changed, "gpu_batch_size")
}

no_rate <- function(...) {
  changed <- a_rate_report(reason = "the loss never fell by more than its noise", ...)
  changed[c("recommended", "steepest", "minimum_tenth")] <- list(NULL)
  new_gpu_learning_rate(changed)
}

# Records ------------------------------------------------------------------------------------------

test_that("a batch size prints its curve, the choice and why", {
  expect_snapshot({
    print(sizes())
    print(new_result(a_gpu_report(), "gpu_batch_size"))
    print(nothing_measured())
  })
})

test_that("a learning rate prints the choice and why, or why there is none", {
  expect_snapshot({
    print(rates())
    print(no_rate(stopped = "completed", current = NaN))
    print(no_rate(rates = list(), losses = list(), smoothed = list(), stopped = "non_finite"))
  })
})

test_that("print() gives its argument back, invisibly", {
  for (shown in list(sizes(), rates())) {
    capture.output(answer <- withVisible(print(shown)))
    expect_identical(answer$value, shown)
    expect_false(answer$visible)
  }
})

test_that("a batch size is a data frame with a row for each size", {
  frame <- as.data.frame(new_result(a_gpu_report(), "gpu_batch_size"))
  expect_identical(frame, data.frame(
    batch_size = c(32L, 64L, 128L), rows_per_s = c(1e5, 2e5, NA),
    peak_bytes = c(300 * 2^20, 1.5 * 2^30, NA), status = c("ok", "ok", "out of memory")
  ))
  expect_identical(nrow(as.data.frame(nothing_measured())), 0L)
})

test_that("a learning rate is a data frame with a row for each rate", {
  expect_identical(as.data.frame(rates()), data.frame(
    rate = c(1e-4, 1e-3, 1e-2, 0.1), loss = c(1, 0.9, 0.5, 40), smoothed = c(1, 0.95, 0.8, 11)
  ))
  one <- rates(rates = 0.1, losses = 2, smoothed = 2)
  expect_identical(as.data.frame(one), data.frame(rate = 0.1, loss = 2, smoothed = 2))
})

test_that("both are plotted, with and without a recommendation", {
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off())
  for (drawn in list(sizes(), new_result(a_gpu_report(), "gpu_batch_size"), rates(), no_rate())) {
    answer <- withVisible(plot(drawn, main = "a title"))
    expect_identical(answer, list(value = drawn, visible = FALSE))
  }
  for (empty in list(nothing_measured(), no_rate(rates = list()))) {
    expect_error(plot(empty), class = "gpukeras_error_data")
    expect_snapshot(plot(empty), error = TRUE)
  }
})

test_that("autoplot() shows what was measured and what was recommended", {
  skip_outside_lane()
  skip_if_not_installed("ggplot2")
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off())
  size <- ggplot2::autoplot(new_result(a_gpu_report(), "gpu_batch_size"))
  expect_identical(size$data$batch_size, c(32L, 64L))
  rate <- ggplot2::autoplot(rates())
  expect_identical(rate$data, as.data.frame(rates()))
  lines <- lapply(list(size, rate), function(drawn) {
    unlist(lapply(seq_along(drawn$layers), function(i) ggplot2::layer_data(drawn, i)$xintercept))
  })
  expect_equal(lines, list(log2(64), log10(0.001)))
  expect_s3_class(ggplot2::ggplot_build(ggplot2::autoplot(no_rate())), "ggplot_built")
})

test_that("a search stands for the size it recommends", {
  expect_identical(as_batch_size(sizes()), 64L)
  expect_null(as_batch_size("auto"))
  expect_identical(as_batch_size(100), 100)
  batch_size <- nothing_measured()
  error <- expect_error(as_batch_size(batch_size), class = "gpukeras_error_spec")
  expect_identical(error$arg, "batch_size")
  expect_snapshot(as_batch_size(batch_size), error = TRUE)
})

test_that("options are named as in R when they are refused", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- gpu_dataset(a_matrix(), rep(1:2, 30))
  model <- gpu_mlp(data, units = 2)
  refused <- function(code, arg) {
    error <- expect_error(code, class = "gpukeras_error_spec")
    expect_identical(error$arg, arg)
    expect_match(one_line(error), sprintf("`%s`", arg), fixed = TRUE)
  }
  refused(gpu_batch_size(model, data, from = 0), "from")
  refused(gpu_batch_size(model, data, from = NA), "from")
  refused(gpu_batch_size(model, data, from = 64, to = 32), "to")
  refused(gpu_batch_size(model, data, until = "never"), "until")
  refused(gpu_batch_size(model, data, seconds = "long"), "seconds")
  refused(gpu_batch_size(model, data, verbose = NA), "verbose")
  expect_error(gpu_batch_size("model", data), class = "gpukeras_error_spec")
  refused(gpu_learning_rate(model, data, from = 1, to = 1), "to")
  refused(gpu_learning_rate(model, data, steps = 3), "steps")
  refused(gpu_learning_rate(model, data, batch_size = "big"), "batch_size")
  expect_error(gpu_learning_rate(model, 1:3), class = "gpukeras_error_data")
})

# Real searches ------------------------------------------------------------------------------------

weights_of <- function(model) {
  lapply(model$get_weights(), as_r)
}

test_that("a real search of the batch size leaves the model alone and can be passed on", {
  skip_without_tensorflow()
  silence_tensorflow()
  x <- a_matrix(2000)
  data <- gpu_dataset(x, drop(x %*% c(1, -2, 3)), batch_size = 20, seed = 1)
  model <- gpu_mlp(data, units = 4, dropout = 0.2, seed = 1)
  before <- weights_of(model)
  shown <- capture.output(size <- gpu_batch_size(model, data, to = 128))
  expect_s3_class(size, "gpu_batch_size")
  expect_identical(as.data.frame(size)$batch_size, c(32L, 64L, 128L))
  expect_true(size$recommended %in% c(32, 64, 128))
  expect_match(shown, "^batch size [0-9]+: [0-9,]+ rows/s$")
  expect_length(shown, 3)
  expect_identical(weights_of(model), before)
  rate <- gpu_learning_rate(model, data, batch_size = size, steps = 10)
  expect_identical(rate$batch_size, size$recommended)
  expect_identical(weights_of(model), before)
  expect_silent(gpu_batch_size(model, list(x, x[, 1]), to = 32, verbose = FALSE))
})

test_that("a real range test suggests a rate that trains", {
  skip_without_tensorflow()
  silence_tensorflow()
  x <- a_matrix(2000)
  data <- gpu_dataset(x, drop(x %*% c(1, -2, 3)), batch_size = 20, seed = 1)
  rate <- gpu_learning_rate(gpu_mlp(data, units = 8, seed = 1), data)
  expect_s3_class(rate, "gpu_learning_rate")
  expect_identical(rate$batch_size, 20L)
  expect_equal(rate$current, 0.001, tolerance = 1e-6)
  expect_gt(rate$recommended, 1e-5)
  model <- gpu_mlp(data, units = 8, learning_rate = rate$recommended, seed = 1)
  fit <- gpu_fit(model, data, epochs = 3, engine = "keras", verbose = FALSE)
  expect_lt(fit$history$loss[3], rate$losses[1] / 2)
  handed <- gpu_learning_rate(model, data, steps = 10, batch_size = sizes())
  expect_identical(handed$batch_size, 64L)
})

test_that("an interrupt ends a search with what it has, and the model is as it was", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  x <- a_matrix(2000)
  data <- gpu_dataset(x, x[, 1], batch_size = 20)
  model <- gpu_mlp(data, units = 4, seed = 1)
  before <- weights_of(model)
  calls <- 0
  interrupting <- interruptible(function(event) {
    calls <<- calls + 1
    if (calls == 2) rlang::interrupt()
  })
  report <- call_core("find_batch_size", list(
    model = model, data = data$handle, options = list(high = 1000), on_event = interrupting
  ))
  size <- new_result(report, "gpu_batch_size")
  expect_identical(size$stopped, "interrupted")
  expect_identical(as.data.frame(size)$batch_size, c(32L, 64L))
  calls <- 0
  report <- call_core("find_learning_rate", list(
    model = model, data = data$handle, options = list(steps = 5000), on_event = interrupting
  ))
  expect_identical(new_gpu_learning_rate(report)$stopped, "interrupted")
  expect_lt(length(report$rates), 5000)
  expect_identical(weights_of(model), before)
})

test_that("an error in a function that makes rows is its own, and the model is as it was", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  data <- failing_rows()
  model <- gpu_mlp(data, units = 4, seed = 1)
  before <- weights_of(model)
  size <- gpu_batch_size(model, data, to = 64, verbose = FALSE)
  expect_identical(size$samples, "its first 20 rows, repeated")
  expect_error(gpu_learning_rate(model, data), "no more files", class = "my_error")
  expect_identical(weights_of(model), before)
})
