test_that("a trial's line crosses each axis at its setting, and the last at its best value", {
  drawn <- parallel_lines(a_tuning())
  expect_identical(drawn$axes, c("units", "optimizer", "val_loss"))
  expect_identical(drawn$trial, c(1L, 2L, 4L))
  expect_identical(drawn$value, c(0.25, 0.75, 1.25))
  expect_equal(drawn$shade, c(0, 0.5, 1))
  expect_equal(drawn$places, cbind(c(0.5, 1, 0.75), c(0, 1, 1), c(0, 0.5, 1)))
  expect_identical(drawn$labels$label, c("2", "32", "\"adam\"", "\"sgd\"", "0.25", "1.25"))
})

test_that("larger is better where the metric says so", {
  drawn <- parallel_lines(a_tuning(mode = "max"))
  expect_identical(drawn$trial, c(4L, 2L, 1L))
  expect_identical(drawn$value, c(1.25, 0.75, 0.5))
  expect_equal(drawn$shade, c(0, 2 / 3, 1))
})

test_that("a setting that does not apply leaves a gap", {
  trace <- a_tuning_record()$trace
  trace[[3]]$settings$optimizer <- NULL
  places <- parallel_lines(a_tuning(trace = trace))$places
  expect_identical(is.na(places[, 2]), c(FALSE, TRUE, FALSE))
})

test_that("both plots say which metric their colours show", {
  skip_outside_lane()
  local_device()
  one <- a_tuning(trace = a_tuning_record()$trace[1])
  for (drawn in list(a_tuning(), one)) {
    expect_identical(withVisible(plot(drawn, main = "t")), list(value = drawn, visible = FALSE))
  }
  page <- withr::local_tempfile(fileext = ".ps")
  grDevices::postscript(page, useKerning = FALSE)
  plot(a_tuning())
  grDevices::dev.off()
  expect_match(readLines(page), "Colour: val_loss", fixed = TRUE, all = FALSE)
  expect_snapshot(plot(no_tuning()), error = TRUE)
  expect_error(plot(no_tuning()), class = "gpukeras_error_data")
  skip_if_not_installed("ggplot2")
  picture <- ggplot2::autoplot(a_tuning())
  expect_identical(picture$labels$colour, "val_loss")
  lines <- ggplot2::layer_data(picture, 2)
  expect_identical(lengths(split(lines$x, lines$group), use.names = FALSE), c(3L, 3L, 3L))
  expect_identical(sort(unique(lines$alpha)), c(0.5, 1))
  expect_error(ggplot2::autoplot(no_tuning()), class = "gpukeras_error_data")
})
