history <- function(...) new_gpu_history(a_report(...))

test_that("a history prints what was trained, where, how fast and why so", {
  expect_snapshot(print(history()))
})

test_that("a history prints how the training ended", {
  expect_snapshot({
    cat(format(history(stopped = "early"))[1])
    cat(format(history(stopped = "interrupted", epochs = 1L))[1])
  })
})

test_that("a history of a GPU prints its peak memory", {
  gpu <- history(
    device = "GPU:0", precision = "mixed_bfloat16", peak_bytes = 3.5 * 2^30,
    variables = list(`GPU:0` = 6L, `CPU:0` = 1L)
  )
  expect_snapshot(print(gpu))
})

test_that("a history prints engines that refused the model", {
  engine <- list(
    engine = "superstep", reason = "measured fastest: 210 us a batch",
    trials = list(
      list(engine = "superstep", start_s = 0.4, batch_s = 0.00021, refused = ""),
      list(engine = "compiled", start_s = 0, batch_s = NULL, refused = "no XLA kernel for Where")
    )
  )
  expect_snapshot(print(history(engine = engine)))
})

test_that("a history without trials or epochs prints", {
  engine <- list(engine = "keras", reason = "as asked", trials = list())
  expect_snapshot({
    print(history(engine = engine))
    print(history(
      engine = engine, history = list(), epochs = 0L, epoch_s = list(), samples_per_s = 0,
      stopped = "interrupted"
    ))
  })
})

test_that("print() gives its argument back, invisibly", {
  shown <- history()
  capture.output(answer <- withVisible(print(shown)))
  expect_identical(answer$value, shown)
  expect_false(answer$visible)
})

test_that("a history is a data frame with a row for each epoch", {
  frame <- as.data.frame(history())
  expect_named(frame, c("epoch", "loss", "accuracy", "val_loss", "val_accuracy", "seconds"))
  expect_identical(frame$epoch, 1:3)
  expect_identical(frame$val_loss, c(1.75, 1, 0.5))
  expect_identical(frame$seconds, c(6, 3.25, 3))
})

test_that("a history of one epoch, or none, is a data frame too", {
  one <- history(history = list(loss = 0.5), epochs = 1L, epoch_s = 2)
  expect_identical(as.data.frame(one), data.frame(epoch = 1L, loss = 0.5, seconds = 2))
  none <- history(history = list(), epochs = 0L, epoch_s = list())
  expect_identical(nrow(as.data.frame(none)), 0L)
})

test_that("names of metrics stay as Keras has them", {
  odd <- history(history = list(loss = list(1, 2, 3), "top-5 accuracy" = list(1, 2, 3)))
  expect_named(as.data.frame(odd), c("epoch", "loss", "top-5 accuracy", "seconds"))
})

test_that("training and validation of a metric are drawn together", {
  expect_identical(
    metric_groups(history(), NULL),
    list(loss = c("loss", "val_loss"), accuracy = c("accuracy", "val_accuracy"))
  )
  expect_named(metric_groups(history(), "accuracy"), "accuracy")
})

test_that("a metric that is not there is refused", {
  error <- expect_error(plot(history(), metric = "auc"), class = "gpukeras_error_spec")
  expect_identical(error$arg, "metric")
  expect_snapshot(plot(history(), metric = "auc"), error = TRUE)
})

test_that("plot() draws a panel for each metric and leaves the device as it was", {
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off())
  drawn <- history()
  before <- graphics::par("mfrow", "mar")
  expect_identical(plot(drawn), drawn)
  expect_identical(graphics::par("mfrow", "mar"), before)
  one <- history(history = list(loss = 0.5), epochs = 1L, epoch_s = 2)
  expect_identical(plot(one), one)
})

test_that("autoplot() has a value for each epoch, metric and part", {
  skip_if_not_installed("ggplot2")
  drawn <- ggplot2::autoplot(history())
  expect_s3_class(drawn, "ggplot")
  expect_identical(nrow(drawn$data), 12L)
  expect_setequal(drawn$data$rows, c("training", "validation"))
  validation <- drawn$data$metric == "accuracy" & drawn$data$rows == "validation"
  expect_identical(drawn$data$value[validation], c(0.25, 0.5, 0.75))
  only <- ggplot2::autoplot(history(), metric = "loss")
  expect_identical(unique(only$data$metric), "loss")
})

test_that("rows that were left out of a stream are told", {
  plan <- list(
    mode = "streamed", batch_size = 32L, dropped_rows = 2L,
    na_reason = "dropped: 2 of 60 rows with missing values"
  )
  lines <- format(new_gpu_history(a_report(plan = plan)))
  expect_match(lines, "missing: dropped: 2 of 60 rows", all = FALSE, fixed = TRUE)
})
