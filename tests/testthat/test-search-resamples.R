test_that("row numbers cross as arrays, also a single one", {
  expect_identical(as_resamples(5, NULL), 5)
  expect_null(as_resamples(NULL, NULL))
  folds <- as_resamples(list(a = 1:2, b = list(train = 1L, validation = 2:3)), NULL)
  expect_identical(folds, list(
    a = array(c(1, 2)), b = list(train = array(1), validation = array(c(2, 3)))
  ))
  expect_identical(as_resamples(list("a"), NULL), list("a")) # which the core refuses
})

test_that("folds of one name, of which Python would keep the last, are refused", {
  expect_snapshot(error = TRUE, {
    as_resamples(list(a = 1:2, a = 3:4), NULL, "folds")
    as_resamples(list(a = 1:2, 3:4, 5:6), NULL, "folds")
  })
})

test_that("groups are numbers and times are ranks", {
  expect_null(as_group_codes(NULL))
  expect_null(as_times(NULL))
  expect_identical(as_group_codes(c("b", "a", NA, "b")), array(c(1, 2, NA, 1)))
  expect_identical(as_group_codes(factor(c("b", "a"))), array(c(1, 2)))
  dates <- as.Date("2026-01-01") + c(3, 0, 3, NA)
  expect_identical(as_times(dates), array(c(2, 1, 2, NA)))
  expect_identical(as_times(c(0.5, 0.25)), array(c(2, 1)))
})

# The rows of rsample's own `analysis()` and `assessment()`.
expect_rows <- function(folds, splits, frame) {
  frame$row <- seq_len(nrow(frame))
  for (i in seq_along(folds)) {
    split <- splits[[i]]
    split$data <- frame
    expect_identical(as.integer(folds[[i]]$train), rsample::analysis(split)$row)
    expect_identical(as.integer(folds[[i]]$validation), rsample::assessment(split)$row)
  }
}

test_that("rsample's splits hold the rows that rsample says", {
  skip_outside_lane()
  skip_if_not_installed("rsample")
  frame <- mtcars
  set.seed(1)
  made <- list(
    rsample::vfold_cv(frame, v = 3), rsample::vfold_cv(frame, v = 2, repeats = 2),
    rsample::bootstraps(frame, times = 2), rsample::group_vfold_cv(frame, group = "cyl"),
    rsample::rolling_origin(frame, initial = 20, assess = 6, skip = 5)
  )
  for (splits in made) {
    folds <- as_resamples(splits, frame)
    expect_identical(anyDuplicated(names(folds)), 0L)
    expect_length(folds, nrow(splits))
    expect_rows(folds, splits$splits, frame)
  }
  expect_named(as_resamples(made[[1]], frame), c("Fold1", "Fold2", "Fold3"))
  expect_identical(names(as_resamples(made[[2]], frame))[3], "Repeat2.Fold1")
  one <- rsample::initial_split(frame)
  expect_rows(as_resamples(one, frame), list(one), frame)
  resamples <- made[[1]]
  expect_snapshot(as_resamples(resamples, frame[1:30, ]), error = TRUE)
})
