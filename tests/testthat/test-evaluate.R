test_that("evaluation takes a dataset and its parts, a data frame, or a matrix with labels", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  data <- gpu_dataset(y ~ ., frame, validation = 0.25, seed = 1)
  model <- trained(data)
  all <- gpu_evaluate(model, data)
  expect_named(all, c("loss", "mean_absolute_error"))
  expect_equal(gpu_evaluate(model, frame), all, tolerance = 1e-5)
  train <- gpu_evaluate(model, data, part = "train")
  validation <- gpu_evaluate(model, data, part = "validation")
  expect_equal(0.75 * train + 0.25 * validation, all, tolerance = 1e-5)
  x <- a_matrix()
  y <- x[, 1]
  plain <- trained(gpu_dataset(x, y))
  expected <- mean((gpu_predict(plain, x) - y)^2)
  expect_equal(gpu_evaluate(plain, x, y)[["loss"]], expected, tolerance = 1e-4)
  expect_equal(gpu_evaluate(plain, list(x, y))[["loss"]], expected, tolerance = 1e-4)
})

test_that("evaluation does not depend on the batch size", {
  skip_without_tensorflow(slow = TRUE)
  data <- line()
  model <- trained(data)
  expect_equal(
    gpu_evaluate(model, data, batch_size = 7L), gpu_evaluate(model, data),
    tolerance = 1e-5
  )
})

test_that("evaluation trains nothing", {
  skip_without_tensorflow()
  data <- line()
  model <- trained(data)
  before <- gpu_predict(model, a_matrix(5))
  gpu_evaluate(model, data)
  expect_identical(gpu_predict(model, a_matrix(5)), before)
})

test_that("Keras callbacks hear of an evaluation and a prediction, as of one batch", {
  skip_without_tensorflow()
  data <- line()
  model <- trained(data)
  heard <- character()
  note <- function(name) {
    force(name)
    function(...) heard <<- c(heard, name)
  }
  hooks <- c("on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end")
  hooks <- c(hooks, sub("test", "predict", hooks))
  listener <- do.call(
    import_keras()$callbacks$LambdaCallback, lapply(stats::setNames(hooks, hooks), note)
  )
  gpu_evaluate(model, data, callbacks = list(listener))
  gpu_predict(model, a_matrix(5), callbacks = list(listener))
  expect_equal(heard, hooks)
  functions <- list(on_epoch_end = function(epoch) NULL)
  expect_snapshot(gpu_evaluate(model, data, callbacks = functions), error = TRUE)
  expect_snapshot(gpu_predict(model, a_matrix(5), callbacks = functions), error = TRUE)
})
