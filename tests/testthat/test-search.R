# Records ------------------------------------------------------------------------------------------

test_that("a search prints its best trial, and how many went how far", {
  build <- function(units) NULL
  sizes <- a_tuning_record(best = list(
    trial = 2L, epochs = 3L, value = 0.9, std_err = NULL,
    settings = list(units = list(64, 32), batch_size = 16L)
  ), metric = "val_accuracy", mode = "max", resamples = list("validation"), stopped = "time")
  expect_snapshot({
    print(a_tuning(folder = "study"))
    print(new_gpu_tuning(sizes, build, c("units", "batch_size")))
    print(no_tuning())
  })
})

test_that("settings of the best trial are those that the builder takes", {
  record <- a_tuning_record()
  record$best$settings$batch_size <- 16L
  best <- new_gpu_tuning(record, function(units) NULL, "units")$best
  expect_identical(best$settings, list(units = 8L))
  expect_identical(best$batch_size, 16L)
  best <- new_gpu_tuning(record, function(...) NULL, "units")$best
  expect_named(best$settings, c("units", "optimizer", "batch_size"))
})

test_that("the trace is a data frame with a row a trial and number of epochs", {
  expect_identical(as.data.frame(a_tuning()), data.frame(
    trial = c(1L, 1L, 2L, 3L, 4L), units = c(8L, 8L, 32L, 2L, 16L),
    optimizer = c("adam", "adam", "sgd", "sgd", "sgd"), epochs = c(1L, 3L, 1L, 1L, 1L),
    val_loss = c(0.25, 0.5, 0.75, NA, 1.25), std_err = c(0.01, 0.01, 0.01, NA, 0.01),
    seconds = 0.5, error = c("", "", "", "too few", "")
  ))
  empty <- as.data.frame(no_tuning())
  expect_identical(dim(empty), c(0L, 7L))
})

test_that("a summary has the best result of each trial, the best first", {
  trials <- summary(a_tuning())$trials
  expect_identical(trials$trial, c(1L, 2L, 4L))
  expect_identical(trials$val_loss, c(0.25, 0.75, 1.25))
  expect_identical(summary(a_tuning(mode = "max"))$trials$trial, c(4L, 2L, 1L))
  expect_snapshot({
    summary(a_tuning())
    summary(no_tuning())
  })
  trace <- lapply(1:7, function(i) a_trace_row(i, 1L, 8L, "sgd", i))
  expect_output(print(summary(a_tuning(trace = trace))), "... and 2 more: $trials", fixed = TRUE)
})

test_that("a search that was not saved to its end is a classed warning, and is printed as such", {
  record <- a_tuning_record(folder = "study", unsaved = "`folder` cannot be written: full.")
  expect_snapshot(tuning <- new_gpu_tuning(record, function(...) NULL, "units"))
  expect_output(print(tuning), "study, which lacks some trials", fixed = TRUE)
  expect_warning(
    new_gpu_tuning(record, function(...) NULL, "units"),
    class = "gpukeras_warning_checkpoint"
  )
})

test_that("a search whose trials all failed warns, and says why", {
  trace <- lapply(1:2, function(i) {
    a_trace_row(i, 1L, 8L, "sgd", NULL, metrics = list(), std_err = NULL, error = "no number")
  })
  record <- a_tuning_record(
    trace = trace, trials = 2L, failed = 2L,
    notes = list("2 trials failed, first trial 1: `val_loss` is not finite.")
  )
  record["best"] <- list(NULL)
  expect_snapshot(tuning <- new_gpu_tuning(record, function(...) NULL, "units"))
  expect_null(tuning$best)
})

test_that("a line for each result", {
  event <- list(
    kind = "trial", trial = 3L, trials = 20L, epochs = 9L, metric = "val_loss", error = "",
    value = 0.123456, best = 0.1
  )
  expect_snapshot({
    show_trial(event)
    show_trial(utils::modifyList(event, list(error = "`builder` failed: too wide", epochs = 1L)))
  })
})

test_that("at a terminal the results have a bar that counts epochs", {
  withr::local_options(
    cli.dynamic = TRUE, cli.progress_show_after = 0, cli.progress_handlers_force = "logger"
  )
  event <- list(
    kind = "trial", trial = 3L, trials = 20L, epochs = 9L, metric = "val_loss", error = "",
    value = 0.123456, best = 0.1, step = 30L, steps = 120L
  )
  run <- function(verbose) invisible(trial_listener(verbose, call = environment())(event))
  lines <- capture.output(suppressMessages(run(TRUE)))
  expect_match(lines[1], "0/120 created")
  expect_match(lines[length(lines)], "30/120 terminated")
  expect_silent(run(FALSE))
  withr::local_options(cli.dynamic = FALSE)
  expect_output(run(TRUE), "^trial 3/20  9 epochs")
})

test_that("R's generator is seeded for a call, and left as it was", {
  set.seed(1)
  before <- .Random.seed
  drawn <- with_seed(7, runif(1))
  expect_identical(.Random.seed, before)
  set.seed(7)
  expect_identical(drawn, runif(1))
})

test_that("a builder is recognised by its code, whatever its spaces and comments", {
  one <- function(x) x + 1
  other <- function(x) {
    x + 2
  }
  commented <- eval(parse(text = "function(x) # adds\n  x  +  1", keep.source = TRUE))
  expect_identical(deparse_builder(one), deparse_builder(commented))
  expect_false(deparse_builder(one) == deparse_builder(other))
})

# Refusals -----------------------------------------------------------------------------------------

test_that("settings that a builder does not take, or lacks, are refused", {
  skip_without_tensorflow()
  data <- line(20)
  tune <- function(builder, ...) gpu_tune(data, builder, ...)
  build <- function(units, rate = 0.1) NULL
  when <- list(kind = "deep")
  expect_snapshot(error = TRUE, {
    gpu_tune(1:3, build, units = tune_values(1, 2))
    tune("build", units = 1)
    tune(build, unit = 1)
    tune(build, rate = 1)
    tune(build, units = tune_range(1, 2, when = when), kind = tune_values("deep", "wide"))
    tune(function(units, kind) NULL, units = tune_range(1, 2, when = when), kind = "deep")
    tune(build, rate = 1, grid = data.frame(unit = 1))
    tune(build, units = 1, verbose = NA)
    tune(build, units = 1, fit = "keras")
    tune(build, 1)
  })
  expect_error(tune(build, rate = 1), class = "gpukeras_error_spec")
  expect_silent(check_builder(build, list(units = tune_range(1, 2)), data.frame(batch_size = 8)))
  expect_silent(check_builder(function(...) NULL, list(units = tune_range(1, 2)), NULL))
})

# Real searches ------------------------------------------------------------------------------------

test_that("a search finds settings, outlives failing builders, and goes on in its folder", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- gpu_dataset(mpg ~ ., mtcars, batch_size = 16, seed = 1)
  called <- 0
  build <- function(units, rate = 0.01) {
    called <<- called + 1
    if (units == 3) stop("three is too few")
    gpu_mlp(data, units = units, learning_rate = rate)
  }
  folder <- withr::local_tempfile()
  tune <- function(...) {
    gpu_tune(
      data, build,
      grid = data.frame(units = c(3L, 4L, 5L)), ..., epochs = 2, eta = 2, seed = 1,
      fit = list(engine = "graph_loop"), folder = folder
    )
  }
  said <- capture.output(first <- tune(resamples = 2))
  frame <- as.data.frame(first)
  expect_length(said, nrow(frame))
  failure <- "trial 1/3  1 epoch  failed: `builder` failed: three is too few"
  expect_match(said[1], failure, fixed = TRUE)
  expect_identical(frame$units[frame$epochs == 1], 3:5)
  expect_identical(first$failed, 1L)
  best <- frame[which.min(frame$val_loss), ]
  expect_identical(first$best$settings, list(units = best$units))
  expect_identical(c(first$best$value, first$best$epochs), c(best$val_loss, best$epochs))
  expect_length(first$resamples, 2)

  before <- called
  expect_silent(again <- tune(resamples = 2, verbose = FALSE))
  expect_lte(called - before, 2) # for the metrics of a model
  expect_identical(as.data.frame(again), frame)
  expect_identical(again$best, first$best)
  expect_snapshot(tune(resamples = 3), error = TRUE, transform = function(lines) {
    gsub("'[^']*'|/[^ ]*file[0-9a-f]+", "'FOLDER'", lines)
  })
})

test_that("workers find what one model after another finds, with builders of R", {
  skip_unless_nightly()
  silence_tensorflow()
  data <- gpu_dataset(mpg ~ ., mtcars, batch_size = 16, seed = 1)
  tune <- function(workers) {
    gpu_tune(
      data, function(units) gpu_mlp(data, units = units), grid = data.frame(units = c(2, 4, 6)),
      epochs = 2, resamples = 2, seed = 1, most = 1, workers = workers, verbose = FALSE
    )
  }
  beside <- tune(2)
  expect_match(beside$together, "3 trials in 2 worker processes")
  columns <- c("trial", "epochs", "val_loss")
  expect_equal(
    as.data.frame(beside)[columns], as.data.frame(tune(1))[columns],
    tolerance = 1e-5
  )
  fits <- gpu_fit_many(data, function(units) gpu_mlp(data, units = units),
    grid = data.frame(units = c(2, 4)), epochs = 1, most = 1, workers = 2, verbose = FALSE
  )
  expect_match(fits$plan$reason, "2 models in 2 worker processes")
  expect_identical(nrow(gpu_predict(fits, mtcars[1:3, ])), 3L)
})

test_that("rsample's folds, R's own errors and interrupts come through", {
  skip_without_tensorflow()
  skip_if_not_installed("rsample")
  silence_tensorflow()
  data <- gpu_dataset(mpg ~ ., mtcars, batch_size = 16, seed = 1)
  set.seed(1)
  folds <- rsample::vfold_cv(mtcars, v = 2)
  tune <- function(builder, ..., resamples = folds) {
    gpu_tune(data, builder,
      units = tune_values(2L, 4L, 6L), epochs = 1, resamples = resamples, seed = 1,
      fit = list(engine = "graph_loop"), ..., verbose = FALSE
    )
  }
  calls <- 0
  interrupting <- function(units) {
    calls <<- calls + 1
    if (calls == 3) rlang::interrupt()
    gpu_mlp(data, units = units)
  }
  found <- tune(interrupting)
  expect_identical(found$resamples, c("Fold1", "Fold2"))
  expect_identical(found$stopped, "interrupted")
  expect_lt(nrow(as.data.frame(found)), 3)
  expect_error(tune(function(units) stop("no layer")), "no layer", class = "simpleError")
  expect_error(tune(function(units) 1, resamples = NA), class = "gpukeras_error_spec")
  expect_error(tune(function(units) 1, metric = 3), class = "gpukeras_error_spec")
})
