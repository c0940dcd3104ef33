test_that("schedules print what they do", {
  skip_without_core()
  expect_snapshot({
    schedule_one_cycle()
    schedule_one_cycle(max_rate = 0.01, pct_start = 0.25, anneal = "linear", warmup = 0.5)
    schedule_cyclic()
    schedule_cyclic(0.1, 0.01, "triangular2", step_size = 500, unit = "steps")
    schedule_cyclic(policy = "exp_range", step_size = 1)
    schedule_warmup_cosine()
    schedule_warmup_cosine(0.1, min_rate = 1e-4, warmup = 0, cycles = 3)
    schedule_exponential()
    schedule_exponential(0.1, decay = 0.5, every = 10, staircase = TRUE, min_rate = 1e-5)
    schedule_plateau()
    schedule_plateau(0.1, 1, monitor = "val_auc", min_rate = 1e-6)
    schedule_constant(0.01, warmup = 2, warmup_from = 0.1)
  })
})

test_that("a schedule is a plain list of its kind and all its options, and prints invisibly", {
  skip_without_core()
  schedule <- schedule_warmup_cosine(max_rate = 0.1)
  expect_s3_class(schedule, c("gpu_schedule", "gpu_result"), exact = TRUE)
  plain <- unclass(schedule)
  expect_setequal(
    names(plain), c("kind", "warmup", "warmup_from", "max_rate", "min_rate", "cycles")
  )
  expect_identical(plain[c("kind", "max_rate", "warmup")], list(
    kind = "warmup_cosine", max_rate = 0.1, warmup = 1
  ))
  expect_output(expect_identical(expect_invisible(print(schedule)), schedule), "<gpu_schedule>")
})

test_that("options that cannot be are refused by name", {
  skip_outside_lane()
  skip_without_core()
  expect_snapshot(error = TRUE, schedule_one_cycle(max_rate = -1))
  expect_snapshot(error = TRUE, schedule_one_cycle(anneal = "exp"))
  expect_snapshot(error = TRUE, schedule_cyclic(policy = "square"))
  expect_snapshot(error = TRUE, schedule_cyclic(step_size = 0))
  expect_snapshot(error = TRUE, schedule_warmup_cosine(cycles = 1.5))
  expect_snapshot(error = TRUE, schedule_exponential(decay = 2))
  expect_snapshot(error = TRUE, schedule_exponential(staircase = NA))
  expect_snapshot(error = TRUE, schedule_plateau(factor = 1))
  expect_snapshot(error = TRUE, schedule_plateau(monitor = c("loss", "mae")))
  expect_snapshot(error = TRUE, schedule_constant(warmup = -1))
})

test_that("an error has its class and the argument's name", {
  skip_without_core()
  bad <- list(
    max_rate = function() schedule_one_cycle(max_rate = "high"),
    pct_start = function() schedule_one_cycle(pct_start = NULL),
    min_rate = function() schedule_cyclic(min_rate = Inf),
    gamma = function() schedule_cyclic(gamma = c(0.9, 0.8)),
    cycles = function() schedule_warmup_cosine(cycles = NA),
    rate = function() schedule_constant(TRUE),
    warmup_from = function() schedule_constant(warmup_from = 2)
  )
  for (arg in names(bad)) {
    error <- expect_error(bad[[arg]](), class = "gpukeras_error_spec")
    expect_identical(error$arg, arg)
  }
})

# What plot() draws, in the words of a recording of the page.
drawn <- function(schedule, ...) {
  grDevices::pdf(NULL)
  on.exit(grDevices::dev.off())
  grDevices::dev.control(displaylist = "enable")
  expect_identical(expect_invisible(plot(schedule, ...)), schedule)
  calls <- grDevices::recordPlot()[[1]]
  names <- vapply(calls, function(call) call[[2]][[1]]$name %||% "", "")
  points <- calls[[which(names == "C_plotXY")[1]]][[2]][[2]]
  list(x = points$x, y = points$y)
}

test_that("a plot shows the rates that a training would have", {
  skip_without_core()
  line <- drawn(schedule_exponential(decay = 0.5), epochs = 3, steps_per_epoch = 4, rate = 0.1)
  expect_equal(line$x, 0:11 / 4)
  expect_equal(line$y, 0.1 * 0.5^(0:11 / 4), tolerance = 1e-6)
  line <- drawn(schedule_one_cycle(max_rate = 1), epochs = 1000, col = "red", main = "A title")
  expect_length(line$x, 5000)
  expect_equal(max(line$y), 1, tolerance = 1e-4)
})

test_that("a plot of what cannot be drawn is refused", {
  skip_without_core()
  expect_snapshot(error = TRUE, plot(schedule_constant(warmup = 10), epochs = 10))
  expect_snapshot(error = TRUE, plot(schedule_constant(), epochs = 0))
  expect_snapshot(error = TRUE, plot(schedule_constant(), rate = NA))
  expect_snapshot(error = TRUE, plot(schedule_exponential(min_rate = 0.1)))
})
