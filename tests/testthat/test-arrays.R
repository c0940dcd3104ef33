test_that("a matrix crosses with its dim and names, whatever its type", {
  for (x in list(matrix(1:6, 2), matrix(c(1.5, 2:6), 2), matrix(TRUE, 2, 3))) {
    features <- as_features(x)
    expect_identical(features$kind, "array")
    expect_identical(features$values, x)
    expect_identical(features$names, list())
  }
  named <- matrix(1:4, 2, dimnames = list(NULL, c("a", "b")))
  expect_identical(as_features(named)$names, list("a", "b"))
})

test_that("a vector gets a dim: without one it would become a Python list", {
  expect_identical(dim(as_features(c(1, 2, 3))$values), 3L)
  expect_identical(dim(as_labels(c(1, 2, 3))$values), 3L)
  expect_identical(dim(as_labels(factor(c("a", "b")))$values), 2L)
  expect_identical(dim(as_weights(1:3, call = NULL)), 3L)
})

test_that("arrays of higher rank keep their dim", {
  x <- array(1, c(2, 3, 4, 5))
  expect_identical(dim(as_features(x)$values), c(2L, 3L, 4L, 5L))
})

test_that("each kind of column is described", {
  columns <- as_features(mixed_frame(6))$columns
  kinds <- vapply(columns, `[[`, "", "kind")
  names(kinds) <- vapply(columns, `[[`, "", "name")
  expect_identical(
    kinds,
    c(
      double = "numeric", integer = "integer", logical = "logical", factor = "factor",
      ordered = "factor", character = "character", "a b" = "numeric", "{braces}" = "numeric",
      y = "numeric"
    )
  )
})

test_that("a factor crosses as codes from 1 with all its levels", {
  column <- as_column(factor(c("b", "a"), levels = c("c", "b", "a")), "f", "x", NULL)
  expect_identical(as.vector(column$values), 2:3)
  expect_identical(column$levels, list("c", "b", "a"))
})

test_that("levels of a text column do not depend on the locale", {
  column <- as_column(c("b", "B", "a", "\u00e4"), "t", "x", NULL)
  expect_identical(column$levels, list("B", "a", "b", "\u00e4"))
  expect_identical(as.vector(column$values), c(3L, 1L, 2L, 4L))
})

test_that("a column that I() made is what it wraps", {
  column <- as_column(I(c(1, 4)), "I(x^2)", "x", NULL)
  expect_identical(column$kind, "numeric")
  expect_identical(as.vector(column$values), c(1, 4))
  expect_false(inherits(column$values, "AsIs"))
})

test_that("labels are recognised", {
  kinds <- list(
    factor = factor(c("a", "b")), character = c("a", "b"), logical = c(TRUE, FALSE),
    integer = 0:1, numeric = c(0.5, 1), matrix = matrix(1, 2, 2)
  )
  for (kind in names(kinds)) {
    expect_identical(as_labels(kinds[[kind]])$kind, kind)
  }
})

test_that("labels in one column are a vector", {
  expect_identical(as_labels(matrix(c(1, 2), 2))$kind, "numeric")
  expect_identical(as_labels(data.frame(y = c("a", "b")))$kind, "character")
  expect_identical(as.vector(as_labels(table(c("a", "b", "b")))$values), 1:2)
  columns <- matrix(1:4, 2, dimnames = list(NULL, c("u", "v")))
  expect_identical(as_labels(columns)$names, list("u", "v"))
})

test_that("NA that would arrive as a number is refused by column, with its count", {
  integers <- matrix(1:6, 2, dimnames = list(NULL, c("a", "b", "c")))
  integers[, 2] <- NA
  error <- expect_error(as_features(integers, "x"), class = "gpukeras_error_data")
  expect_identical(error$arg, "x")
  expect_identical(error$column, "b")
  expect_identical(error$missing, 2L)
  deep <- array(1:24, c(2, 3, 4))
  deep[2, 1, 4] <- NA
  expect_identical(expect_error(as_features(deep, "x"))$column, "4")
  frame <- data.frame(a = 1:2, b = factor(c("u", NA)))
  expect_identical(expect_error(as_features(frame, "x"))$column, "b")
})

test_that("NA in doubles is left to Python, which reads every value anyway", {
  expect_identical(as_features(matrix(c(1, NA), 1))$values, matrix(c(1, NA), 1))
})

test_that("what cannot be a feature or a label is refused", {
  for (x in list(NULL, "a", mean, list(1, 2), 1i, as.raw(1), quote(a))) {
    expect_error(as_features(x), class = "gpukeras_error_data")
  }
  for (column in list(Sys.Date(), Sys.time(), I(list(1)), 1i, I(matrix(1, 1, 1)))) {
    frame <- data.frame(a = 1)
    frame$odd <- column
    error <- expect_error(as_features(frame, "x"), class = "gpukeras_error_data")
    expect_identical(error$column, "odd")
  }
  for (y in list(mean, list(1, 2), Sys.Date(), array(1, c(2, 2, 2)), matrix("a", 2, 2))) {
    expect_error(as_labels(y), class = "gpukeras_error_data")
  }
})
