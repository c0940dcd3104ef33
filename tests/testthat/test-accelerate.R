# accelerate(): scripts of keras3 run unchanged.

a_call <- function(...) {
  record <- list(
    `function` = "fit", model = "sequential", engine = "gpukeras",
    reason = "graph_loop: 210 us a batch", rows = 60000L, seconds = 1.234
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

test_that("the report says who ran each call, and why", {
  skip_outside_lane()
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
    print(new_accelerate_report(list(), on = FALSE, note = "accelerate() is off."))
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

test_that("it waits for Python, and for Keras that comes after TensorFlow", {
  skip_without_tensorflow(slow = TRUE)
  found <- in_new_session(function() {
    library(gpukeras)
    before <- c(accelerate(), accelerate(), accelerate(FALSE), accelerate())
    waiting <- accelerate_report()
    started <- reticulate::py_available(initialize = FALSE)
    # as reticulate::py_module_available() and a pipeline of tfdatasets do
    reticulate::import("importlib.util")$find_spec("keras")
    tf <- reticulate::import("tensorflow")
    tf$data$Dataset$range(3L)
    ready <- accelerate_report()
    keras <- reticulate::import("keras")
    layers <- list(keras$layers$Input(list(3L)), keras$layers$Dense(1L))
    model <- keras$Sequential(layers)
    model$compile(optimizer = "sgd", loss = "mse")
    x <- matrix(rnorm(9600), ncol = 3)
    model$fit(x, array(x[, 1]), verbose = 0L)
    report <- accelerate_report()
    keras$Model$fit <- keras$Model$evaluate # as another package would
    lost <- rlang::catch_cnd(accelerate_report(), "gpukeras_warning_accelerate")
    list(
      before = before, waiting = attributes(waiting)[c("on", "note")], started = started,
      ready = attr(ready, "note"), engine = report$engine, note = attr(report, "note"),
      lost = conditionMessage(lost)
    )
  })
  expect_identical(found$before, c(FALSE, TRUE, TRUE, FALSE))
  expect_identical(
    found$waiting, list(on = TRUE, note = "accelerate() is on, and Python has not started yet.")
  )
  expect_false(found$started)
  expect_identical(found$ready, "") # TensorFlow imports Keras
  expect_identical(found$engine, "gpukeras")
  expect_identical(found$note, "")
  expect_identical(
    found$lost, "accelerate() is on, but another package has replaced Keras' fit()."
  )
})

test_that("what Python lacks is said when it starts, and lets it start", {
  skip_without_tensorflow()
  withr::defer({
    the$missing <- list()
    the$accelerate <- FALSE
  })
  the$accelerate <- TRUE
  the$missing <- list(list(wanted = "keras>=3.0", found = ""))
  expect_snapshot(start_accelerating(), transform = function(lines) {
    sub("^i .*", "i HINT", gsub(python_path(), "PYTHON", lines, fixed = TRUE)) # missing_hint()
  })
  expect_false(the$accelerate)
})
