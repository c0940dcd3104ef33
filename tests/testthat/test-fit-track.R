# Trainings recorded in folders; trackers that fail are tests of the core, MLflow in test_mlflow_run.

test_that("a gpu_track says where it records", {
  expect_snapshot({
    gpu_track("mlflow", uri = "http://127.0.0.1:5000", experiment = "cars", model = FALSE)
    gpu_track("mlflow")
  })
  expect_snapshot(error = TRUE, {
    open_tracking(TRUE, NULL, list())
    gpu_track(run = NA_character_)
  })
})

test_that("options become parameters, and NULL none", {
  found <- as_parameters(list(
    epochs = 3L, ema = NULL, engine = "auto", early_stopping = list(patience = 2, mode = "min"),
    schedule = list(kind = "steps", at = c(5, 10))
  ))
  expect_identical(found[-length(found)], list(
    epochs = 3, engine = "auto", early_stopping.patience = 2, early_stopping.mode = "min",
    schedule.kind = "steps", schedule.at = "5, 10"
  ))
  expect_named(found[length(found)], "gpukeras")
})

test_that("gpu_fit() records a training, and one that fails, and warns about a tracker's fault", {
  skip_without_tensorflow()
  silence_tensorflow()
  folder <- withr::local_tempdir()
  data <- gpu_dataset(mpg ~ ., mtcars)
  model <- gpu_mlp(data, units = 3, seed = 1)
  fit <- gpu_fit(model, data, epochs = 2, track = folder, verbose = FALSE)
  run <- fit$tracking$where
  expect_setequal(
    dir(run),
    c("parameters.json", "metrics.csv", "result.json", "model.keras", "history.png")
  )
  expect_identical(utils::read.csv(file.path(run, "metrics.csv"))$loss, fit$history$loss)
  expect_output(print(fit), basename(run), fixed = TRUE)
  result <- jsonlite::read_json(file.path(run, "result.json"))
  expect_identical(result$trained_batch_size, fit$plan$batch_size)
  expect_identical(result[c("rows", "trained_rows", "epochs")], list(
    rows = nrow(mtcars), trained_rows = 2L * nrow(mtcars), epochs = 2L
  ))
  expect_true("best_epoch" %in% names(result) && is.null(result$best_epoch))
  lines <- readLines(file.path(run, "parameters.json"))
  expect_match(lines, '"epochs": 2,', fixed = TRUE, all = FALSE)
  kept <- gpu_load(file.path(run, "model.keras"))
  expect_identical(gpu_predict(kept, mtcars), gpu_predict(model, mtcars))
  saved <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, saved, history = fit, verbose = FALSE)
  expect_equal(read_history(saved)$history, fit$history, tolerance = 1e-12)

  track <- gpu_track("csv", folder, run = "failed", model = FALSE)
  fail <- function(epoch, metrics) stop("no more")
  expect_error(
    gpu_fit(model, data, epochs = 2, track = track, on_epoch_end = fail, verbose = FALSE), "no more"
  )
  result <- jsonlite::read_json(file.path(folder, "failed", "result.json"))
  expect_identical(result, list(status = "failed"))

  track$run <- "gone"
  vanish <- function(epoch, metrics) unlink(file.path(folder, "gone"), recursive = TRUE)
  expect_warning(
    fit <- gpu_fit(model, data, epochs = 3, track = track, on_epoch_end = vanish, verbose = FALSE),
    class = "gpukeras_warning_tracking"
  )
  expect_identical(fit$stopped, "completed")
  expect_match(fit$tracking$fault, "failed: FileNotFoundError")
})

test_that("what ended a tracker is one warning, and the history is there", {
  local_answer(list(where = "runs/1", fault = "epoch 2 failed: OSError: No space left on device"))
  expect_snapshot(fit <- fit_with_tracking(list(handle = 1, model = NULL), history(best_epoch = 0L)))
  expect_identical(fit$tracking$where, "runs/1")
})
