test_that("gpu_mlp() passes every option under its name", {
  skip_without_tensorflow()
  data <- gpu_dataset(a_matrix(4), 1:4)
  seen <- NULL
  local_core(function(name, args) {
    if (name != "mlp") {
      return(answer(""))
    }
    seen <<- args$options
    answer("a model")
  })
  gpu_mlp(data, units = 3, dropout = 0.5, seed = 4)
  expect_named(seen, setdiff(names(formals(gpu_mlp)), "data"), ignore.order = TRUE)
  expect_identical(seen$units, list(3)) # a lone number would arrive as a scalar
})

# Names of the layers' classes.
layers_of <- function(model) {
  vapply(as_r(model$layers), function(layer) as_r(layer$`__class__`$`__name__`), "")
}

# Units, activation and loss of a model's output.
output_of <- function(model) {
  layers <- as_r(model$layers)
  last <- layers[[max(which(layers_of(model) == "Dense"))]]
  list(
    units = as_r(last$units),
    activation = as_r(last$activation$`__name__`),
    loss = as_r(model$loss)
  )
}

test_that("output and loss fit the labels", {
  skip_without_tensorflow()
  x <- a_matrix(6)
  number <- list(units = 1L, activation = "linear", loss = "mean_squared_error")
  two <- list(units = 1L, activation = "sigmoid", loss = "binary_crossentropy")
  three <- list(units = 3L, activation = "softmax", loss = "sparse_categorical_crossentropy")
  columns <- list(units = 2L, activation = "linear", loss = "mean_squared_error")
  output <- function(y) output_of(gpu_mlp(gpu_dataset(x, y), units = 2))
  expect_identical(output(c(1.5, 2, 3, 4, 5, 6)), number)
  expect_identical(output(1:6), number)
  expect_identical(output(c(0, 1, 0, 1, 1, 1)), two)
  expect_identical(output(c(TRUE, FALSE, TRUE, TRUE, TRUE, TRUE)), two)
  expect_identical(output(c("no", "yes", "no", "no", "no", "no")), two)
  expect_identical(output(c("a", "b", "c", "a", "b", "c")), three)
  expect_identical(output(factor(c("a", "b", "a", "a", "b", "a"), levels = letters[1:3])), three)
  expect_identical(output(matrix(-1:10, 6)), columns)
})

test_that("labels that could mean something else are told", {
  skip_without_tensorflow()
  x <- a_matrix(6)
  sizes <- factor(c("High", "Low", "Mid", "Low", "Mid", "High"))
  ordinal <- function(y) invisible(gpu_mlp(gpu_dataset(x, y), family = "ordinal"))
  plain <- function(y) invisible(gpu_mlp(gpu_dataset(x, y)))
  expect_snapshot({
    ordinal(sizes)
    plain(ordered(sizes, c("Low", "Mid", "High")))
    plain(cbind(1:6, 6:1))
    plain(cbind(c(2, 3, 5, 7, 9, 11), c(0, 1, 1, 0, 1, 1)))
    plain(diag(2)[c(1, 2, 1, 2, 1, 1), ])
  })
  expect_message(ordinal(sizes), class = "gpukeras_labels")
  expect_no_message <- function(code) expect_message(code, NA)
  expect_no_message(ordinal(ordered(sizes, c("Low", "Mid", "High"))))
  expect_no_message(plain(sizes))
  expect_no_message(plain(1:6))
  expect_no_message(plain(as.character(sizes)))
  expect_snapshot(ordinal(as.character(sizes)), error = TRUE)
  expect_snapshot(ordinal(1:6), error = TRUE)
})

test_that("a message about labels comes once where many models are made", {
  said <- 0
  tell <- function() inform_gpukeras("of 7 labels", class = "gpukeras_labels")
  withCallingHandlers(for (i in 1:3) inform_labels_once(tell()), message = function(condition) {
    said <<- said + 1
    invokeRestart("muffleMessage")
  })
  expect_identical(said, 1)
})

test_that("hidden layers are as asked", {
  skip_without_tensorflow()
  data <- gpu_dataset(a_matrix(6), 1:6)
  names_of <- function(...) layers_of(gpu_mlp(data, ...))
  expect_identical(names_of(units = c(8, 4)), c(
    "Dense", "Activation", "Dense", "Activation", "Dense", "Rescaling"
  ))
  expect_identical(names_of(units = 8, batch_norm = TRUE, dropout = 0.1), c(
    "Dense", "BatchNormalization", "Activation", "Dropout", "Dense", "Rescaling"
  ))
})

test_that("optimizer and learning rate are as asked", {
  skip_without_tensorflow()
  data <- gpu_dataset(a_matrix(6), 1:6)
  rate <- function(...) as.numeric(as_r(gpu_mlp(data, ...)$optimizer$learning_rate$numpy()))
  expect_equal(rate(), 0.001, tolerance = 1e-6)
  expect_equal(rate(optimizer = "sgd", learning_rate = 0.25), 0.25)
})

test_that("arrays of higher rank are flattened", {
  skip_without_tensorflow()
  model <- gpu_mlp(gpu_dataset(array(1, c(6, 4, 3, 2)), 1:6))
  expect_identical(unlist(as_r(model$input_shape)), c(4L, 3L, 2L))
})

test_that("a seed fixes the weights, and set.seed() fixes the seed", {
  skip_without_tensorflow()
  data <- gpu_dataset(a_matrix(6), 1:6)
  x <- a_matrix(4)
  first <- gpu_predict(gpu_mlp(data, seed = 1), x)
  expect_identical(gpu_predict(gpu_mlp(data, seed = 1), x), first)
  expect_false(identical(gpu_predict(gpu_mlp(data, seed = 2), x), first))
  set.seed(1)
  drawn <- gpu_predict(gpu_mlp(data), x)
  expect_false(identical(gpu_predict(gpu_mlp(data), x), drawn))
  set.seed(1)
  expect_identical(gpu_predict(gpu_mlp(data), x), drawn)
})
