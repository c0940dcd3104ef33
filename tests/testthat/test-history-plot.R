test_that("a metric that is not there is refused, and a history without values", {
  skip_outside_lane()
  for (fit in list(history(), rbind(history(), history()))) {
    error <- expect_error(plot(fit, metric = "auc"), class = "gpukeras_error_spec")
    expect_identical(error$arg, "metric")
  }
  expect_error(plot(no_epochs()), class = "gpukeras_error_data")
  expect_snapshot(error = TRUE, {
    plot(history(), metric = "auc")
    plot(no_epochs())
  })
})

test_that("plot() draws any history and leaves the device as it was", {
  local_device()
  graphics::par(mfrow = c(1, 2))
  before <- graphics::par("mfrow", "mar")
  names <- c("loss", letters, LETTERS[1:3])
  many <- do.call(history_of, rlang::set_names(rep(list(1:40), 30), names))
  broken <- history_of(loss = c(NaN, Inf), accuracy = c(1, NaN))
  for (drawn in list(
    full_history(), history_of(loss = 0.5), many, broken,
    history(resumed_epochs = 1L, best_epoch = 2L),
    rbind(a = history(), b = broken), rbind(history_of(loss = 1), no_epochs())
  )) {
    answer <- withVisible(plot(drawn))
    expect_identical(answer$value, drawn)
    expect_false(answer$visible)
    expect_identical(graphics::par("mfrow", "mar"), before)
  }
  expect_silent(plot(history(), metric = "loss", log = "y", xlab = "pass"))
})

test_that("the best epoch is the one restored, else that of the lowest validation loss", {
  expect_equal(best_epoch(history(best_epoch = 2L)), 2)
  expect_equal(best_epoch(history(best_epoch = 0L)), 3)
  expect_null(best_epoch(history_of(loss = 1:3)))
  expect_length(best_epoch(history_of(loss = 1, val_loss = NaN)), 0)
  expect_equal(resumed_at(history(resumed_epochs = 2L)), 2.5)
  expect_null(resumed_at(history()))
})

test_that("autoplot() has a value for each epoch, metric and part", {
  skip_outside_lane()
  skip_if_not_installed("ggplot2")
  drawn <- ggplot2::autoplot(history())
  expect_s3_class(drawn, "ggplot")
  expect_identical(nrow(drawn$data), 12L)
  validation <- drawn$data$metric == "accuracy" & drawn$data$data == "validation"
  expect_identical(drawn$data$value[validation], c(0.25, 0.5, 0.75))
  only <- ggplot2::autoplot(history(), metric = "loss")
  expect_identical(unique(as.character(only$data$metric)), "loss")
  local_device()
  broken <- history_of(loss = c(1, NaN))
  for (fit in list(history_of(loss = 1), broken, history(resumed_epochs = 1L))) {
    expect_silent(print(ggplot2::autoplot(fit)))
  }
})
