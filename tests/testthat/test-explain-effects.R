effects_record <- function(kind = "partial_dependence", individual = NULL) {
  number <- list(
    column = "size", values = c(1, 2.5, 4), levels = list(), counts = c(0, 5, 7),
    outputs = list("no", "yes"), effects = cbind(c(0.1, 0.2, 0.3), c(0.9, 0.8, 0.7)),
    individual = individual
  )
  category <- list(
    column = "colour", values = numeric(), levels = list("red", "blue"), counts = c(5, 7),
    outputs = list("no", "yes"), effects = cbind(c(0.4, 0.5), c(0.6, 0.5))
  )
  list(kind = kind, rows = 12L, columns = list(number, category), individual = list(2L, 9L))
}

test_that("effects are a data frame with a row for each value and output", {
  found <- new_gpu_effects(effects_record())
  expect_s3_class(found, c("gpu_effects", "gpu_result", "data.frame"), exact = TRUE)
  size <- as.data.frame(found)[found$column == "size", ]
  expect_identical(size$output, rep(c("no", "yes"), each = 3))
  expect_equal(size$value, c(1, 2.5, 4, 1, 2.5, 4))
  expect_equal(size$effect, c(0.1, 0.2, 0.3, 0.9, 0.8, 0.7))
  expect_identical(size$level, rep(NA_character_, 6))
  colour <- as.data.frame(found)[found$column == "colour", ]
  expect_identical(colour$level, c("red", "blue", "red", "blue"))
  expect_equal(colour$value, c(1, 2, 1, 2))
  expect_equal(colour$rows, c(5, 7, 5, 7))
})

test_that("curves of single rows keep their row, value and output", {
  curves <- array(seq_len(12), c(2, 3, 2)) # row, value, output
  own <- attr(new_gpu_effects(effects_record(individual = curves)), "individual")
  expect_identical(nrow(own), 12L)
  picked <- own[own$row == 9 & own$output == "yes" & own$value == 2.5, ]
  expect_equal(picked$effect, curves[2, 2, 2])
  first <- own[own$row == 2 & own$output == "no", ]
  expect_equal(first$effect, curves[1, , 1])
})

test_that("effects print, with few values of each curve", {
  expect_snapshot({
    new_gpu_effects(effects_record())
    print(new_gpu_effects(effects_record("ale")), most = 2)
  })
})

test_that("effects are drawn, and the device stays as it was", {
  withr::local_pdf(NULL)
  before <- graphics::par(c("mfrow", "mar"))
  curves <- array(seq_len(12) / 12, c(2, 3, 2))
  found <- new_gpu_effects(effects_record(individual = curves))
  expect_identical(plot(found), found)
  expect_identical(graphics::par(c("mfrow", "mar")), before)
  skip_if_not_installed("ggplot2")
  drawn <- ggplot2::ggplot_build(ggplot2::autoplot(found))
  expect_identical(nrow(drawn$data[[1]]), 12L)
})

test_that("effects of a formula's columns are the mean predictions", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  model <- trained(gpu_dataset(y ~ double + factor, frame))
  found <- gpu_effects(model, frame[names(frame) != "y"], grid = 3, individual = 2)
  expect_setequal(found$column, c("double", "factor"))
  at <- frame
  for (place in 1:3) {
    at$double <- found$value[place]
    expect_equal(found$effect[place], mean(gpu_predict(model, at)), tolerance = 1e-5)
  }
  at <- frame
  at$factor[] <- "a"
  shown <- found$effect[found$level %in% "a"]
  expect_equal(shown, mean(gpu_predict(model, at)), tolerance = 1e-5)
  expect_identical(length(unique(attr(found, "individual")$row)), 2L)
  ale <- gpu_effects(model, gpu_dataset(y ~ double + factor, frame, recipe = model), kind = "ale")
  expect_identical(unique(ale$column), "double")
  expect_snapshot(error = TRUE, {
    gpu_effects(model, frame, "factor", kind = "ale")
    gpu_effects(model, frame, kind = "shap")
  })
})

test_that("effects of a data frame count rows by the formula's column of weights", {
  skip_without_tensorflow(slow = TRUE)
  frame <- transform(mtcars[c("mpg", "wt", "hp")], times = rep(1:4, 8))
  data <- gpu_dataset(mpg ~ wt + hp, frame, weights = times, batch_size = 32)
  model <- gpu_mlp(data, units = 4, seed = 1)
  gpu_fit(model, data, epochs = 5, verbose = FALSE)
  found <- gpu_effects(model, frame, grid = 3)
  at <- transform(frame, wt = found$value[2])
  mean <- weighted.mean(as.numeric(gpu_predict(model, at)), frame$times)
  expect_equal(found$effect[2], mean, tolerance = 1e-5)
  expect_equal(gpu_effects(model, data, grid = 3)$effect, found$effect)
  expect_match(format(found)[1], "partial dependence of 32 rows, weighted", fixed = TRUE)
  expect_error(gpu_effects(model, mtcars), class = "gpukeras_error_data")
})
