# A dataset as R's own functions see it.

x <- matrix(sin(1:60), 20, dimnames = list(NULL, c("a", "b", "c")))
y <- rep(c("u", "v"), 10)

test_that("datasets have a size and names", {
  skip_without_tensorflow()
  data <- gpu_dataset(x, y, validation = 0.2)
  expect_equal(dim(data), c(20, 3))
  expect_equal(nrow(data), 20)
  expect_equal(ncol(data), 3)
  expect_equal(names(data), c("a", "b", "c"))
  expect_null(names(gpu_dataset(unname(x), y)))
  frame <- gpu_dataset(mpg ~ ., transform(mtcars, cyl = factor(cyl)))
  expect_equal(dim(frame), c(32, 10))
  expect_equal(names(frame), setdiff(names(mtcars), "mpg"))
  expect_equal(dim(gpu_dataset(array(0, c(4, 5, 6)), 1:4)), c(4, 5, 6))
  inputs <- gpu_dataset(list(one = x, two = mtcars[1:20, ]), y)
  expect_equal(dim(inputs), c(20, 2))
  expect_equal(names(inputs), c("one", "two"))
  stream <- gpu_dataset(function() list(x, y), steps = 2)
  expect_equal(dim(stream), c(NA, 3))
})

test_that("rows are given as the model gets them, in their order", {
  skip_without_tensorflow()
  data <- gpu_dataset(x, factor(y), weights = 1:20, validation = 0.2)
  rows <- data[c(3, 1), ]
  expect_equal(rows$x, x[c(3, 1), ], tolerance = 1e-6)
  expect_equal(as.vector(rows$y), c(0, 0))
  expect_equal(as.vector(rows$weights), c(3, 1))
  expect_equal(data[-(1:18)]$x, x[19:20, ], tolerance = 1e-6)
  expect_equal(utils::head(data, 2)$x, x[1:2, ], tolerance = 1e-6)
  expect_identical(data[], data[1:20, ])
  expect_identical(conditionCall(rlang::catch_cnd(data[500])), quote(data[500]))
  expect_identical(conditionCall(rlang::catch_cnd(data[500, ])), quote(data[500, ]))
  inlined <- rlang::catch_cnd(do.call("[", list(data, 500)))
  expect_identical(conditionCall(inlined), quote(x[i]))
  frame <- gpu_dataset(mpg ~ cyl, transform(mtcars, cyl = factor(cyl)))
  expect_equal(unname(frame[1, ]$x), matrix(c(0, 1, 0), 1))
  expect_match(colnames(frame[1, ]$x), "cyl")
})

test_that("a summary has the columns, and what was learned of them", {
  skip_without_tensorflow()
  data <- gpu_dataset(mpg ~ ., transform(mtcars[1:4], cyl = factor(cyl)))
  found <- summary(data)
  expect_equal(found$columns$column, c("cyl", "disp", "hp"))
  expect_equal(found$columns$levels, c(3, NA, NA))
  expect_equal(found$columns$mean, c(NA, mean(mtcars$disp), mean(mtcars$hp)))
  expect_snapshot(found)
  expect_equal(nrow(summary(gpu_dataset(x, y))$columns), 0)
})

test_that("a summary tells no mean of columns that are taken as they are", {
  skip_without_tensorflow()
  cars <- transform(mtcars, by_hand = am == 1)
  found <- summary(gpu_dataset(mpg ~ wt + by_hand, cars))$columns
  expect_equal(found$mean, c(mean(mtcars$wt), NA))
  found <- summary(gpu_dataset(mpg ~ wt + hp, mtcars, scale = FALSE))$columns
  expect_true(all(is.na(found[c("mean", "deviation")])))
})

expect_refused(list(
  "a column of a dataset" = case("spec", "before", gpu_dataset(x, y)[1, 2]),
  "a column of a dataset by name" =
    case("spec", "no field `a`", gpu_dataset(x, y)["a"]),
  "rows by a list" = case("spec", "`i` must be row numbers", gpu_dataset(x, y)[list(1)]),
  "a row that is not there" = case("spec", "has 20 rows", gpu_dataset(x, y)[21, ]),
  "a row of a sequence" = case("spec", "no numbers", gpu_dataset(function() list(x, y))[1, ])
))
