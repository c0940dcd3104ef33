# keras3's own verbs under accelerate().

test_that("a script of keras3 gives the same, and the report says through what", {
  skip_without_keras3()
  withr::defer(accelerate(FALSE))
  x <- a_matrix(3300)
  y <- as.numeric(x[, 1] > 0)
  run <- function() {
    keras3::set_random_seed(1)
    model <- keras3_model(3, 1, "sigmoid", "binary_crossentropy", "accuracy")
    seen <- character()
    note <- keras3::callback_lambda(
      on_epoch_end = function(epoch, logs) seen <<- c(seen, paste(epoch, names(logs)))
    )
    history <- keras3::fit(
      model, x, y,
      epochs = 2, verbose = 0, validation_split = 0.2, callbacks = list(note),
      class_weight = list(`0` = 1, `1` = 2)
    )
    list(
      history = as.data.frame(history), params = history$params, seen = seen,
      values = keras3::evaluate(model, x, y, verbose = 0), predicted = predict(model, x, verbose = 0)
    )
  }
  known <- run()
  accelerate()
  accelerate_report(clear = TRUE)
  found <- run()
  expect_identical(accelerate_report(clear = TRUE)$engine, rep("gpukeras", 3))
  expect_equal(found, known, tolerance = 1e-5)
})
