# A model of one linear unit that is not compiled.
plain_model <- function() {
  keras <- import_keras()
  keras$utils$set_random_seed(1L)
  keras$Sequential(list(keras$Input(list(3L)), keras$layers$Dense(1L)))
}

test_that("R functions in lists keep the names that they were given", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  ops <- import_keras()$ops
  off <- function(y, p) ops$subtract(ops$reshape(y, c(-1L, 1L)), p)
  squared <- function(y, p) ops$mean(ops$square(off(y, p)), axis = -1L)
  absolute <- function(y, p) ops$mean(ops$abs(off(y, p)), axis = -1L)
  twice <- function(y, p) ops$mean(ops$multiply(2, ops$abs(off(y, p))), axis = -1L)
  x <- a_matrix(40)
  y <- x[, 1] - x[, 2]
  model <- plain_model()
  fit <- gpu_fit(
    model, x, y,
    epochs = 2, validation_split = 0.5, verbose = FALSE, optimizer = "sgd",
    loss = list(mine = squared), metrics = list(ABS = absolute, "mae", twiceAbs = twice),
    early_stopping = list(patience = 5, monitor = "val_twiceAbs", mode = "min")
  )
  metrics <- c("ABS", "mae", "twiceAbs")
  expect_setequal(names(fit$history), c("loss", metrics, paste0("val_", c("loss", metrics))))
  expect_equal(fit$history$ABS, fit$history$mae, tolerance = 1e-5)
  expect_equal(fit$history$twiceAbs, 2 * fit$history$mae, tolerance = 1e-5)

  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  functions <- list(twiceAbs = twice, mine = squared, ABS = absolute)
  again <- gpu_load(path, custom_objects = functions)
  expect_equal(gpu_evaluate(again, x, y), gpu_evaluate(model, x, y))
  expect_message(gpu_load(path), "ABS")
})

test_that("functions of several outputs are called by these", {
  skip_outside_lane()
  parts <- function() list(inputs = "x", outputs = c("price", "cut"))
  f <- function(y, p) p
  named <- function(given) lapply(name_functions(given, "metrics", parts, NULL), function(one) {
    if (is.list(one)) lapply(one, attr, "py_function_name") else attr(one, "py_function_name")
  })
  expect_identical(named(list(price = f, cut = f)), list(price = "price", cut = "cut"))
  expect_identical(
    named(list(price = list(a = f, "mae"), cut = list(b = f))),
    list(price = list("a", NULL), cut = list("b"))
  )
  expect_identical(named(list(a = f, b = f)), list("a", "b"))
  expect_identical(named(list("mae", a = f)), list(NULL, "a"))
  expect_identical(name_functions(list(price = "mse"), "loss", parts, NULL), list(price = "mse"))
  expect_identical(name_functions("mse", "loss", parts, NULL), "mse")
  expect_identical(name_functions(f, "loss", parts, NULL), f)
  expect_snapshot(error = TRUE, {
    named(list(f, f))
    named(list(a = f, a = f))
    named(list(a = f, loss = f))
    named(list(a = f, b = "mae"))
    named(list(price = list(a = f, a = f)))
  })
})
