test_that("settings print", {
  expect_snapshot({
    print(tune_range(1e-4, 0.1, log = TRUE))
    print(tune_range(16L, 256L))
    print(tune_values("adam", c(64, 32)))
    print(tune_values(TRUE, when = list(optimizer = c("sgd", "adam"), units = 3)))
    print(tune_range(0, 0.99, when = list(optimizer = "sgd")))
  })
})

test_that("what is no setting is refused", {
  skip_outside_lane()
  expect_snapshot(error = TRUE, {
    tune_values()
    tune_values(1, NA)
    tune_values(mean)
    tune_range("a", 1)
    tune_range(1, c(2, 3))
    tune_range(5, 1)
    tune_range(2, 2)
    tune_range(-1, 1, log = TRUE)
    tune_range(1, 2, log = NA)
    tune_range(1, 2, integer = "yes")
    tune_range(1, 2, when = "sgd")
    tune_values(1, when = list(optimizer = NULL))
  })
  expect_error(tune_range("a", 1), class = "gpukeras_error_spec")
  expect_error(tune_values(), class = "gpukeras_error_spec")
})

test_that("ranges of R's integers are whole, and values keep their type", {
  expect_true(tune_range(1L, 9L)$integer)
  expect_false(tune_range(1, 9)$integer)
  expect_false(tune_range(1L, 9L, integer = FALSE)$integer)
  values <- tune_values("a", 2L, c(x = 64, y = 32), factor("b"), FALSE)$values
  expect_identical(values, list("a", 2L, list(64, 32), "b", FALSE))
  expect_identical(tune_values(1, when = list(a = "b"))$when, list(a = list("b")))
})

test_that("plain values are fixed settings", {
  skip_outside_lane()
  settings <- as_settings(list(units = 8, rate = tune_range(0, 1)), NULL)
  expect_identical(settings$units$values, list(8))
  expect_identical(settings$rate$kind, "range")
  tune <- function(...) as_settings(list(...), rlang::current_env())
  expect_snapshot(error = TRUE, {
    tune(8)
    tune(units = 8, units = 9)
    tune(units = NA)
    tune(units = list(1, 2))
  })
})

# A parameter as dials 1.0 makes it.
a_parameter <- function(range, trans = NULL, type = "double", ...) {
  range <- stats::setNames(as.list(range), c("lower", "upper"))
  structure(list(type = type, range = range, trans = trans, ...), class = c("quant_param", "param"))
}

test_that("parameters of dials are ranges in their own units, or values", {
  shown <- function(x) unclass(as_setting(x, "x", NULL))[c("low", "high", "log", "integer")]
  penalty <- a_parameter(c(-10, 0), list(name = "log-10"))
  expect_equal(shown(penalty), list(low = 1e-10, high = 1, log = TRUE, integer = FALSE))
  batches <- a_parameter(c(4, 6), list(name = "log-2"), "integer")
  expect_equal(shown(batches), list(low = 16, high = 64, log = TRUE, integer = TRUE))
  units <- a_parameter(c(1L, 10L), type = "integer")
  expect_equal(shown(units), list(low = 1, high = 10, log = FALSE, integer = TRUE))
  activation <- structure(
    list(type = "character", values = c("relu", "tanh")), class = c("qual_param", "param")
  )
  expect_identical(as_setting(activation, "x", NULL)$values, list("relu", "tanh"))
  rates <- a_parameter(c(-4, -1), list(name = "log-10"), values = c(-3, -2))
  expect_equal(as_setting(rates, "x", NULL)$values, list(0.001, 0.01))
  several <- structure(
    list(id = c("a", "b"), object = list(units, activation)), class = "parameters"
  )
  settings <- as_settings(list(several, rate = 0.1), NULL)
  expect_identical(names(settings), c("a", "b", "rate"))
  expect_identical(settings$b$values, list("relu", "tanh"))
  expect_snapshot(error = TRUE, {
    as_setting(a_parameter(c(1, NA)), "mtry", NULL)
    as_setting(a_parameter(c(0, 1), list(name = "reciprocal")), "power", NULL)
  })
})

test_that("dials' own parameters are taken", {
  skip_if_not_installed("dials")
  penalty <- as_setting(dials::penalty(), "penalty", NULL)
  expect_equal(c(penalty$low, penalty$high), c(1e-10, 1))
  expect_true(penalty$log)
  units <- as_setting(dials::hidden_units(c(2L, 9L)), "units", NULL)
  expect_equal(c(units$low, units$high, units$integer), c(2, 9, 1))
  activation <- as_setting(dials::activation(c("relu", "elu")), "activation", NULL)
  expect_identical(activation$values, list("relu", "elu"))
  expect_error(as_setting(dials::mtry(), "mtry", NULL), class = "gpukeras_error_spec")
  rates <- dials::value_set(dials::learn_rate(), c(-3, -2))
  expect_equal(as_setting(rates, "rate", NULL)$values, as.list(dials::value_seq(rates, 2)))
  several <- dials::parameters(dials::penalty(), units = dials::hidden_units(c(2L, 9L)))
  settings <- as_settings(list(several, rate = 0.1), NULL)
  expect_identical(names(settings), c("penalty", "units", "rate"))
  expect_equal(c(settings$units$low, settings$units$high), c(2, 9))
})

test_that("a grid's rows are lists of settings", {
  grid <- data.frame(units = 1:2, rate = c(0.1, 0.2), kind = factor(c("a", "b")))
  grid$layers <- list(c(8, 4), 2)
  expect_identical(as_grid(grid, NULL), list(
    list(units = 1L, rate = 0.1, kind = "a", layers = list(8, 4)),
    list(units = 2L, rate = 0.2, kind = "b", layers = 2)
  ))
  expect_null(as_grid(NULL, NULL))
  expect_snapshot(error = TRUE, {
    as_grid(list(units = 1), NULL)
    as_grid(data.frame(units = c(1, NA)), NULL)
  })
})
