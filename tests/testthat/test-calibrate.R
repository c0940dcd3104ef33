test_that("calibrations print by their kind", {
  record <- function(...) new_gpu_calibration(list(rows = 1200L, part = "validation", ...))
  expect_snapshot({
    record(kind = "numbers", temperature = 1, log_loss = list(), error = list(), width = 2.3456)
    record(kind = "quantiles", width = -0.25)
    record(kind = "numbers", width = NULL)
    record(
      kind = "classes", temperature = 1.6789, log_loss = list(0.75, 0.5), error = list(0.1, 0.02)
    )
  })
})

test_that("a calibrated model predicts intervals, in a fresh session too", {
  skip_without_tensorflow()
  frame <- data.frame(x = sin(1:200), z = cos(1:200))
  frame$y <- frame$x + frame$z^2
  data <- gpu_dataset(y ~ ., frame, validation = 0.5, seed = 1)
  model <- trained(data)
  new <- frame[1:7, c("x", "z")]
  expect_snapshot(gpu_predict(model, new, interval = 0.9), error = TRUE)
  calibration <- gpu_calibrate(model, data)
  expect_identical(calibration$rows, 100L)
  found <- gpu_predict(model, new, interval = 0.9)
  expect_named(found, c(".pred", ".pred_lower", ".pred_upper"))
  expect_equal(found$.pred, gpu_predict(model, new), tolerance = 1e-6)
  expect_equal(found$.pred_upper - found$.pred, rep(calibration$width, 7))
  expect_equal(gpu_predict(model, x = new, interval = 0.9), found)
  inside <- gpu_predict(model, frame, interval = 0.8)
  expect_gte(mean(inside$.pred_lower <= frame$y & frame$y <= inside$.pred_upper), 0.7)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  expect_equal(gpu_predict(gpu_load(path), new, interval = 0.9), found)
  expect_snapshot(error = TRUE, {
    gpu_predict(model, new, interval = 0.995)
    gpu_predict(model, new, interval = 90)
    gpu_predict(model, new, type = "class", interval = 0.9)
    gpu_calibrate(model, new)
    gpu_calibrate(model, frame, quantiles = c(0.9, 0.1))
  })
})

test_that("a calibration on training rows is told so", {
  skip_without_tensorflow()
  data <- gpu_dataset(dist ~ speed + I(speed^2 / 100), cars, validation = 0.4, seed = 1)
  model <- trained(data)
  expect_snapshot({
    gpu_calibrate(model, data)
    gpu_calibrate(model, data, part = "train")
    gpu_calibrate(model, cars)
  })
  expect_warning(gpu_calibrate(model, cars), class = "gpukeras_warning_training_rows")
  expect_snapshot(new_gpu_calibration(list(
    kind = "classes", rows = 40L, part = "all", trained = 1, temperature = 1,
    log_loss = list(0.1, 0.1), error = list(0, 0)
  )))
})
