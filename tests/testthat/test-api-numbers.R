# Numbers of other classes: 64-bit integers of bit64, whose bits are no doubles, and units.

as_wide <- function(x) {
  wide <- bit64::as.integer64(x)
  if (is.null(dim(x))) stats::setNames(wide, names(x)) else structure(wide, dim = dim(x))
}

test_that("64-bit integers are read as the numbers that they are", {
  skip_if_not_installed("bit64")
  expect_identical(plain_number(as_wide(c(a = 2, b = -3))), c(a = 2, b = -3))
  expect_identical(plain_number(as_wide(c(1, NA))), c(1, NA))
  expect_identical(plain_number(as_wide(matrix(1:4 + 0, 2))), matrix(1:4 + 0, 2))
  expect_identical(plain_number(bit64::as.integer64("9007199254740991")), 2^53 - 1)
  for (large in c("9007199254740992", "9007199254740993", "-9007199254740993")) {
    epochs <- bit64::as.integer64(large)
    expect_error(plain_number(epochs), "`epochs` has 64-bit integers of 2\\^53",
      class = "gpukeras_error_spec"
    )
  }
})

test_that("numbers with a unit are refused, codes with labels are their numbers, others stay", {
  hours <- as.difftime(2, units = "hours")
  expect_error(plain_number(hours), "`hours` must be plain numbers", class = "gpukeras_error_spec")
  metres <- structure(2, class = "units", units = "m")
  expect_error(plain_number(metres), "plain numbers, not an? units", class = "gpukeras_error_spec")
  coded <- structure(c(1, 2), labels = c(no = 1, yes = 2), class = c("haven_labelled", "vctrs_vctr"))
  expect_identical(plain_number(coded), c(1, 2))
  for (other in list(1, 1L, NULL, "a", TRUE, Sys.Date(), factor("a"), list(1))) {
    expect_identical(plain_number(other), other)
  }
})

test_that("arguments of the core are read at any depth, and named by their place", {
  skip_if_not_installed("bit64")
  args <- list(model = mean, options = list(epochs = as_wide(3), more = list(NULL, as_wide(2:3))))
  expected <- list(model = mean, options = list(epochs = 3, more = list(NULL, c(2, 3))))
  expect_identical(plain_arguments(args), expected)
  expect_identical(plain_arguments(expected), expected)
  args$options$more <- list(as.difftime(1, units = "secs"))
  expect_error(plain_arguments(args), "`more`", class = "gpukeras_error_spec")
  expect_identical(check_no_na_options(list(seed = as_wide(4))), list(seed = 4))
  expect_error(check_no_na_options(list(seed = as_wide(NA))), "not NA", class = "gpukeras_error_spec")
  expect_null(check_no_na_options(list(seed = NULL))$seed)
})

test_that("weights of another kind are refused by their class", {
  kinds <- list(
    Sys.Date() + 1:2, Sys.time() + 1:2, factor(1:2), as.difftime(1:2, units = "mins"),
    structure(1:2, class = "units")
  )
  for (weights in kinds) {
    expect_error(as_weights(weights, NULL), "`weights` must be", class = "gpukeras_error")
  }
})

# Each function gives the same for integer64 as for as.numeric() of it. `n` makes the numbers.
rows <- data.frame(
  x = c(0.1, 0.4, 0.3, 0.8, 0.5, 0.9, 0.2, 0.7), n = c(1, 2, 1, 3, 2, 4, 1, 2),
  y = c(1, 0, 1, 1, 0, 1, 0, 1)
)
small <- function(...) gpu_dataset(rows["x"], rows$y, batch_size = 4, seed = 1, ...)
fitted_by <- function(n, ..., data = small()) {
  model <- gpu_mlp(data, units = n(3), seed = n(5), learning_rate = 0.1)
  history <- gpu_fit(model, data, ..., engine = "graph_loop", verbose = FALSE)
  list(history$metrics, lapply(as_r(model$get_weights()), as.vector))
}
wide_cases <- list(
  "weights of a dataset" = function(n) staged(small(weights = n(rows$n))),
  "class_weight" = function(n) staged(small(class_weight = n(c("0" = 1, "1" = 3)))),
  "class_weight as a list" = function(n) staged(small(class_weight = list("0" = n(1), "1" = n(3)))),
  "batch_size and seed of a dataset" = function(n) {
    gpu_dataset(rows["x"], rows$y, batch_size = n(4), seed = n(1), validation = 0.25)$plan
  },
  "labels" = function(n) staged(gpu_dataset(rows["x"], n(rows$n), seed = 1)),
  "weights of a formula" = function(n) {
    frame <- rows
    frame$n <- n(rows$n)
    staged(gpu_dataset(y ~ x, frame, weights = n / 2, seed = 1))
  },
  "a named column of weights" = function(n) {
    frame <- rows
    frame$n <- n(rows$n)
    staged(gpu_dataset(y ~ x, frame, weights = "n", seed = 1))
  },
  "terms and offsets of a formula" = function(n) {
    frame <- rows
    frame$n <- n(rows$n)
    data <- gpu_dataset(y ~ x + log(n) + x:n + offset(n), frame, seed = 1)
    model <- gpu_mlp(data, units = integer(), family = "poisson", seed = 1)
    list(staged(data), gpu_predict(model, frame, recipe = gpu_recipe(data)))
  },
  "rows of a dataset" = function(n) staged(small()[n(c(2, 3)), ]),
  "epochs, batch_size, clip_norm, validation" = function(n) {
    held <- list(rows["x"], rows$y, n(rows$n))
    fitted_by(n, epochs = n(2), batch_size = n(8), clip_norm = n(1), validation = held)
  },
  "the place of y" = function(n) fitted_by(n, n(2)),
  "early_stopping and a schedule" = function(n) {
    schedule <- schedule_exponential(decay = 0.9, every = n(1))
    stopping <- list(patience = n(1), monitor = "loss")
    fitted_by(n, epochs = 2, schedule = schedule, early_stopping = stopping)
  },
  "sample_weight of gpu_evaluate()" = function(n) {
    model <- gpu_mlp(small(), seed = 1)
    given <- n(rows$n)
    gpu_evaluate(model, rows["x"], rows$y, batch_size = n(4), sample_weight = given)
  },
  "quantiles and breaks" = function(n) {
    list(
      gpu_family("discrete_time", breaks = n(c(1, 3))),
      unclass(tune_range(n(1), n(8), integer = TRUE)), unclass(tune_values(n(1), n(4)))
    )
  },
  "seeds, folds and groups" = function(n) {
    list(
      as_seeds(n(c(3, 4)), NULL), as_fold(n(1:3)), as_group_codes(n(c(5, 7, 5))),
      as_times(n(c(3, 1, 2))), as_groups_of_rows(n(c(2, 1, 2)))
    )
  }
)

test_that("integer64 gives what as.numeric() of it gives, wherever numbers are taken", {
  skip_without_tensorflow(slow = TRUE)
  skip_if_not_installed("bit64")
  for (name in names(wide_cases)) {
    expect_equal(wide_cases[[name]](as_wide), wide_cases[[name]](identity), info = name)
  }
})

test_that("what is no number is refused as the number of a training", {
  skip_without_tensorflow()
  skip_if_not_installed("bit64")
  data <- small()
  model <- gpu_mlp(data, seed = 1)
  before <- as_r(model$get_weights())
  for (epochs in list(as_wide(NA), as.difftime(2, units = "mins"), Sys.Date(), factor("2"))) {
    expect_error(gpu_fit(model, data, epochs = epochs, verbose = FALSE), "epochs",
      class = "gpukeras_error_spec"
    )
  }
  expect_snapshot(error = TRUE, {
    gpu_fit(model, data, epochs = bit64::as.integer64("9007199254740993"), verbose = FALSE)
    gpu_fit(model, data, epochs = as.difftime(2, units = "mins"), verbose = FALSE)
  })
  expect_error(small(weights = as_wide(c(NA, 1:7))), "1 of 8 are NA", class = "gpukeras_error_data")
  expect_identical(as_r(model$get_weights()), before)
})
