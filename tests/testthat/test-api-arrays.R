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
  column <- as_column(factor(c("b", "a"), levels = c("c", "b", "a")), "f", NULL, "x", NULL)
  expect_identical(as.vector(column$values), 2:3)
  expect_identical(column$levels, list("c", "b", "a"))
})

test_that("levels of a text column do not depend on the locale", {
  column <- as_column(c("b", "B", "a", "\u00e4"), "t", NULL, "x", NULL)
  expect_identical(column$levels, list("B", "a", "b", "\u00e4"))
  expect_identical(as.vector(column$values), c(3L, 1L, 2L, 4L))
})

test_that("an array of one dimension and noquote() are columns, as in lm()", {
  counts <- array(c(2, 3), 2, list(c("a", "b")))
  column <- as_column(counts, "n", NULL, "x", NULL)
  expect_identical(column$kind, "numeric")
  expect_identical(as.vector(column$values), c(2, 3))
  expect_identical(as_column(table(c(1, 1, 2)), "n", NULL, "x", NULL)$kind, "integer")
  groups <- factor(c("u", "v"))
  dim(groups) <- 2
  expect_identical(as_column(groups, "g", NULL, "x", NULL)$kind, "factor")
  expect_identical(as_column(noquote(c("a", "b")), "s", NULL, "x", NULL)$kind, "character")
})

test_that("a column that I() made is what it wraps", {
  column <- as_column(I(c(1, 4)), "I(x^2)", NULL, "x", NULL)
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

test_that("NA that would arrive as a number crosses as NaN, in a factor as 0", {
  integers <- matrix(c(1:5, NA), 2, dimnames = list(NULL, c("a", "b", "c")))
  expect_identical(as_features(integers)$values, integers + 0)
  expect_identical(as_features(integers > 2)$values, (integers > 2) + 0)
  frame <- data.frame(i = c(1L, NA), l = c(NA, TRUE), f = factor(c("u", NA)), t = c(NA, "v"))
  columns <- as_features(frame)$columns
  kinds <- vapply(columns, `[[`, "", "kind")
  expect_identical(kinds, c("integer", "logical", "factor", "character"))
  values <- lapply(columns, function(column) as.vector(column$values))
  expect_identical(values, list(c(1, NA), c(NA, 1), c(1L, 0L), c(0L, 1L)))
  expect_identical(columns[[4]]$levels, list("v"))
  expect_identical(as.vector(as_labels(c(3L, NA))$values), c(3, NA))
  expect_identical(as_labels(cbind(1:2, c(NA, 1L)))$values, cbind(c(1, 2), c(NA, 1)))
})

test_that("a column without NA keeps its type: nothing is copied to another", {
  columns <- as_features(data.frame(i = 1:2, l = c(TRUE, FALSE)))$columns
  types <- vapply(columns, function(column) typeof(column$values), "")
  expect_identical(types, c("integer", "logical"))
  integers <- matrix(1:4, 2)
  expect_identical(with_nan(integers), integers)
})

test_that("NA in doubles is left to Python, which reads every value anyway", {
  expect_identical(as_features(matrix(c(1, NA), 1))$values, matrix(c(1, NA), 1))
})

# Dates and times ----------------------------------------------------------------------------------

test_that("a date crosses as days, whatever its storage", {
  for (day in list(as.Date(c("1970-01-02", NA)), structure(c(1L, NA), class = "Date"))) {
    column <- as_column(day, "d", NULL, "x", NULL)
    expect_identical(column$kind, "date")
    expect_identical(as.vector(column$values), c(1, NA))
    expect_null(attr(column$values, "class"))
  }
})

test_that("a time crosses as seconds in UTC, with its zone and the zone's offsets", {
  berlin <- as.POSIXct(c("2024-01-01 00:00", "2024-07-01 00:00", NA), tz = "Europe/Berlin")
  column <- as_column(berlin, "t", NULL, "x", NULL)
  expect_identical(column$kind, "time")
  expect_identical(column$zone, "Europe/Berlin")
  expect_identical(as.vector(column$values), as.double(berlin))
  expect_identical(as.vector(column$offsets), c(3600, 7200, NA))
  expect_identical(as_column(as.POSIXlt(berlin), "t", NULL, "x", NULL), column)
})

test_that("UTC has offsets too, which R before 4.3 does not give", {
  utc <- as.POSIXct(c(0, 1.5), origin = "1970-01-01", tz = "UTC")
  column <- as_column(utc, "t", NULL, "x", NULL)
  expect_identical(as.vector(column$offsets), c(0, 0))
  expect_identical(as.vector(column$values), c(0, 1.5))
})

test_that("a time without zone is one of the session's zone, by its name", {
  withr::local_timezone("America/New_York")
  column <- as_column(as.POSIXct("2024-01-01"), "t", NULL, "x", NULL)
  expect_identical(column$zone, "America/New_York")
  expect_identical(as.vector(column$offsets), -5 * 3600)
})

test_that("new times get the offsets of the zone that the recipe recorded", {
  recipe <- list(columns = list(
    list(name = "n", kind = "number", zone = ""),
    list(name = "t", kind = "time", zone = "Asia/Tokyo")
  ))
  new <- data.frame(t = as.POSIXct("2024-01-01", tz = "UTC"), n = 1)
  column <- as_features(new, zones = recorded_zones(recipe))$columns[[1]]
  expect_identical(column$zone, "Asia/Tokyo")
  expect_identical(as.vector(column$offsets), 9 * 3600)
  expect_identical(as.vector(column$values), as.double(new$t))
  expect_length(recorded_zones(NULL), 0)
})

test_that("labels of several dimensions keep them", {
  for (y in list(array(1, c(2, 2, 2)), array(c(TRUE, NA), c(2, 3, 4)), matrix(1:4, 2))) {
    labels <- as_labels(y)
    expect_identical(labels$kind, "matrix")
    expect_identical(dim(labels$values), dim(y))
  }
  expect_identical(dim(as_labels(matrix(c(TRUE, FALSE), 2))$values), c(2L, 1L))
  expect_identical(dim(as_labels(array(1:2, c(2, 1, 1)))$values), c(2L, 1L, 1L))
})

test_that("a difftime crosses with its units", {
  column <- as_column(as.difftime(c(1, 2), units = "mins"), "s", NULL, "x", NULL)
  expect_identical(column$kind, "duration")
  expect_identical(column$units, "mins")
  expect_identical(as.vector(column$values), c(1, 2))
})

test_that("labelled numbers of SPSS and Stata are refused by what to make of them", {
  labelled <- structure(c(1, 2), class = c("haven_labelled", "vctrs_vctr", "double"))
  expect_snapshot(as_column(labelled, "sex", NULL, "data", NULL), error = TRUE)
})

test_that("what cannot be a feature or a label is refused", {
  skip_outside_lane()
  for (x in list(NULL, "a", mean, list(1, 2), 1i, as.raw(1), quote(a))) {
    expect_error(as_features(x), class = "gpukeras_error_data")
  }
  odd <- list(I(list(1)), 1i, I(matrix(1, 1, 1)), structure("a", class = "Date"))
  for (column in odd) {
    frame <- data.frame(a = 1)
    frame$odd <- column
    error <- expect_error(as_features(frame, "x"), class = "gpukeras_error_data")
    expect_identical(error$column, "odd")
  }
  times <- list(Sys.Date(), Sys.time(), Sys.time() - Sys.time(), I(Sys.Date()))
  for (y in c(times, list(mean, list(1, 2), matrix("a", 2, 2)))) {
    expect_error(as_labels(y), class = "gpukeras_error_data")
  }
})

# Sparse matrices and files ------------------------------------------------------------------------

test_that("a sparse matrix crosses as its slots, without its zeros", {
  skip_outside_lane()
  x <- a_sparse_matrix(6)
  found <- as_features(x)
  expect_identical(found$kind, "sparse")
  expect_identical(found$dim, list(6L, 3L))
  expect_identical(found$names, list("a", "b", "c"))
  expect_identical(found$p, as.array(x@p))
  expect_identical(found$i, as.array(x@i))
  expect_identical(found$x, as.array(x@x))
})

test_that("other sparse matrices become a dgCMatrix", {
  skip_outside_lane()
  x <- a_sparse_matrix(3)
  square <- Matrix::crossprod(x)
  kinds <- list(
    methods::as(x, "RsparseMatrix"), methods::as(x, "TsparseMatrix"), x != 0, square,
    Matrix::Diagonal(3), Matrix::triu(square), methods::as(x, "nMatrix")
  )
  for (kind in kinds) {
    found <- as_features(kind)
    dense <- matrix(0, nrow(kind), ncol(kind))
    dense[cbind(found$i, rep(seq_len(ncol(kind)), diff(found$p)) - 1L) + 1L] <- found$x
    expect_identical(dense, unname(as.matrix(kind)) + 0)
  }
})

test_that("repeated entries of a dgTMatrix are added up, as in R", {
  skip_if_not_installed("Matrix")
  x <- methods::new(
    "dgTMatrix", i = c(0L, 0L, 1L), j = c(1L, 1L, 0L), x = c(1, 2, 5), Dim = c(2L, 2L)
  )
  expect_identical(as_features(x)$x, as.array(c(5, 3)))
})

test_that("the path of a file holds after setwd()", {
  folder <- withr::local_tempdir()
  withr::local_dir(folder)
  file.create("x.npy")
  found <- as_features("x.npy")
  expect_identical(found$kind, "npy")
  expect_identical(found$path, normalizePath(file.path(folder, "x.npy")))
  expect_identical(as_labels("x.npy")$path, found$path)
  expect_identical(as_labels(c("x.npy", "y.npy"))$kind, "character")
})

test_that("a missing level is no level NA, which would be the same one in Python", {
  skip_outside_lane()
  country <- addNA(factor(c("a", "NA", NA)))
  expect_snapshot(as_features(data.frame(country = country)), error = TRUE)
  expect_error(as_labels(country), "missing level", class = "gpukeras_error_data")
  expect_identical(as_labels(addNA(factor(c("a", NA))))$levels, list("a", NA_character_))
})
