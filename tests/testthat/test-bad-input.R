# Every bad input is a classed error that names the argument or column: a table of calls, each with
# the error's code and what its message must name. The whole messages are snapshots.

case <- function(code, names, call) {
  list(code = code, names = names, call = substitute(call))
}

# Runs a table. `hide` takes from a snapshot what depends on the computer; `needs` is a package.
expect_refused <- function(cases, hide = NULL, needs = "testthat") {
  for (title in names(cases)) {
    case <- cases[[title]]
    test_that(paste(title, "is refused"), {
      skip_without_tensorflow()
      skip_if_not_installed(needs)
      class <- paste0("gpukeras_error_", case$code)
      error <- expect_error(eval(case$call), class = class)
      expect_s3_class(error, "gpukeras_error")
      expect_match(one_line(error), case$names, fixed = TRUE)
      rlang::inject(expect_snapshot(!!case$call, error = TRUE, transform = hide))
    })
  }
}

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
  "a character matrix" =
    case("data", "`x` must be numeric", gpu_dataset(matrix(letters[1:8], 4), y)),
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
  "class weights named after other levels" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c(no = 1, yes = 2))),
  "class weights without names" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c(1, 2))),
  "a class weight for one level of two" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c("0" = 1))),
  "a negative class weight" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c("0" = 1, "1" = -1))),
  "an unknown kind of class weight" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = "even")),
  "class weights of numbers" =
    case("spec", "`class_weight`", gpu_dataset(x, y + 0.5, class_weight = "balanced"))
))

# Options of a dataset -----------------------------------------------------------------------------

expect_refused(list(
  "a batch larger than the rows" =
    case("spec", "`batch_size` is 5", gpu_dataset(x, y, batch_size = 5)),
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
})

# Formulas -----------------------------------------------------------------------------------------

expect_refused(list(
  "an interaction" = case("data", "interaction", gpu_dataset(mpg ~ cyl * disp, mtcars)),
  "an offset" = case("data", "offset", gpu_dataset(mpg ~ cyl + offset(disp), mtcars)),
  "poly()" = case("data", "poly()", gpu_dataset(mpg ~ poly(disp, 2), mtcars)),
  "a column that a formula names in vain" =
    case("data", "`displacement`", gpu_dataset(mpg ~ displacement, mtcars)),
  "a label that a formula names in vain" = case("data", "`mpgg`", gpu_dataset(mpgg ~ ., mtcars)),
  "a formula without data" = case("spec", "`data`", gpu_dataset(mpg ~ .)),
  "a formula with a matrix" = case("spec", "`data`", gpu_dataset(mpg ~ ., as.matrix(mtcars))),
  "a formula with duplicate names" =
    case("data", "more than one column `a`", gpu_dataset(good ~ a, cbind(column(), twice)))
))

# Models -------------------------------------------------------------------------------------------

if (has_tensorflow()) {
  classes <- gpu_dataset(x, factor(c("u", "v", "w", "u")))
  numbers <- gpu_dataset(x, c(1.5, 2, 3, 4))
  unlabelled <- gpu_dataset(x)
  other <- gpu_dataset(x, factor(c("u", "v", "other", "u")))
  fitted <- trained(numbers)
  saved <- withr::local_tempfile()
  saveRDS(classes, saved)
  two_columns <- matrix(1, 4, 2)
  with_loss <- function(loss, units = 3) a_model(units = units, loss = loss)
}

expect_refused(list(
  "labels that count from 1" = case(
    "data", "`y` has labels from 1 to 3", gpu_fit(a_model(), gpu_dataset(x, c(1L, 2L, 3L, 1L)))
  ),
  "a label beyond the output layer" =
    case("data", "0 to 2", gpu_fit(a_model(), gpu_dataset(x, c(0, 1, 2, 3)))),
  "a negative label" = case("data", "from -1", gpu_fit(a_model(), gpu_dataset(x, c(0, 1, 2, -1)))),
  "more levels than output units" =
    case("data", "3 units", gpu_fit(a_model(), gpu_dataset(x, factor(letters[1:4])))),
  "a fraction as class" =
    case("data", "one class a row", gpu_fit(a_model(), gpu_dataset(x, c(0.5, 1, 2, 1)))),
  "labels 1 and 2 for a sigmoid" = case(
    "data", "0 to 1",
    gpu_fit(with_loss("binary_crossentropy", 1), gpu_dataset(x, c(1, 2, 1, 2)))
  ),
  "classes for a loss of columns" =
    case("model", "one column a class", gpu_fit(with_loss("categorical_crossentropy"), classes)),
  "a number for three outputs" =
    case("model", "3 units", gpu_fit(with_loss("mse"), numbers)),
  "two numbers for three outputs" =
    case("model", "3 units", gpu_fit(with_loss("mse"), gpu_dataset(x, two_columns))),
  "a model that is not compiled" =
    case("model", "`model` is not compiled", gpu_fit(a_model(compiled = FALSE), classes)),
  "a model of another input shape" =
    case("model", "(5,)", gpu_fit(a_model(inputs = 5), classes)),
  "an image model for a table" =
    case("model", "(4, 4, 1)", gpu_fit(a_model(inputs = c(4, 4, 1)), classes)),
  "a data frame as model" = case("spec", "`model`", gpu_fit(mtcars, classes)),
  "a text as model" = case("spec", "`model`", gpu_fit("model", classes)),
  "no model" = case("spec", "`model`", gpu_predict(NULL, x)),
  "an evaluation of an uncompiled model" =
    case("model", "not compiled", gpu_evaluate(a_model(compiled = FALSE), x, c(0, 1, 2, 0)))
))

expect_refused(list(
  "a perceptron without labels" = case("data", "`data` has no labels", gpu_mlp(unlabelled)),
  "a perceptron of a data frame" = case("spec", "`data`", gpu_mlp(mtcars)),
  "a layer without units" = case("spec", "`units`", gpu_mlp(classes, units = c(8, 0))),
  "an unknown activation" = case("spec", "rleu", gpu_mlp(classes, activation = "rleu")),
  "an unknown optimizer" = case("spec", "adm", gpu_mlp(classes, optimizer = "adm")),
  "a function as activation" = case("spec", "`activation`", gpu_mlp(classes, activation = mean)),
  "a dropout of everything" = case("spec", "`dropout`", gpu_mlp(classes, dropout = 1)),
  "a learning rate of 0" = case("spec", "`learning_rate`", gpu_mlp(classes, learning_rate = 0)),
  "a text for batch_norm" = case("spec", "`batch_norm`", gpu_mlp(classes, batch_norm = "yes"))
))

# Training, evaluating, predicting -----------------------------------------------------------------

expect_refused(list(
  "an unknown engine" = case("spec", "`engine`", gpu_fit(a_model(), classes, engine = "turbo")),
  "no epochs" = case("spec", "`epochs`", gpu_fit(a_model(), classes, epochs = 0)),
  "a text as epochs" = case("spec", "`epochs`", gpu_fit(a_model(), classes, epochs = "ten")),
  "a batch larger than the training rows" =
    case("spec", "`batch_size` is 10", gpu_fit(a_model(), classes, batch_size = 10)),
  "a fit of a data frame" = case("spec", "`data`", gpu_fit(a_model(), mtcars)),
  "a fit without labels" = case("data", "`data` has no labels", gpu_fit(a_model(), unlabelled)),
  "a loud training" = case("spec", "`verbose`", gpu_fit(a_model(), classes, verbose = "loud")),
  "validation rows of another encoding" =
    case("data", "`validation`", gpu_fit(a_model(), classes, validation = other)),
  "validation labels that training did not see" = case(
    "data", "did not see: w2",
    gpu_fit(a_model(), classes, validation = list(x, c("u", "v", "w2", "u")))
  ),
  "a dataset of another session" =
    case("data", "another R session", gpu_fit(a_model(), readRDS(saved))),
  "an unknown part" = case("spec", "`part`", gpu_evaluate(fitted, numbers, part = "test")),
  "a part without rows" =
    case("data", "no validation rows", gpu_evaluate(a_model(), classes, part = "validation")),
  "classes of a number" =
    case("data", "`type = \"class\"`", gpu_predict(fitted, x, type = "class")),
  "new rows without rows" = case("data", "`newdata` has no rows", gpu_predict(fitted, x[0, ])),
  "new rows of another width" = case("data", "`newdata`", gpu_predict(fitted, x[, 1:2])),
  "new rows of text" = case("data", "`newdata` must be", gpu_predict(fitted, matrix("a", 1, 3))),
  "a data frame for a model of a matrix" =
    case("data", "`newdata`", gpu_predict(fitted, as.data.frame(x))),
  "a data frame for a model that gpukeras did not train" =
    case("data", "`newdata`", gpu_predict(a_model(), as.data.frame(x))),
  "classes of a model that gpukeras did not train" =
    case("data", "trained on classes", gpu_predict(a_model(), x, type = "class"))
))

expect_refused(list(
  "a wrong type" = case("spec", "`type`", gpu_predict(a_model(), x, type = "prob")),
  "a type that is NA" = case("spec", "`type`", gpu_predict(a_model(), x, type = NA)),
  "an R model" = case("spec", "`model`", gpu_predict(stats::lm(mpg ~ wt, mtcars), mtcars)),
  "no model" = case("spec", "`model`", gpu_fit(NULL, list(x, y))),
  "a model of another session" =
    case("model", "`model`", gpu_predict(unserialize(serialize(a_model(), NULL)), x)),
  "a recipe that is none" = case("spec", "`recipe`", gpu_dataset(x, y, recipe = "x")),
  "a flag that is NA" = case("spec", "`shuffle`", gpu_dataset(x, y, shuffle = NA)),
  "a number that is NA" = case("spec", "`epochs`", gpu_fit(a_model(), list(x, y), epochs = NA)),
  "weights without labels" = case("data", "`weights`", gpu_dataset(x, weights = rep(1, nrow(x)))),
  "a class weight named twice" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c(a = 1, a = 2))),
  "evaluation without labels" = case("data", "`data` has no labels", gpu_evaluate(a_model(), x)),
  "a batch size of nothing" =
    case("spec", "`batch_size`", gpu_evaluate(a_model(), x, y, batch_size = 0)),
  "a callback that is none" =
    case("spec", "`callbacks`", gpu_fit(a_model(), list(x, y), callbacks = list("x"))),
  "no verbose" = case("spec", "`verbose`", gpu_fit(a_model(), list(x, y), verbose = NULL)),
  "a formula without features" =
    case("data", "The formula names no feature", gpu_dataset(mpg ~ 1, mtcars))
))

# Options of a training ----------------------------------------------------------------------------

fit <- function(...) gpu_fit(fitted, numbers, 2, ..., verbose = FALSE)
new_folder <- at("run")
dir.create(at("others"))
invisible(file.create(at("others/notes.txt"), at("file")))

expect_refused(list(
  "a name as schedule" = case("spec", "`schedule`", fit(schedule = "cosine")),
  "a rate as schedule" = case("spec", "`schedule`", fit(schedule = 0.1)),
  "a schedule that was not called" =
    case("spec", "`schedule` must be made by", fit(schedule = schedule_one_cycle)),
  "a list as schedule" = case("spec", "`schedule`", fit(schedule = list(kind = "cosine"))),
  "a warm-up longer than the training" =
    case("spec", "`warmup` is 3 epochs", fit(schedule = schedule_constant(warmup = 3))),
  "a lowest rate above the optimizer's own" =
    case("spec", "`min_rate`", fit(schedule = schedule_warmup_cosine(min_rate = 10, warmup = 0))),
  "a plateau of a metric that is not there" =
    case("spec", "`monitor` is \"auc\"", fit(schedule = schedule_plateau(monitor = "auc"))),
  "clipping to nothing" = case("spec", "`clip_norm`", fit(clip_norm = 0)),
  "clipping to less than nothing" = case("spec", "`clip_value`", fit(clip_value = -1)),
  "a text as clipping" = case("spec", "`clip_global_norm`", fit(clip_global_norm = "1")),
  "two bounds of a kind" = case("spec", "`clip_norm`", fit(clip_norm = c(1, 2))),
  "clipping that is NA" = case("spec", "`clip_value` must be a value", fit(clip_value = NA)),
  "clipping in two ways" =
    case("spec", "`clip_norm` and `clip_value`", fit(clip_norm = 1, clip_value = 1)),
  "averages that never change" = case("spec", "`ema`", fit(ema = 1)),
  "averages of the last step alone" = case("spec", "`ema`", fit(ema = 0)),
  "a flag as momentum" = case("spec", "`ema`", fit(ema = TRUE)),
  "no patience" = case("spec", "`early_stopping`", fit(early_stopping = 0)),
  "half an epoch of patience" = case("spec", "`early_stopping`", fit(early_stopping = 1.5)),
  "a flag as early stopping" = case("spec", "`early_stopping`", fit(early_stopping = TRUE)),
  "early stopping that is NA" = case("spec", "`early_stopping`", fit(early_stopping = NA)),
  "early stopping without patience" =
    case("spec", "`patience`", fit(early_stopping = list(monitor = "loss"))),
  "early stopping with another option" =
    case("spec", "`delta`", fit(early_stopping = list(patience = 1, delta = 2))),
  "early stopping by a metric that is not there" =
    case("spec", "`monitor` is \"auc\"", fit(early_stopping = list(patience = 1, monitor = "auc"))),
  "early stopping by another direction" =
    case("spec", "`mode`", fit(early_stopping = list(patience = 1, mode = "up"))),
  "an option that is NA" =
    case("spec", "`early_stopping` must be a value", fit(early_stopping = list(patience = NA))),
  "another answer to full memory" = case("spec", "`on_oom`", fit(on_oom = "retry")),
  "a batch size that is NA" = case("spec", "`batch_size` must be a value", fit(batch_size = NA)),
  "two engines" = case("spec", "`engine`", fit(engine = c("keras", "compiled")))
))

expect_refused(list(
  "a flag as checkpoint" = case("spec", "`checkpoint`", fit(checkpoint = TRUE)),
  "an empty path as checkpoint" = case("spec", "`checkpoint`", fit(checkpoint = "")),
  "two folders as checkpoint" = case("spec", "`checkpoint`", fit(checkpoint = c("a", "b"))),
  "a checkpoint without a folder" =
    case("spec", "`checkpoint`", fit(checkpoint = list(every_s = 3))),
  "a checkpoint with another option" =
    case("spec", "`kep`", fit(checkpoint = list(folder = new_folder, kep = 2))),
  "keeping no checkpoint" =
    case("spec", "`keep`", fit(checkpoint = list(folder = new_folder, keep = 0))),
  "a checkpoint in a negative time" =
    case("spec", "`every_s`", fit(checkpoint = list(folder = new_folder, every_s = -1))),
  "a checkpoint in a folder that is not there" =
    case("checkpoint", "does not exist", fit(checkpoint = at("none/run"))),
  "a file as checkpoint" = case("checkpoint", "is a file", fit(checkpoint = at("file"))),
  "a folder with other files as checkpoint" =
    case("checkpoint", "holds other files", fit(checkpoint = at("others"))),
  "a history that is not there" = case("data", "history.json", read_history(at("others"))),
  "a file that is no history" = case("data", "is not JSON", read_history(at("csv.npy"))),
  "a number as the path of a history" = case("spec", "`path`", read_history(3))
))

test_that("a checkpoint of another training is refused, and says in what it differs", {
  skip_without_tensorflow()
  folder <- at("first")
  first <- gpu_dataset(x, c(1.5, 2, 3, 4), batch_size = 2, seed = 1)
  train <- function(data = first, ..., units = 4) {
    model <- gpu_mlp(data, units = units, seed = 1)
    gpu_fit(model, data, 2, engine = "keras", ..., checkpoint = folder, verbose = FALSE)
  }
  train()
  others <- list(
    "batch size was 2 and is 4" = function() train(batch_size = 4),
    "variable 1 of the model" = function() train(units = 5),
    "`clip_norm` was none and is 1" = function() train(clip_norm = 1),
    "the schedule was none and is constant" = function() train(schedule = schedule_constant()),
    "the content of the labels" = function() {
      train(gpu_dataset(x, c(2, 1.5, 3, 4), batch_size = 2, seed = 1))
    },
    "the dataset's seed was 1 and is 2" = function() {
      train(gpu_dataset(x, c(1.5, 2, 3, 4), batch_size = 2, seed = 2))
    }
  )
  for (difference in names(others)) {
    error <- expect_error(others[[difference]](), class = "gpukeras_error_checkpoint")
    expect_match(one_line(error), difference, fixed = TRUE)
    expect_identical(error$arg, "checkpoint")
  }
  expect_snapshot(train(batch_size = 4), error = TRUE)
  expect_identical(train()$resumed_epochs, 2L)
})

test_that("an argument that gpu_fit() does not have is refused by name", {
  expect_error(gpu_fit(NULL, NULL, epcohs = 2), "epcohs")
})

# Devices ------------------------------------------------------------------------------------------

expect_refused(hide = function(lines) sub("finds .*\\.", "finds <devices>.", lines), list(
  "a device that is not there" = case("no_device", "GPU:99", with_device("GPU:99", 1)),
  "a setup for a device that is not there" =
    case("no_device", "GPU:99", gpu_setup(device = "GPU:99")),
  "a device of no known kind" = case("spec", "`device`", with_device("tpu", 1))
))

test_that("a GPU where there is none is refused", {
  skip_without_tensorflow()
  skip_if(has_gpu(), "This computer has a GPU")
  error <- expect_error(gpu_setup(device = "gpu"), class = "gpukeras_error_no_device")
  expect_identical(error$wanted, "gpu")
  expect_snapshot(gpu_setup(device = "gpu"), error = TRUE)
})
