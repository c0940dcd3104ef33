# Workers of a plan of the package future: processes of this computer in the place of others.

test_that("workers are those of the plan, where there is one and nothing else is asked for", {
  skip_outside_lane()
  skip_if_not_installed("future")
  withr::defer(future::plan("sequential"))
  future::plan("sequential")
  expect_identical(as_workers("auto"), "auto")
  future::plan("multisession", workers = 2)
  expect_identical(as_workers(3), 3)
  expect_equal(as_workers("auto"), 2)
  future::plan("cluster", workers = rep("localhost", 2))
  expect_equal(as_workers("auto")$count, 2)
})

test_that("models that do not stack are trained by the workers of a plan of future", {
  skip_without_tensorflow(slow = TRUE)
  skip_if_not_installed("future")
  data <- gpu_dataset(mtcars, "mpg", batch_size = 8, seed = 1)
  build <- function(units) gpu_mlp(data, units = units, seed = 1)
  train <- function() {
    gpu_fit_many(
      data, build, folds = 2, grid = data.frame(units = 2:3), epochs = 2, most = 1,
      seeds = NULL, verbose = FALSE
    )
  }
  here <- train()
  withr::defer(future::plan("sequential"))
  future::plan("cluster", workers = rep("localhost", 2))
  there <- train()
  expect_match(there$plan$reason, "4 models in 2 worker processes of future")
  expect_equal(as.data.frame(there), as.data.frame(here), tolerance = 1e-4)
  expect_equal(gpu_predict(there, mtcars[1:3, ]), gpu_predict(here, mtcars[1:3, ]), tolerance = 1e-5)
})
