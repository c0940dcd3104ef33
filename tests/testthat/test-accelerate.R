# accelerate(): scripts of keras3 run unchanged.

a_call <- function(...) {
  record <- list(
    `function` = "fit", model = "sequential", engine = "gpukeras",
    reason = "superstep: 210 us a batch", rows = 60000L, seconds = 1.234
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

test_that("the report says who ran each call, and why", {
  records <- list(
    a_call(),
    a_call(`function` = "predict", engine = "keras", reason = "a single batch", rows = 8L),
    a_call(engine = "keras", reason = "Python makes the batches one by one", rows = NULL)
  )
  expect_snapshot({
    print(new_accelerate_report(records))
    print(new_accelerate_report(list()))
    print(new_accelerate_report(records[1]))
    print(new_accelerate_report(records)[c("call", "engine")])
  })
  found <- new_accelerate_report(records)
  expect_s3_class(found, c("gpu_accelerate", "gpu_result", "data.frame"), exact = TRUE)
  expect_named(found, c("call", "model", "engine", "reason", "rows", "seconds"))
  expect_identical(found$rows, c(60000, 8, NA))
})

test_that("other values are refused", {
  expect_snapshot(error = TRUE, {
    accelerate("yes")
    accelerate_report(NA)
  })
})

test_that("a model's own fit() runs through gpukeras, and Keras' afterwards", {
  skip_without_tensorflow()
  withr::defer(accelerate(FALSE))
  expect_false(accelerate())
  expect_true(accelerate())
  x <- a_matrix(3300)
  model <- a_model(3, 1, "linear", loss = "mse", metrics = list())
  history <- model$fit(x, array(x[, 1]), verbose = 0L)
  expect_length(as_r(history$history)$loss, 1)
  report <- accelerate_report(clear = TRUE)
  expect_identical(report$engine, "gpukeras")
  expect_identical(report$rows, 3300)
  accelerate(FALSE)
  model$fit(x, array(x[, 1]), verbose = 0L)
  expect_identical(nrow(accelerate_report()), 0L)
})
