# Defects that once were, each with what should hold instead.

x <- matrix(as.double(1:12), 4)
y <- c(0, 1, 0, 1)
refused <- function(code, says, call) {
  error <- expect_error(call, class = paste0("gpukeras_error_", code))
  if (inherits(error, "gpukeras_error")) expect_match(one_line(error), says, fixed = TRUE)
}

# Silently wrong -----------------------------------------------------------------------------------

test_that("a column taken out of a formula is not a feature", {
  skip_without_tensorflow()
  expect_named(split_formula(mpg ~ . - hp - wt, mtcars, globalenv())$x, setdiff(names(mtcars), c("mpg", "hp", "wt")))
  expect_identical(length(gpu_dataset(mpg ~ . - hp, mtcars)$columns), 9L)
})

test_that("NA is no flag", {
  skip_without_tensorflow()
  refused("spec", "`shuffle`", gpu_dataset(x, y, shuffle = NA))
  refused("spec", "`scale`", gpu_dataset(x, y, scale = NA))
  refused("spec", "`batch_norm`", gpu_mlp(gpu_dataset(x, y), batch_norm = NA))
})

test_that("NA as a number is called NA", {
  skip_without_tensorflow()
  refused("spec", "not NA", gpu_dataset(x, y, batch_size = NA))
  refused("spec", "not NA", gpu_dataset(x, y, batch_size = NA_integer_))
  refused("spec", "not NA", gpu_mlp(gpu_dataset(x, y), units = c(8L, NA)))
  refused("spec", "not NA", gpu_fit(a_model(), gpu_dataset(x, y), epochs = NA))
  refused("spec", "not NA", gpu_setup(threads = NA))
})

test_that("weights need labels", {
  skip_without_tensorflow()
  refused("data", "`weights`", gpu_dataset(x, weights = rep(1, 4)))
  refused("data", "`class_weight`", gpu_dataset(x, class_weight = "balanced"))
})

test_that("labels out of range are refused in evaluation and validation too", {
  skip_without_tensorflow()
  model <- a_model()
  gpu_fit(model, list(x, c(0, 1, 2, 0)), epochs = 1, verbose = 0)
  refused("data", "`y`", gpu_evaluate(model, x, c(1, 2, 3, 1)))
  refused("data", "", gpu_fit(
    model, list(x, c(0, 1, 2, 0)), epochs = 1, verbose = 0, validation = list(x, c(1, 2, 3, 1))
  ))
})

test_that("a fraction among whole numbers is no class", {
  skip_without_tensorflow()
  refused("data", "one class a row", gpu_fit(a_model(), list(x, c(0, 0.5, 2, 1)), 1, verbose = 0))
})

test_that("a loss given as a function is checked as one given by name", {
  skip_without_tensorflow()
  loss <- import_keras()$losses$sparse_categorical_crossentropy
  refused("data", "from 1 to 3", gpu_fit(a_model(loss = loss), list(x, c(1, 2, 3, 1)), 1, verbose = 0))
})

test_that("class weights named twice are refused", {
  skip_without_tensorflow()
  refused("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c("0" = 1, "1" = 2, "1" = 3)))
})

# Refused though it is right -----------------------------------------------------------------------

test_that("gpu_evaluate() takes a number as batch size", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(x, c(1, 2, 3, 4.5)))
  expect_named(gpu_evaluate(model, x, 1:4, batch_size = 2), c("loss", "mean_absolute_error"))
  refused("spec", "`batch_size`", gpu_evaluate(model, x, 1:4, batch_size = 0))
  refused("spec", "`batch_size`", gpu_evaluate(model, x, 1:4, batch_size = -1))
  refused("spec", "`batch_size`", gpu_evaluate(model, x, 1:4, batch_size = 1.5))
  refused("spec", "`batch_size`", gpu_evaluate(model, x, 1:4, batch_size = "many"))
})

test_that("a backtick in a column's name is no end of a name", {
  skip_without_tensorflow()
  odd <- stats::setNames(data.frame(1:4, 4:1), c("ba`ck", "y"))
  expect_identical(gpu_dataset(odd, "y")$plan$rows, 4L)
})

test_that("a single callback is a list of one", {
  skip_without_tensorflow()
  stopping <- import_keras()$callbacks$EarlyStopping(monitor = "loss", min_delta = 1e9, patience = 0L)
  fit <- gpu_fit(a_model(), list(x, y), 5, callbacks = stopping, verbose = 0)
  expect_identical(fit$stopped, "early")
})

test_that("evaluation looks only at the columns that training had", {
  skip_without_tensorflow()
  frame <- data.frame(a = 1:4, b = c(2, 1, 4, 3))
  model <- trained(gpu_dataset(frame, 1:4))
  more <- cbind(frame, day = Sys.Date())
  expect_equal(gpu_evaluate(model, more, 1:4), gpu_evaluate(model, frame, 1:4))
})

test_that("a history without epochs can be plotted", {
  none <- new_gpu_history(a_report(history = list(), epochs = 0L, epoch_s = list()))
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off())
  expect_error(plot(none), class = "gpukeras_error") # or nothing at all
})

# Refused, but not by a classed error ----------------------------------------------------------------

test_that("evaluation and validation without labels are refused", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(x, c(1, 2, 3, 4.5)))
  refused("data", "labels", gpu_evaluate(model, x))
  refused("data", "", gpu_fit(model, gpu_dataset(x, c(1, 2, 3, 4.5)), 1, validation = x, verbose = 0))
})

test_that("callbacks that are none are refused", {
  skip_without_tensorflow()
  refused("spec", "`callbacks`", gpu_fit(a_model(), list(x, y), 1, callbacks = list("x"), verbose = 0))
  refused("spec", "`callbacks`", gpu_fit(a_model(), list(x, y), 1, callbacks = list(mean), verbose = 0))
})

test_that("an R object that Python cannot hold is no model", {
  refused("spec", "`model`", gpu_predict(stats::lm(mpg ~ wt, mtcars), x))
})

test_that("a model or a recipe of another session is refused", {
  skip_without_tensorflow()
  again <- function(object) unserialize(serialize(object, NULL))
  refused("model", "another R session", gpu_predict(again(a_model()), x))
  refused("data", "another R session", gpu_dataset(x, recipe = again(gpu_dataset(x))))
  refused("data", "another R session", gpu_predict(a_model(), again(gpu_dataset(x))))
})

test_that("NULL is no verbose", {
  refused("spec", "`verbose`", progress_listener(NULL))
})

test_that("a wrong type and a misspelled argument are classed as the others", {
  skip_without_tensorflow()
  refused("spec", "`type`", gpu_predict(a_model(), x, type = "prob"))
  refused("spec", "bathc_size", gpu_dataset(x, y, bathc_size = 2))
})

# No rows ------------------------------------------------------------------------------------------

# What no rows give has the type, the columns and the levels of what rows give.
expect_none <- function(data, rows, type = "response") {
  model <- trained(data)
  some <- gpu_predict(model, rows, type = type)
  none <- gpu_predict(model, rows[0, , drop = FALSE], type = type)
  first <- function(x) if (is.matrix(x)) x[0, , drop = FALSE] else x[0]
  expect_identical(none, if (rlang::is_bare_list(some)) lapply(some, first) else first(some))
}

test_that("predictions of no rows are none, of the right type", {
  skip_without_tensorflow()
  wide <- as.matrix(mtcars[2:5])
  cars <- transform(mtcars, cyl = factor(cyl), am = am == 1)
  expect_none(gpu_dataset(Species ~ ., data = iris), iris, "class")
  expect_none(gpu_dataset(list(mpg, cyl) ~ ., data = cars), cars, "class")
  expect_none(gpu_dataset(wide, mtcars$mpg, na = "drop"), wide)
  if (is_nightly()) {
    expect_none(gpu_dataset(Species ~ ., data = iris), iris)
    expect_none(gpu_dataset(am ~ ., data = cars), cars, "class")
    expect_none(gpu_dataset(mpg ~ ., data = mtcars, na = "drop"), mtcars)
    expect_none(gpu_dataset(cbind(mpg, wt) ~ hp, data = mtcars, na = "impute"), mtcars)
  }
})

test_that("no rows of a sparse matrix, of several inputs and of a model of Keras' own give none", {
  skip_without_tensorflow(slow = TRUE)
  if (rlang::is_installed("Matrix")) {
    sparse <- methods::as(as.matrix(mtcars[2:5]), "CsparseMatrix")
    expect_none(gpu_dataset(sparse, mtcars$mpg), sparse)
  }
  inputs <- list(one = as.matrix(mtcars[2:5]), two = mtcars[6:7])
  model <- trained(gpu_dataset(inputs, mtcars$mpg))
  expect_identical(gpu_predict(model, lapply(inputs, function(part) part[0, ])), numeric())
  expect_identical(gpu_predict(a_model(4), inputs$one[0, ]), matrix(0, 0, 3))
})

test_that("no rows are encoded all the same: a column that lacks is named", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(iris[1:4], iris$Species))
  refused("data", "lacks the column `Sepal.Length`", gpu_predict(model, iris[0, 2:4]))
  refused("data", "`data` has no rows", gpu_evaluate(model, iris[0, 1:4], iris$Species[0]))
})

# Messages that name something else ------------------------------------------------------------------

test_that("errors name the argument that the user gave", {
  skip_without_tensorflow()
  holes <- replace(mtcars, "wt", NA_real_)
  refused("data", "of `data`", gpu_dataset(mpg ~ ., holes))
  refused("data", "`data` has no rows", gpu_dataset(mpg ~ ., mtcars[0, ]))
  refused("spec", "`recipe`", gpu_dataset(x, y, recipe = "x"))
  model <- trained(gpu_dataset(mpg ~ ., mtcars))
  refused("data", "of `data`", gpu_evaluate(model, holes))
})

test_that("labels are not a column of themselves", {
  skip_without_tensorflow()
  refused("data", "`y` has 1 missing", gpu_dataset(x, c(1L, NA, 2L, 3L)))
  refused("data", "Column `v` of `y`", gpu_dataset(x, cbind(u = 1:4 + 0.5, v = c(1, NA, 3, 4))))
})

test_that("errors name the function that the user called", {
  skip_without_core()
  error <- expect_error(gpu_dataset(data.frame(a = c(1, NA)), 1:2))
  expect_identical(rlang::call_name(error$call), "gpu_dataset")
})

# Interrupts (reticulate 1.28; each run fails with a chance of about one third) ------------------------

test_that("an interrupt is neither lost nor the end of the script", {
  skip_without_tensorflow(slow = TRUE)
  folder <- withr::local_tempdir()
  # Each after another number of epochs.
  deep_in <- function(run) {
    log <- file.path(folder, run)
    function() file.exists(log) && length(readLines(log, warn = FALSE)) > 20 * run
  }
  runs <- few(1:6, 3)
  found <- in_second_session(function(folder, runs) {
    x <- matrix(sin(1:640), ncol = 10)
    data <- gpu_dataset(x, x[, 1], batch_size = 32)
    model <- gpu_mlp(data)
    vapply(runs, function(run) {
      log <- reticulate::import("keras")$callbacks$CSVLogger(file.path(folder, run))
      fit <- gpu_fit(model, data, 30000, engine = "graph_loop", callbacks = list(log), verbose = 0)
      fit$stopped
    }, "")
  }, list(folder, runs), when = lapply(runs, deep_in))
  expect_identical(found, rep("interrupted", length(runs)))
})
