# Each training runs in a process of its own, which it ends.

train_and_signal <- function(folder, signal) {
  c(
    "library(gpukeras)",
    "invisible(gpu_setup(seed = 1))",
    "train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8, seed = 1)",
    "model <- gpu_mlp(train, units = 4, seed = 1)",
    sprintf("folder <- '%s'", folder),
    "closed <- file.path(dirname(folder), 'closed')",
    "reg.finalizer(globalenv(), function(e) file.create(closed), onexit = TRUE)",
    "first <- !file.exists(folder)",
    sprintf(
      "ask <- function(epoch) if (first && epoch == 2) tools::pskill(Sys.getpid(), %s)", signal
    ),
    "fit <- gpu_fit(model, train, epochs = 4, checkpoint = list(folder = folder, grace_s = 60),",
    "  on_epoch_end = ask, verbose = FALSE)",
    "writeLines(fit$notes)"
  )
}

test_that("a session whose training was asked to end goes on when it is run again", {
  skip_without_tensorflow()
  skip_on_os("windows")
  top <- withr::local_tempdir()
  script <- train_and_signal(file.path(top, "run"), "tools::SIGUSR1")
  first <- start_r(script)
  expect_identical(first$status, 75L, info = readLines(first$err))
  expect_true(file.exists(file.path(top, "closed"))) # R has ended as ever
  said <- readLines(first$err)
  said <- said[cumsum(grepl("asked to end", said)) > 0]
  expect_snapshot(writeLines(plain_bullets(sub("[0-9.]+ s after", "<seconds> s after", said))))
  second <- start_r(script)
  expect_identical(second$status, 0L, info = readLines(second$err))
  expect_identical(rev(readLines(second$out))[1], "Resumed after epoch 2, from its checkpoint.")
})

test_that("R's own handler is back after a training", {
  skip_without_tensorflow()
  skip_on_os("windows")
  skip_unless_nightly()
  top <- withr::local_tempdir()
  withr::local_dir(top) # where R saves its workspace
  lines <- c(
    train_and_signal(file.path(top, "run"), "0L"),
    "tools::pskill(Sys.getpid(), tools::SIGUSR1)", "Sys.sleep(60)"
  )
  found <- start_r(lines)
  expect_identical(found$status, 2L, info = readLines(found$err))
  expect_true(file.exists(".RData"))
})

test_that("a training that could not be saved in time does not start", {
  skip_without_tensorflow()
  train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8, seed = 1)
  folder <- file.path(withr::local_tempdir(), "run")
  expect_snapshot(
    gpu_fit(
      gpu_mlp(train, units = 4), train,
      checkpoint = list(folder = folder, grace_s = 1), verbose = FALSE
    ),
    error = TRUE, transform = function(lines) sub("twice the [0-9.]+", "twice the <seconds>", lines)
  )
})

test_that("many models and searches that could not be saved in time do not start", {
  skip_without_tensorflow(slow = TRUE)
  train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8, seed = 1)
  build <- function(rate) gpu_mlp(train, units = 4, learning_rate = rate, seed = 1)
  top <- withr::local_tempdir()
  keep <- function(name, ...) list(folder = file.path(top, name), ...)
  fit_many <- function(kept) {
    gpu_fit_many(train, build(0.1), seeds = 2, epochs = 1, checkpoint = kept, verbose = FALSE)
  }
  tune <- function(kept) {
    gpu_tune(
      train, build,
      rate = tune_values(0.01, 0.1), resamples = 2, epochs = 1, folder = kept, seed = 1,
      verbose = FALSE
    )
  }
  said <- function(what) {
    sprintf("`grace_s` is 1 second, and 3 are needed: twice the .* a save of this %s takes", what)
  }
  spec <- "gpukeras_error_spec"
  expect_error(fit_many(keep("fits", grace_s = 1)), said("training"), class = spec)
  expect_error(tune(keep("study", grace_s = 1)), said("search"), class = spec)
  expect_identical(fit_many(keep("fits", grace_s = 60))$table$stopped, rep("completed", 2))
  expect_identical(tune(keep("study", grace_s = 60))$stopped, "completed")
  expect_error(fit_many(keep("fits", grace_s = "a")), "`grace_s` must be a number", class = spec)
  expect_error(tune(keep("study", grace_s = -1)), "`grace_s` must be a number", class = spec)
  expect_error(fit_many(keep("fits", keep = 3)), "Options are `folder` and `grace_s`", class = spec)
  expect_error(tune(list(grace_s = 60)), "`folder` must be the path of a folder", class = spec)
  expect_error(tune(keep("study", grace_s = NA)), "`folder` must be a value", class = spec)
})
