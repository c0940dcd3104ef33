# Rows given as a list: every list that holds x, y and weights is read by its names.

x <- matrix(sin(1:24), 24)
y <- cos(1:24)
w <- (1:24) / 24

# The weights of a line after two epochs, of equal beginnings.
line_of <- function(data, ...) {
  import_keras()$utils$set_random_seed(1L)
  model <- a_model(1, 1, "linear", loss = "mse", metrics = NULL)
  set.seed(1)
  gpu_fit(model, data, epochs = 2, batch_size = 8, engine = "graph_loop", verbose = FALSE, ...)
  lapply(as_r(model$get_weights()), function(weight) as.vector(as_r(weight)))
}

test_that("the names of a list of rows are honoured", {
  skip_without_tensorflow(slow = TRUE)
  expected <- line_of(gpu_dataset(x, y))
  expect_equal(line_of(list(x, y)), expected)
  expect_equal(line_of(list(y = y, x = x)), expected)
  expect_equal(line_of(list(y = y, x)), expected)
  expect_false(isTRUE(all.equal(line_of(list(x = matrix(y), y = as.vector(x))), expected)))
  weighted <- line_of(gpu_dataset(x, y, weights = w))
  expect_equal(line_of(list(weights = w, y = y, x = x)), weighted)
  expect_equal(line_of(list(x, y, sample_weight = w)), weighted)
  expect_equal(line_of(list(x, y, w)), weighted)
})

test_that("those of what a function gives too", {
  skip_without_tensorflow()
  expected <- line_of(gpu_dataset(function() list(x, y, w), steps = 1))
  turned <- function() list(weights = w, y = y, x = x)
  expect_equal(line_of(gpu_dataset(turned, steps = 1)), expected)
})

test_that("and those of rows to validate and evaluate on", {
  skip_without_tensorflow(slow = TRUE)
  model <- trained(gpu_dataset(x, y))
  expected <- gpu_evaluate(model, x, y)
  expect_equal(gpu_evaluate(model, list(y = y, x = x)), expected)
  expect_equal(gpu_evaluate(model, list(x, y)), expected)
  val_loss <- function(validation) {
    import_keras()$utils$set_random_seed(1L)
    model <- a_model(1, 1, "linear", loss = "mse", metrics = NULL)
    fit <- gpu_fit(
      model, gpu_dataset(x, y, shuffle = FALSE), epochs = 1, engine = "graph_loop",
      validation = validation, verbose = FALSE
    )
    fit$history$val_loss[[1]]
  }
  expect_equal(val_loss(list(y = y, x = x)), val_loss(list(x, y)))
})

test_that("inputs that are named x and y are no labels", {
  skip_without_tensorflow(slow = TRUE)
  inputs <- list(x = x, y = cbind(y, w))
  model <- trained(gpu_dataset(inputs, y))
  expect_length(gpu_predict(model, inputs), 24)
  expect_equal(gpu_evaluate(model, list(inputs, y)), gpu_evaluate(model, inputs, y))
})

test_that("vectors of places are taken by their names", {
  expect_identical(as_placed(c(workers = 2, index = 1), c("index", "workers")), c(1, 2))
  expect_identical(as_placed(c(2, 1), c("index", "workers")), c(2, 1))
  skip_without_tensorflow()
  pixels <- array(runif(4 * 8 * 6), c(4, 8, 6, 1))
  cut <- gpu_dataset(pixels, 1:4, augment = list(crop = c(width = 3, height = 7)))
  expect_equal(unlist(cut$shape), c(7, 3, 1))
  expect_equal(unlist(gpu_dataset(x, y, shard = c(workers = 3, index = 2))$plan$shard), c(2, 3))
})

test_that("names of losses lead to their outputs", {
  losses <- c(b = "mse", a = "mae")
  expect_identical(as_compiling(NULL, losses, NULL, NULL)$loss, as.list(losses))
})

model <- if (has_tensorflow()) trained(gpu_dataset(x, y))
expect_refused(list(
  "a list of rows without x" = case("data", "no `x`", gpu_fit(model, list(y = y, weights = w))),
  "a list of rows with two y" = case("data", "`y` twice", gpu_fit(model, list(y = y, y = x))),
  "weights under both of their names" = case(
    "data", "`weights` twice", gpu_evaluate(model, list(x, sample_weight = w, weights = w))
  ),
  "a batch with an unknown name" =
    case("data", "an element `labels`", gpu_dataset(function() list(x, labels = y))),
  "validation without x" =
    case("data", "no `x`", gpu_fit(model, list(x, y), validation = list(y = y, weights = w))),
  "rows with labels twice" = case("data", "`data` must be", gpu_evaluate(model, list(x, y), y)),
  "a shard with other names" =
    case("spec", "names first, of", gpu_dataset(x, y, shard = c(first = 1, of = 2))),
  "a shape with names" =
    case("spec", "names width", gpu_cost(model, input_shape = c(width = 1))),
  "texts without names" = case("spec", "`text` must be", gpu_dataset(x, y, text = list("a", 5))),
  "varied images without names" =
    case("spec", "`augment` must be", gpu_dataset(array(1, c(4, 2, 2, 1)), 1:4, augment = list(1)))
))

test_that("labels may be given beside a data frame, in the place of the formula's", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(mpg ~ wt + hp, mtcars))
  other <- transform(mtcars, mpg = mpg + 5)
  expected <- gpu_evaluate(model, other)
  expect_equal(gpu_evaluate(model, mtcars, other$mpg), expected)
  expect_equal(gpu_evaluate(model, mtcars[c("hp", "wt")], other$mpg), expected)
  expect_equal(gpu_evaluate(model, list(mtcars, other$mpg)), expected)
  expect_equal(gpu_evaluate(model, cbind(mtcars, new = other$mpg), "new"), expected)
  expect_equal(gpu_evaluate(model, mtcars, "mpg"), gpu_evaluate(model, mtcars))
})

test_that("two columns of one name are refused wherever rows have labels", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(mpg ~ wt + hp, mtcars))
  twice <- cbind(mtcars, wt = mtcars$disp)
  expect_error(gpu_evaluate(model, twice), "wt", class = "gpukeras_error_data")
  expect_error(gpu_importance(model, twice), "wt", class = "gpukeras_error_data")
})
