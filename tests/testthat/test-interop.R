# keras3's own fit(), saving and callbacks beside gpu_fit().

test_that("a keras3 model trains, evaluates and predicts", {
  skip_without_keras3()
  data <- gpu_dataset(Species ~ ., iris, batch_size = 15, seed = 1)
  model <- keras3_model(4, 3, "softmax", "sparse_categorical_crossentropy", "accuracy")
  fit <- gpu_fit(model, data, epochs = 10, engine = "graph_loop", verbose = 0)
  expect_named(fit$history, c("loss", "accuracy"))
  expect_lt(fit$history$loss[10], fit$history$loss[1])
  class <- gpu_predict(model, iris, type = "class")
  expect_identical(levels(class), levels(iris$Species))
  expect_gt(mean(class == iris$Species), 0.8)
  expect_equal(
    gpu_evaluate(model, iris)[["accuracy"]], mean(class == iris$Species),
    tolerance = 1e-6
  )
})

test_that("keras3's losses and metrics as objects work", {
  skip_without_keras3()
  x <- a_matrix(40)
  model <- keras3_model(
    3, 1, "linear", keras3::loss_mean_squared_error(), keras3::metric_mean_absolute_error()
  )
  fit <- gpu_fit(model, list(x, x[, 1]), epochs = 2, engine = "keras", verbose = 0)
  expect_named(fit$history, c("loss", "mean_absolute_error"))
  labels <- gpu_dataset(x, rep(1:2, 20))
  classes <- keras3_model(3, 2, "softmax", keras3::loss_sparse_categorical_crossentropy())
  expect_error(gpu_fit(classes, labels), "count from 1", class = "gpukeras_error_data")
})

test_that("a keras3 callback is Keras' own", {
  skip_without_keras3()
  x <- a_matrix(40)
  model <- keras3_model(3, 1, "linear", "mse")
  stopping <- keras3::callback_early_stopping("loss", min_delta = 1e9, patience = 0)
  fit <- gpu_fit(model, list(x, x[, 1]), epochs = 9, callbacks = list(stopping), verbose = 0)
  expect_identical(fit$stopped, "early")
  expect_identical(fit$epochs, 2L)
})

test_that("a callback written in R with keras3 sees every epoch", {
  skip_without_keras3()
  x <- a_matrix(40)
  epochs <- numeric()
  counting <- keras3::callback_lambda(
    on_epoch_end = function(epoch, logs) epochs <<- c(epochs, epoch)
  )
  gpu_fit(
    keras3_model(3, 1, "linear", "mse"), list(x, x[, 1]),
    epochs = 3, callbacks = list(counting), engine = "graph_loop", verbose = 0
  )
  expect_length(epochs, 3)
})

test_that("keras3's own fit() and predict() work after gpu_fit(), and the other way round", {
  skip_without_keras3()
  x <- a_matrix(40)
  model <- keras3_model(3, 1, "linear", "mse")
  first <- gpu_fit(model, list(x, x[, 1]), epochs = 5, engine = "graph_loop", verbose = 0)
  own <- keras3::fit(model, x, x[, 1], epochs = 2, verbose = 0)
  expect_length(own$metrics$loss, 2)
  expect_lt(own$metrics$loss[2], first$history$loss[1])
  predicted <- stats::predict(model, x, verbose = 0)
  expect_equal(gpu_predict(model, x), as.vector(predicted), tolerance = 1e-5)
})

test_that("a gpu_mlp() is a keras3 model", {
  skip_without_keras3()
  data <- gpu_dataset(mpg ~ ., mtcars)
  file <- withr::local_tempfile(fileext = ".keras")
  model <- trained(data)
  keras3::save_model(model, file)
  again <- keras3::load_model(file)
  x <- as_r(data$handle$arrays)[[1]]
  expect_equal(gpu_predict(again, x), gpu_predict(model, data), tolerance = 1e-5)
})

test_that("tfdatasets works beside it", {
  skip_without_keras3()
  skip_if_not(
    nzchar(system.file(package = "tfdatasets")), "The R package tfdatasets is not installed"
  )
  x <- a_matrix(40)
  model <- keras3_model(3, 1, "linear", "mse")
  gpu_fit(model, list(x, x[, 1]), epochs = 1, engine = "graph_loop", verbose = 0)
  slices <- tfdatasets::tensor_slices_dataset(list(x, x[, 1]))
  own <- keras3::fit(model, tfdatasets::dataset_batch(slices, 8), epochs = 1, verbose = 0)
  expect_true(is.finite(own$metrics$loss))
})

test_that("keras3's layers map features, and its generators' functions are taken as they are", {
  skip_without_keras3()
  x <- a_matrix(40)
  scaled <- gpu_dataset(x, x[, 1], batch_size = 10, map = keras3::layer_rescaling(scale = 2))
  model <- keras3_model(3, 1, "linear", "mse")
  fit <- gpu_fit(model, scaled, epochs = 2, verbose = 0)
  expect_length(fit$history$loss, 2)
  expect_error(gpu_predict(model, x), "mapped its rows", class = "gpukeras_error_data")
  expect_length(gpu_predict(model, scaled), 40)
  batches <- gpu_dataset(function() list(x, as.array(x[, 1])), steps = 3)
  fit <- gpu_fit(keras3_model(3, 1, "linear", "mse"), batches, epochs = 2, verbose = 0)
  expect_identical(fit$rows, 240L)
})
