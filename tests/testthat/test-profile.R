local_device <- function(frame = parent.frame()) {
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off(), envir = frame)
}

# The record --------------------------------------------------------------------------------------

test_that("the summary is the shares", {
  profile <- a_profile()
  expect_identical(summary(profile), as.data.frame(profile, what = "shares"))
})

test_that("a profile's tables are data frames", {
  profile <- a_profile()
  expect_s3_class(profile, "gpu_profile")
  expect_equal(sum(profile$shares), 1)
  expect_identical(names(profile$shares), names(step_colours)[1:5])
  expect_identical(as.data.frame(profile), profile$layers)
  expect_identical(profile$layers$kind, c("Dense", "Dense", "", ""))
  expect_identical(as.data.frame(profile, what = "ops")$count, c(1, 1, 4.5))
  expect_identical(as.data.frame(profile, what = "stages")$stage, c("gather", "cast"))
  expect_null(profile$input$stages)
  advice <- as.data.frame(profile, what = "advice")
  expect_identical(advice$gain, c(3.4, 12, NA))
  expect_identical(advice$measured, c(NA, 10.2, NA))
  expect_identical(advice$apply, c(
    "gpu_fit(batch_size = 512)", "gpu_fit(engine = \"auto\", batch_size = 512)", ""
  ))
  shares <- as.data.frame(profile, what = "shares")
  expect_identical(names(shares), c("part", "share", "seconds"))
  expect_equal(sum(shares$seconds), profile$step_s)
})

test_that("tables without rows keep their columns and types", {
  empty <- an_undetermined_profile()
  for (what in names(profile_columns)) {
    frame <- as.data.frame(empty, what = what)
    expect_identical(names(frame), names(profile_columns[[what]]))
    expect_identical(lapply(frame, mode), lapply(profile_columns[[what]], mode))
  }
  expect_identical(nrow(as.data.frame(empty, what = "timeline")), 0L)
  expect_identical(is.na(empty$shares[["kernels"]]), TRUE)
})

test_that("a table that is not there is refused", {
  for (what in list("layer", NULL, c("ops", "layers"), 1)) {
    expect_error(as.data.frame(a_profile(), what = what), class = "gpukeras_error_spec")
  }
})

test_that("a profile survives saveRDS()", {
  file <- withr::local_tempfile()
  saveRDS(a_profile(), file)
  expect_identical(format(readRDS(file)), format(a_profile()))
})

# Printing ----------------------------------------------------------------------------------------

test_that("a profile prints the verdict first, then parts, layers, ops and advice", {
  expect_snapshot({
    print(a_profile())
    print(a_gpu_profile())
  })
})

test_that("a profile whose trace says nothing prints what the clock says", {
  expect_snapshot(print(an_undetermined_profile()))
})

test_that("of many layers the slowest are printed", {
  layers <- lapply(1:30, function(i) a_layer_time(paste0("dense_", i), "Dense", i / 1e4, 0, i / 465))
  lines <- format(a_profile(layers = layers))
  at <- grep("^layers:", lines)
  expect_match(lines[at], "24 more: as.data.frame(what = \"layers\")", fixed = TRUE)
  expect_match(lines[at + 2], "dense_30 ")
  expect_false(any(grepl("dense_24 ", lines)))
})

test_that("braces and percents in names are printed as they are", {
  ops <- list(an_op("{odd} %s <name>", "MatMul", 1, 1e-3, 1))
  expect_match(format(a_profile(ops = ops)), "{odd} %s <name>", fixed = TRUE, all = FALSE)
})

test_that("means of counts have a decimal only where it says something", {
  expect_identical(format_mean_count(c(1, 4.5, 3.0001)), c("1", "4.5", "3"))
})

test_that("advice is shown as a call", {
  expect_identical(format_apply(list(batch_size = 1e5, jit = TRUE)), paste0(
    "gpu_fit(batch_size = 100000, jit = TRUE)"
  ))
})

# Plots -------------------------------------------------------------------------------------------

test_that("a profile is plotted, and the device is left as it was", {
  local_device()
  before <- graphics::par("mar", "mfrow", "xpd")
  for (drawn in list(a_profile(), a_gpu_profile(), an_undetermined_profile())) {
    answer <- withVisible(plot(drawn))
    expect_identical(answer, list(value = drawn, visible = FALSE))
    plot(drawn, what = "step", main = "a title")
  }
  plot(a_profile(), what = "timeline", xlim = c(0, 1))
  expect_identical(graphics::par("mar", "mfrow", "xpd"), before)
})

test_that("what is not there cannot be plotted", {
  skip_outside_lane()
  local_device()
  expect_error(plot(a_profile(), what = "layers"), class = "gpukeras_error_spec")
  expect_error(plot(a_profile(), what = NULL), class = "gpukeras_error_spec")
  expect_error(plot(an_undetermined_profile(), what = "timeline"), class = "gpukeras_error_data")
  expect_snapshot(error = TRUE, {
    plot(a_profile(), what = "layers")
    plot(an_undetermined_profile(), what = "timeline")
  })
})

test_that("a step with parts that nobody knows is drawn whole", {
  shares <- drawn_shares(an_undetermined_profile())
  expect_equal(shares, c(input = 0.04, unknown = 0.96))
  expect_equal(sum(drawn_shares(a_profile())), 1)
})

test_that("of many lanes the busiest are drawn, in their order", {
  frame <- data.frame(
    lane = sprintf("lane %02d", 1:20), kind = c(rep("kernel", 19), "host"), begin_s = 0,
    end_s = c(1:19, 100)
  )
  lanes <- drawn_lanes(frame)
  expect_identical(as.vector(lanes), sprintf("lane %02d", c(20, 7:19)))
  expect_match(timeline_title(lanes), "6 lanes with less are left out", fixed = TRUE)
})

# How dichromats see colours: Machado, Oliveira and Fernandes (2009), severity 1.
dichromats <- list(
  protan = c(
    0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998
  ),
  deutan = c(
    0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881
  ),
  tritan = c(
    1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900
  )
)

test_that("every part has a colour of its own, also for the colour-blind", {
  linear <- (grDevices::col2rgb(step_colours[1:5]) / 255)^2.2
  for (kind in names(dichromats)) {
    seen <- matrix(dichromats[[kind]], 3, byrow = TRUE) %*% linear
    seen <- 255 * pmin(pmax(seen, 0), 1)^(1 / 2.2)
    lab <- grDevices::convertColor(t(seen) / 255, "sRGB", "Lab")
    expect_gt(min(stats::dist(lab)), 15, label = kind) # 2.3 is just noticeable
  }
})

test_that("autoplot() draws the step or the timeline", {
  skip_if_not_installed("ggplot2")
  local_device()
  step <- ggplot2::autoplot(a_profile())
  expect_equal(max(step$data$end), 2.34)
  expect_s3_class(ggplot2::ggplot_build(step), "ggplot_built")
  timeline <- ggplot2::autoplot(a_profile(), what = "timeline")
  expect_identical(nrow(timeline$data), length(a_timeline()))
  expect_equal(max(timeline$data$end), 4.7)
  expect_s3_class(ggplot2::ggplot_build(timeline), "ggplot_built")
  both <- c("step", "timeline")
  expect_error(ggplot2::autoplot(a_profile(), what = both), class = "gpukeras_error_spec")
  expect_snapshot(ggplot2::autoplot(a_profile(), what = both), error = TRUE)
})

# gpu_profile() -----------------------------------------------------------------------------------

test_that("options reach the core as they were given", {
  skip_without_tensorflow()
  train <- gpu_dataset(mpg ~ ., data = mtcars)
  model <- gpu_mlp(train)
  sent <- NULL
  local_core(function(name, args) {
    sent <<- c(list(entry = name), args)
    answer(a_profile_record())
  })
  expect_s3_class(gpu_profile(model, train, batch_size = 8, log_dir = "~/logs"), "gpu_profile")
  expect_identical(sent$entry, "profile")
  expect_identical(sent$data, train$handle)
  expect_identical(sent$options$batch_size, 8)
  expect_identical(sent$options$log_dir, path.expand("~/logs"))
  expect_false(sent$on_event(list(kind = "waiting")))
  gpu_profile(model, train)
  expect_null(sent$options$batch_size)
  expect_error(gpu_profile(model, train, log_dir = 1), class = "gpukeras_error_spec")
  expect_error(gpu_profile(model, train, steps = NA), class = "gpukeras_error_spec")
  expect_error(gpu_profile("model", train), class = "gpukeras_error_spec")
  expect_error(gpu_profile(model, mtcars), class = "gpukeras_error_data")
})

test_that("an interrupt ends a profile, and is one in R", {
  skip_without_tensorflow()
  train <- gpu_dataset(mpg ~ ., data = mtcars)
  model <- gpu_mlp(train)
  local_core(function(name, args) {
    rlang::interrupt() # waits until interrupts are let in
    if (args$on_event(list(kind = "waiting"))) stop("KeyboardInterrupt")
    answer(a_profile_record())
  })
  ended <- tryCatch(gpu_profile(model, train), interrupt = function(condition) "interrupted")
  expect_identical(ended, "interrupted")
})

test_that("an error in a function that makes rows is its own", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- failing_rows()
  model <- gpu_mlp(data, units = 4, seed = 1)
  before <- lapply(model$get_weights(), as_r)
  expect_error(gpu_profile(model, data, steps = 5), "no more files", class = "my_error")
  expect_identical(lapply(model$get_weights(), as_r), before)
})

test_that("a real profile adds up, leaves the model alone, and is plotted", {
  skip_without_tensorflow()
  silence_tensorflow()
  local_device()
  x <- a_matrix(2000, 20)
  data <- gpu_dataset(x, x[, 1], batch_size = 32, seed = 1)
  model <- gpu_mlp(data, units = c(64, 32), seed = 1)
  before <- lapply(model$get_weights(), as_r)
  folder <- withr::local_tempdir()
  profile <- gpu_profile(model, data, steps = 10, engine = "keras", log_dir = folder)
  expect_identical(lapply(model$get_weights(), as_r), before)
  expect_true(profile$verdict %in% c(
    "input-bound", "launch-bound", "compute-bound", "memory-bound", "undetermined"
  ))
  expect_identical(profile$engine, "keras")
  expect_identical(profile$batch_size, 32L)
  expect_identical(names(profile$shares), names(step_colours)[1:5])
  expect_equal(sum(profile$shares), 1, tolerance = 1e-6)
  layers <- as.data.frame(profile)
  expect_true(all(c("Dense") %in% layers$kind))
  kernels <- profile$shares[["kernels"]] * profile$step_s
  expect_equal(sum(layers$total_s), kernels, tolerance = 1e-6)
  expect_gt(nrow(as.data.frame(profile, what = "ops")), 0)
  expect_gt(nrow(as.data.frame(profile, what = "timeline")), 0)
  expect_true(length(list.files(folder, "[.]xplane[.]pb$", recursive = TRUE)) > 0)
  expect_identical(withVisible(plot(profile))$visible, FALSE)
  page <- gpu_report(profile, withr::local_tempfile(fileext = ".html"))
  expect_match(readLines(page), profile$verdict, all = FALSE, fixed = TRUE)
})

test_that("options are named as in R when they are refused", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- gpu_dataset(a_matrix(), a_matrix()[, 1])
  model <- gpu_mlp(data, units = 2)
  refused <- function(code, arg) {
    error <- expect_error(code, class = "gpukeras_error_spec")
    expect_identical(error$arg, arg)
  }
  refused(gpu_profile(model, data, steps = 0), "steps")
  refused(gpu_profile(model, data, engine = "fast"), "engine")
  refused(gpu_profile(model, data, verify = "yes"), "verify")
  refused(gpu_profile(model, data, batch_size = "big"), "batch_size")
})
