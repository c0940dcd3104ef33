# keras3, tensorflow, tfdatasets and gpukeras in one session, whoever comes first.

# One step of a model whose weights begin at zero, by the names that a user writes.
train_attached <- function(packages) {
  for (package in packages) suppressPackageStartupMessages(library(package, character.only = TRUE))
  x <- matrix(sin(1:30), 10)
  slices <- dataset_batch(tensor_slices_dataset(list(x, x[, 1])), 10)
  model <- keras_model_sequential(input_shape = 3)
  model <- layer_dense(model, 1, kernel_initializer = "zeros")
  compile(model, optimizer = optimizer_sgd(0.1), loss = loss_mean_squared_error())
  fit <- gpu_fit(model, slices, epochs = 1, engine = "keras", verbose = FALSE)
  list(loss = fit$history$loss, kernel = as.vector(get_weights(model)[[1]]), tf = tf_version())
}

permutations <- function(x) {
  if (length(x) < 2) {
    return(list(x))
  }
  unlist(lapply(x, function(one) lapply(permutations(setdiff(x, one)), c, one)), recursive = FALSE)
}

test_that("the packages are attached in any order", {
  skip_without_tfdatasets()
  orders <- permutations(c("keras3", "tensorflow", "tfdatasets", "gpukeras"))
  expect_length(unique(orders), 24)
  x <- matrix(sin(1:30), 10)
  kernel <- 0.2 * as.vector(crossprod(x, x[, 1])) / 10
  env <- c(callr::rcmd_safe_env(), TF_CPP_MIN_LOG_LEVEL = "3")
  for (pair in split(orders, (seq_along(orders) - 1) %/% 2)) { # two at a time
    running <- lapply(pair, function(order) callr::r_bg(train_attached, list(order), env = env))
    for (i in seq_along(pair)) {
      running[[i]]$wait()
      result <- running[[i]]$get_result()
      label <- paste(pair[[i]], collapse = ", ")
      expect_equal(result$loss, mean(x[, 1]^2), tolerance = 1e-5, label = label)
      expect_equal(result$kernel, kernel, tolerance = 1e-4, label = label)
    }
  }
})

test_that("no export has the name of one of its neighbours", {
  skip_outside_lane()
  ours <- getNamespaceExports("gpukeras")
  neighbours <- c(
    "base", "stats", "utils", "methods", "graphics", "grDevices", "datasets", "reticulate",
    "keras3", "tensorflow", "tfdatasets", "tfruns", "ggplot2", "dplyr", "tidyr", "purrr", "tibble",
    "readr", "generics", "hardhat", "recipes", "parsnip", "rsample", "yardstick", "rlang", "callr",
    "torch", "luz", "data.table", "Matrix", "withr", "magrittr", "lubridate", "stringr", "forcats"
  )
  for (package in neighbours) {
    if (!nzchar(system.file(package = package))) next
    theirs <- suppressWarnings(getNamespaceExports(package)) # one asks for the time zone
    expect_identical(intersect(ours, theirs), character(), label = package)
  }
})

test_that("plot(), print(), summary() and as.data.frame() of both histories are their own", {
  skip_without_keras3()
  skip_if_not_installed("ggplot2")
  x <- a_matrix(40)
  model <- keras3_model(3, 1, "linear", "mse")
  theirs <- keras3::fit(model, x, x[, 1], epochs = 3, verbose = 0)
  ours <- fit_briefly(model, epochs = 3)
  withr::local_pdf(withr::local_tempfile(fileext = ".pdf"))
  expect_s3_class(plot(theirs), "ggplot")
  expect_identical(withVisible(plot(ours)), list(value = ours, visible = FALSE))
  expect_s3_class(ggplot2::autoplot(ours), "ggplot")
  expect_output(print(ours), "<gpu_history> 3 epochs")
  expect_output(print(theirs), "Final epoch")
  expect_s3_class(summary(ours), "summary.gpu_history")
  both <- list(as.data.frame(theirs), as.data.frame(ours))
  for (frame in both) expect_true(all(c("epoch", "metric", "value", "data") %in% names(frame)))
})

test_that("tensorflow is set up before gpu_setup(), which says what came too late", {
  skip_without_keras3()
  said <- in_new_session(function() {
    library(tensorflow)
    tf$config$threading$set_intra_op_parallelism_threads(1L)
    set_random_seed(7, disable_gpu = FALSE)
    before <- as.numeric(tf$random$normal(list(1L)))
    library(gpukeras)
    setup <- gpu_setup(threads = 2)
    list(text = format(setup), threads = tf$config$threading$get_intra_op_parallelism_threads())
  })
  expect_identical(said$threads, 1L)
  expect_match(paste(said$text, collapse = "\n"), "too late|already|started")
})

test_that("gpu_setup() comes first and tensorflow's seed counts afterwards", {
  skip_without_keras3()
  seen <- in_new_session(function() {
    library(gpukeras)
    gpu_setup(threads = 1)
    library(keras3)
    use_backend("tensorflow")
    threads <- tensorflow::tf$config$threading$get_intra_op_parallelism_threads()
    x <- matrix(sin(1:60), 20)
    losses <- lapply(1:2, function(i) {
      tensorflow::set_random_seed(3, disable_gpu = FALSE)
      model <- keras_model_sequential(input_shape = 3) |>
        layer_dense(4, activation = "relu") |>
        layer_dropout(0.5) |>
        layer_dense(1)
      data <- gpu_dataset(x, x[, 1], batch_size = 5, seed = 1)
      fit <- gpu_fit(model, data, 2, loss = "mse", engine = "keras", verbose = FALSE)
      fit$history$loss
    })
    list(threads = threads, losses = losses)
  })
  expect_identical(seen$threads, 1L)
  expect_identical(seen$losses[[1]], seen$losses[[2]])
})

test_that("models of keras3 train on JAX, with the backend that keras3 chose", {
  skip_without_keras3()
  skip_if_not(reticulate::py_module_available("jax"), "The Python package jax is not installed.")
  seen <- in_new_session(function() {
    library(keras3)
    use_backend("jax")
    library(gpukeras)
    model <- keras_model_sequential(input_shape = 3) |> layer_dense(1)
    x <- matrix(sin(1:60), 20)
    fit <- gpu_fit(model, gpu_dataset(x, x[, 1], batch_size = 5), 2, loss = "mse", verbose = FALSE)
    list(loss = fit$history$loss, backend = keras3::config_backend())
  }, env = c(KERAS_BACKEND = "jax"))
  expect_identical(seen$backend, "jax")
  expect_length(seen$loss, 2L)
})

test_that("another backend of Keras is refused by its name", {
  skip_without_keras3()
  condition <- in_new_session(function() {
    library(gpukeras)
    x <- matrix(sin(1:30), 10)
    tryCatch(gpu_mlp(gpu_dataset(x, x[, 1])), error = function(condition) {
      list(class = class(condition), message = conditionMessage(condition), hint = condition$hint)
    })
  }, env = c(KERAS_BACKEND = "numpy"))
  expect_true("gpukeras_error_runtime_missing" %in% condition$class)
  expect_match(condition$message, "numpy")
  expect_match(condition$hint, "KERAS_BACKEND=tensorflow", fixed = TRUE)
})
