an_importance <- function(mode = "min", metric = "loss", columns = c("a", "b", "size"), ...) {
  new_gpu_importance(list(
    metric = metric, mode = mode, baseline = 1, rows = 1200L, columns = as.list(columns),
    scores = list(list(1.5, 1.25), list(1, 1.01), list(3, 3.5))[seq_along(columns)]
  ))
}

test_that("importance is the mean rise of the loss, the largest first", {
  found <- an_importance()
  expect_s3_class(found, c("gpu_importance", "gpu_result", "data.frame"), exact = TRUE)
  expect_identical(found$column, c("size", "a", "b"))
  expect_equal(found$importance, c(2.25, 0.375, 0.005))
  expect_equal(found$sd, c(sd(c(3, 3.5)), sd(c(1.5, 1.25)), sd(c(1, 1.01))))
  expect_equal(found$lower[1], quantile(c(2, 2.5), 0.05)[[1]])
  expect_equal(attr(found, "scores")["size", ], c(3, 3.5))
  expect_identical(class(as.data.frame(found)), "data.frame")
  fallen <- an_importance("max", "accuracy")
  expect_equal(fallen$importance, c(-0.005, -0.375, -2.25))
})

test_that("importance prints", {
  expect_snapshot({
    an_importance()
    print(an_importance("max", "accuracy"), most = 2)
  })
})

test_that("importance is drawn, and the device stays as it was", {
  withr::local_pdf(NULL)
  before <- graphics::par("mai")
  found <- an_importance()
  expect_identical(plot(found), found)
  expect_equal(graphics::par("mai"), before)
  skip_if_not_installed("ggplot2")
  drawn <- ggplot2::ggplot_build(ggplot2::autoplot(found, most = 2))
  expect_equal(sort(drawn$data[[1]]$x), found$importance[2:1])
})

test_that("importance of R's own columns is that of shuffling them", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  model <- trained(gpu_dataset(y ~ ., frame), epochs = 40)
  found <- gpu_importance(model, frame, groups = list(both = c("double", "factor")), repeats = 2)
  expect_setequal(
    found$column, c("both", setdiff(names(frame), c("double", "factor", "y")))
  )
  expect_equal(attr(found, "baseline"), gpu_evaluate(model, frame)[["loss"]], tolerance = 1e-5)
  expect_gt(found$importance[found$column == "both"], 0)
  one <- gpu_importance(model, frame, columns = "double", repeats = 1, seed = 3)
  expect_identical(nrow(one), 1L)
  expect_identical(is.na(one$sd), TRUE)
  expect_snapshot(error = TRUE, {
    gpu_importance(model, frame, columns = "treble")
    gpu_importance(model, frame, groups = c("double", "factor"))
    gpu_importance(model, frame, metric = "auc")
    gpu_importance(model, function() NULL)
  })
})
