# For tests with the R packages keras3, tensorflow and tfdatasets, which Debian does not have.

skip_without_keras3 <- function() {
  testthat::skip_if_not(
    nzchar(system.file(package = "keras3")), "The R package keras3 is not installed"
  )
  skip_without_tensorflow()
  silence_tensorflow()
}

keras3_model <- function(inputs, units, activation, loss, metrics = NULL) {
  model <- keras3::keras_model_sequential(input_shape = inputs)
  model <- keras3::layer_dense(model, units = 8, activation = "relu")
  model <- keras3::layer_dense(model, units = units, activation = activation)
  keras3::compile(model, optimizer = keras3::optimizer_adam(0.05), loss = loss, metrics = metrics)
  model
}

skip_without_tfdatasets <- function() {
  skip_without_keras3()
  testthat::skip_if_not(
    nzchar(system.file(package = "tfdatasets")), "The R package tfdatasets is not installed"
  )
}

# A model of one unit whose weights begin at zero: its first loss is the mean of y^2.
zero_model <- function(inputs = 3, ...) {
  model <- keras3::keras_model_sequential(input_shape = inputs)
  keras3::layer_dense(model, 1, kernel_initializer = "zeros", ...)
}

# Trains two epochs of a few batches, quietly.
fit_briefly <- function(model, data = NULL, ..., epochs = 2) {
  x <- a_matrix(40)
  data <- data %||% gpu_dataset(x, x[, 1], batch_size = 10, validation = 0.25, seed = 1)
  gpu_fit(model, data, epochs = epochs, verbose = 0, ...)
}

# Runs a function in an R session of its own that has the same packages.
in_new_session <- function(f, args = list(), env = character()) {
  callr::r(f, args, env = c(callr::rcmd_safe_env(), TF_CPP_MIN_LOG_LEVEL = "3", env))
}
