# Every bad input is a classed error that names the argument or column: see helper-refusals.R.

x <- matrix(as.double(1:12), 4)
y <- c(0, 1, 0, 1)
column <- function(...) data.frame(good = 1:4, ..., check.names = FALSE)
listed <- column()
listed$odd <- list(1, 2, 3, 4)
twice <- data.frame(a = 1:4, a = 1:4, check.names = FALSE)
texts <- data.frame(id = sprintf("row %d", 1:120))
dates <- function(days) as.Date("2024-01-01") + days
seconds <- function(seconds) as.POSIXct("2024-01-01", tz = "UTC") + seconds
put <- function(value, into = x) {
  into[2, 3] <- value
  into
}

# Rows ---------------------------------------------------------------------------------------------

expect_refused(list(
  "an integer NA in a matrix" =
    case("data", "Column `3` of `x`", gpu_dataset(put(NA, matrix(1:12, 4)), y)),
  "a logical NA in a matrix" =
    case("data", "Column `3` of `x`", gpu_dataset(put(NA, matrix(TRUE, 4, 3)), y)),
  "a double NA in a matrix" = case("data", "Column `3` of `x`", gpu_dataset(put(NA), y)),
  "a NaN in a matrix" = case("data", "Column `3` of `x`", gpu_dataset(put(NaN), y)),
  "an infinite value in a matrix" = case("data", "1 infinite", gpu_dataset(put(-Inf), y)),
  "a value too large for float32" = case("data", "too large", gpu_dataset(put(1e300), y)),
  "an integer NA in a column" =
    case("data", "Column `a b` of `x`", gpu_dataset(column("a b" = c(1L, NA, 3L, 4L)), y)),
  "a logical NA in a column" =
    case("data", "Column `a` of `x`", gpu_dataset(column(a = c(TRUE, NA, TRUE, NA)), y)),
  "a double NA in a column" =
    case("data", "Column `{a}` of `x`", gpu_dataset(column("{a}" = c(1, NA, 3, 4)), y)),
  "an infinite value in a column" =
    case("data", "Column `a` of `x`", gpu_dataset(column(a = c(1, Inf, 3, 4)), y)),
  "an NA in a factor" =
    case("data", "Column `a` of `x`", gpu_dataset(column(a = factor(c("u", NA, "v", "u"))), y)),
  "an NA in a text column" =
    case("data", "Column `a` of `x`", gpu_dataset(column(a = c("u", NA, "v", "u")), y)),
  "a character array of three dimensions" =
    case("data", "`x` must be a char", gpu_dataset(array(letters[1:8], c(4, 2, 1)), y)),
  "a text column with a different value in each row" =
    case("data", "Column `id` of `x`", gpu_dataset(texts, rep(0:1, 60))),
  "a factor without levels" =
    case("data", "Column `a` of `x`", gpu_dataset(column(a = factor(rep(NA, 4))), y)),
  "a list column" = case("data", "Column `odd` of `x`", gpu_dataset(listed, y)),
  "an infinite date" =
    case("data", "1 infinite", gpu_dataset(column(day = dates(c(0:2, Inf))), y)),
  "a missing date" =
    case("data", "Column `day` of `x`", gpu_dataset(column(day = dates(c(0:2, NA))), y)),
  "a missing time" =
    case("data", "Column `at` of `x`", gpu_dataset(column(at = seconds(c(0:2, NA))), y)),
  "a missing difftime" =
    case("data", "Column `a` of `x`", gpu_dataset(column(a = dates(c(0:2, NA)) - dates(0)), y)),
  "a date that no calendar has" =
    case("data", "Column `day` of `x`", gpu_dataset(column(day = dates(1e9 + 0:3)), y)),
  "a complex matrix" = case("data", "`x` must be numeric", gpu_dataset(x + 1i, y)),
  "a data frame with duplicate names" =
    case("data", "more than one column `a`", gpu_dataset(twice, y)),
  "a matrix without rows" = case("data", "`x` has no rows", gpu_dataset(x[0, ], y[0])),
  "a matrix without columns" = case("data", "`x` has no columns", gpu_dataset(x[, 0], y)),
  "a data frame without rows" = case("data", "`x` has no rows", gpu_dataset(column()[0, ], y[0])),
  "a data frame without columns" =
    case("data", "`x` has no columns", gpu_dataset(column()[, 0, drop = FALSE], y)),
  "an array of six dimensions" =
    case("data", "2 to 5 dimensions", gpu_dataset(array(0, c(4, 1, 1, 1, 1, 2)), y)),
  "nothing" = case("data", "`x` must be numeric", gpu_dataset(NULL))
))

# Missing values -----------------------------------------------------------------------------------

holes <- data.frame(a = c(1, NA, 3, NA), b = c(NA, "u", NA, "v"), y = 1:4)
empty <- data.frame(
  a = 1:4, n = NA_real_, l = NA, f = factor(rep(NA, 4), levels = "u"), d = as.Date(NA)
)

expect_refused(list(
  "an unknown policy for missing values" = case("spec", "`na`", gpu_dataset(x, y, na = "mean")),
  "a policy that is NA" = case("spec", "`na` must be a value", gpu_dataset(x, y, na = NA)),
  "dropping every row" = case("data", "leaves no row", gpu_dataset(y ~ ., holes, na = "drop")),
  "dropping every row of a matrix" =
    case("data", "Column `2` of `x`", gpu_dataset(cbind(1:4, NA), y, na = "drop")),
  "imputing labels" =
    case("data", "`y` is missing in 1 of 4", gpu_dataset(x, c(1, NA, 2, 3), na = "impute")),
  "imputing classes" =
    case("data", "`y` is missing in 2 of 4", gpu_dataset(x, c("u", NA, "v", NA), na = "impute")),
  "imputing a matrix of labels" =
    case("data", "`y` is missing in 1 of 4", gpu_dataset(x, cbind(y, c(NA, 1:3)), na = "impute")),
  "a number wholly missing" =
    case("data", "Column `n` of `x`", gpu_dataset(empty[c("a", "n")], y, na = "impute")),
  "a logical wholly missing" =
    case("data", "Column `l` of `x`", gpu_dataset(empty[c("a", "l")], y, na = "impute")),
  "a factor wholly missing" =
    case("data", "Column `f` of `x`", gpu_dataset(empty[c("a", "f")], y, na = "impute")),
  "a date wholly missing" =
    case("data", "Column `d` of `x`", gpu_dataset(empty[c("a", "d")], y, na = "impute")),
  "a matrix column wholly missing" =
    case("data", "Column `2` of `x`", gpu_dataset(cbind(1:4, NA), y, na = "impute")),
  "an infinite value among imputed ones" =
    case("data", "1 infinite", gpu_dataset(cbind(c(1, NA, Inf, 2)), y, na = "impute")),
  "an infinite value among rows that stay" =
    case("data", "1 infinite", gpu_dataset(cbind(c(1, NA, Inf, 2)), y, na = "drop")),
  "imputing by a recipe that did not learn it" = case(
    "spec", "`na`", gpu_dataset(put(NA), y, na = "impute", recipe = gpu_dataset(x, y))
  )
))

# Sparse matrices and files ------------------------------------------------------------------------

folder <- withr::local_tempdir()
at <- function(name) file.path(folder, name)
if (has_tensorflow()) {
  save_npy(put(NA), at("missing.npy"))
  save_npy(x, at("x.npy"))
  save_npy(matrix(letters[1:4]), at("text.npy"))
  writeLines("1,2,3", at("csv.npy"))
  on_file <- trained(gpu_dataset(at("x.npy"), c(1.5, 2, 3, 4)))
}
if (rlang::is_installed("Matrix")) {
  sparse <- methods::as(x, "CsparseMatrix")
  wrong <- sparse
  wrong@i[1] <- 99L
}

expect_refused(needs = "Matrix", list(
  "an NA in a sparse matrix" = case("data", "Column `3` of `x`", gpu_dataset(put(NA, sparse), y)),
  "an infinite value in a sparse matrix" =
    case("data", "1 infinite", gpu_dataset(put(Inf, sparse), y)),
  "a sparse matrix without rows" = case("data", "`x` has no rows", gpu_dataset(sparse[0, ], y[0])),
  "a sparse matrix of other rows than labels" =
    case("data", "`y` has 4 rows where `x` has 3", gpu_dataset(sparse[1:3, ], y)),
  "a sparse matrix whose slots do not fit" =
    case("data", "not a valid sparse matrix", gpu_dataset(wrong, y)),
  "a sparse matrix as labels" = case("data", "`y` cannot be labels", gpu_dataset(x, sparse)),
  "sparse rows of another width" =
    case("data", "`newdata`", gpu_predict(on_file, sparse[, 1:2])),
  "sparse rows for a model of a data frame" = case(
    "data", "must be a data frame", gpu_dataset(sparse, recipe = gpu_dataset(column(), y))
  )
))

expect_refused(list(
  "a file that is not there" = case("data", "none.npy", gpu_dataset(at("none.npy"), y)),
  "a file of no known kind" = case("data", "`x` must be", gpu_dataset("data.xlsx", y)),
  "a missing value in a file" =
    case("data", "1 missing, the first in row 2", gpu_dataset(at("missing.npy"), y)),
  "a file of text" = case("data", "`x`: the file text.npy", gpu_dataset(at("text.npy"), y)),
  "a file that is no array" = case("data", "csv.npy is not", gpu_dataset(at("csv.npy"), y)),
  "labels in a file that is not there" = case("data", "`y`", gpu_dataset(x, at("none.npy"))),
  "a file of other rows than labels" = case("data", "`y` has 3", gpu_dataset(at("x.npy"), y[1:3])),
  "a new file of another width" =
    case("data", "`newdata`", gpu_predict(trained(gpu_dataset(x[, 1:2], y)), at("x.npy")))
))

test_that("a file that vanishes between two trainings is refused", {
  skip_without_tensorflow()
  file <- save_npy(x, withr::local_tempfile(fileext = ".npy"))
  data <- gpu_dataset(file, c(1.5, 2, 3, 4))
  model <- trained(data)
  unlink(file)
  error <- expect_error(gpu_fit(model, data, verbose = FALSE), class = "gpukeras_error_data")
  expect_match(one_line(error), "is gone")
  expect_identical(error$arg, "x")
})

# Labels and weights -------------------------------------------------------------------------------

expect_refused(list(
  "fewer labels than rows" = case("data", "`y` has 3 rows", gpu_dataset(x, y[1:3])),
  "more labels than rows" = case("data", "`y` has 5 rows", gpu_dataset(x, factor(letters[1:5]))),
  "a label matrix of another length" = case("data", "`y` has 3", gpu_dataset(x, diag(3))),
  "labels with an integer NA" = case("data", "`y`", gpu_dataset(x, c(1L, NA, 2L, 3L))),
  "labels with a double NA" = case("data", "`y`", gpu_dataset(x, c(1, NA, 2, 3))),
  "labels with a logical NA" = case("data", "`y`", gpu_dataset(x, c(TRUE, NA, TRUE, FALSE))),
  "labels with an NA in a factor" =
    case("data", "`y`", gpu_dataset(x, factor(c("u", NA, "v", "u")))),
  "an infinite label" = case("data", "`y`", gpu_dataset(x, c(1, 2, 3, Inf))),
  "a list of labels" = case("data", "`y` cannot be labels", gpu_dataset(x, list(1, 2, 3, 4))),
  "dates as labels" = case("data", "`y` cannot be labels", gpu_dataset(x, dates(0:3))),
  "times as labels" = case("data", "`y` cannot be labels", gpu_dataset(x, seconds(0:3))),
  "a difftime as labels" =
    case("data", "`y` cannot be labels", gpu_dataset(x, dates(0:3) - dates(0))),
  "a single level" = case("data", "`y` needs at least two", gpu_dataset(x, factor(rep("u", 4)))),
  "a label column that is not there" = case("data", "`z`", gpu_dataset(column(), "z")),
  "weights with NA" = case("data", "`weights`", gpu_dataset(x, y, weights = c(1, NA, 1, 1))),
  "negative weights" = case("data", "`weights`", gpu_dataset(x, y, weights = c(1, -1, 1, 1))),
  "infinite weights" = case("data", "`weights`", gpu_dataset(x, y, weights = c(1, Inf, 1, 1))),
  "fewer weights than rows" = case("data", "`weights`", gpu_dataset(x, y, weights = 1)),
  "texts as weights" = case("data", "`weights`", gpu_dataset(x, y, weights = letters[1:4])),
  "weights of each output" =
    case("data", "`weights`", gpu_dataset(x, y, weights = list(a = 1:4, b = 1:4))),
  "classes of each time step" =
    case("data", "`y`", gpu_dataset(x, matrix(rep(c("a", "b"), 6), 4))),
  "class weights named after other levels" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c(no = 1, yes = 2))),
  "class weights without names" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c(1, 2))),
  "a negative class weight" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c("0" = 1, "1" = -1))),
  "an unknown kind of class weight" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = "even")),
  "class weights of numbers" =
    case("spec", "`class_weight`", gpu_dataset(x, y + 0.5, class_weight = "balanced"))
))

# Options of a dataset -----------------------------------------------------------------------------

expect_refused(list(
  "a batch of no rows" = case("spec", "`batch_size`", gpu_dataset(x, y, batch_size = 0)),
  "half a row" = case("spec", "`batch_size`", gpu_dataset(x, y, batch_size = 1.5)),
  "a text as batch size" = case("spec", "`batch_size`", gpu_dataset(x, y, batch_size = "big")),
  "two batch sizes" = case("spec", "`batch_size`", gpu_dataset(x, y, batch_size = c(1, 2))),
  "all rows for validation" = case("spec", "`validation`", gpu_dataset(x, y, validation = 1)),
  "no row for validation" = case("data", "`validation`", gpu_dataset(x, y, validation = 0.01)),
  "an unknown cache" = case("spec", "`cache`", gpu_dataset(x, y, cache = "tape")),
  "an unknown encoding" = case("spec", "`encode`", gpu_dataset(x, y, encode = "binary")),
  "a number for shuffle" = case("spec", "`shuffle`", gpu_dataset(x, y, shuffle = 1)),
  "a negative seed" = case("spec", "`seed`", gpu_dataset(x, y, seed = -1))
))

test_that("a misspelled argument in the dots is refused by name", {
  expect_error(gpu_dataset(x, y, bathc_size = 2), "bathc_size")
  expect_error(gpu_dataset(column(), y, bathc_size = 2), "bathc_size")
  expect_error(gpu_dataset(column(y = 1:4), "y", bathc_size = 2), "bathc_size")
  expect_error(gpu_dataset(mpg ~ ., mtcars, bathc_size = 2), "bathc_size")
  expect_snapshot(error = TRUE, {
    gpu_dataset(x, y, bathc_size = 2)
    gpu_dataset(x, y, 2)
  })
})

# Formulas -----------------------------------------------------------------------------------------

expect_refused(list(
  "a random effect" = case("data", "`1 | cyl`", gpu_dataset(mpg ~ disp + (1 | cyl), mtcars)),
  "an offset in the words of R" =
    case("data", "`stats::offset(disp)`", gpu_dataset(mpg ~ cyl + stats::offset(disp), mtcars)),
  "an offset of two arguments" =
    case("data", "`offset(disp, hp)`", gpu_dataset(mpg ~ cyl + offset(disp, hp), mtcars)),
  "an offset that is no number" = case(
    "data", "`offset(factor(disp))`", gpu_dataset(mpg ~ cyl + offset(factor(disp)), mtcars)
  ),
  "scale() within another call" =
    case("data", "`log(scale(disp))`", gpu_dataset(mpg ~ log(scale(disp)), mtcars)),
  "scale() of a label" = case("data", "`scale(mpg)`", gpu_dataset(scale(mpg) ~ disp, mtcars)),
  "an interaction of a date" = case(
    "data", "`I(Sys.Date() - cyl)`", gpu_dataset(mpg ~ cyl:I(Sys.Date() - cyl), mtcars)
  ),
  "weights that are not there" =
    case("data", "`weights`", gpu_dataset(mpg ~ disp, mtcars, weights = nowhere)),
  "weights of a column that is not there" =
    case("data", "`heavy`", gpu_dataset(mpg ~ disp, mtcars, weights = "heavy")),
  "a column that a formula names in vain" =
    case("data", "`displacement`", gpu_dataset(mpg ~ displacement, mtcars)),
  "a label that a formula names in vain" = case("data", "`mpgg`", gpu_dataset(mpgg ~ ., mtcars)),
  "a formula as labels" =
    case("data", "A formula and a data frame", gpu_dataset(mtcars, mpg ~ disp)),
  "a formula without data" = case("spec", "`data`", gpu_dataset(mpg ~ .)),
  "a formula with a matrix" = case("spec", "`data`", gpu_dataset(mpg ~ ., as.matrix(mtcars))),
  "a formula with duplicate names" =
    case("data", "more than one column `a`", gpu_dataset(good ~ a, cbind(column(), twice)))
))
