test_that("each engine trains when asked for, by the same updates", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- line()
  losses <- lapply(few(c("keras", "graph_loop", "compiled"), 2), function(engine) {
    model <- gpu_mlp(data, units = 8, learning_rate = 0.01, seed = 1)
    fit <- gpu_fit(model, data, epochs = 15, engine = engine, verbose = 0)
    expect_s3_class(fit, "gpu_history")
    expect_identical(fit$engine$engine, engine)
    expect_identical(fit$stopped, "completed")
    expect_lt(fit$history$loss[15], fit$history$loss[1] / 2)
    fit$history$loss[1:3]
  })
  for (others in losses[-1]) expect_equal(others, losses[[1]], tolerance = 1e-4)
})

test_that("auto says which engine it took, and why", {
  skip_without_tensorflow()
  data <- line()
  fit <- gpu_fit(gpu_mlp(data), data, epochs = 2, verbose = 0)
  expect_true(fit$engine$engine %in% c("keras", "graph_loop", "compiled"))
  expect_true(nzchar(fit$engine$reason))
  expect_match(format(fit), fit$engine$reason, fixed = TRUE, all = FALSE)
})

test_that("a history counts epochs and rows, and has figures that make sense", {
  skip_without_tensorflow()
  data <- line(validation = 0.25)
  fit <- gpu_fit(gpu_mlp(data), data, epochs = 3, engine = "keras", verbose = 0)
  expect_identical(fit$epochs, 3L)
  expect_equal(fit$rows, 3 * 150)
  expect_length(fit$epoch_s, 3)
  expect_gt(fit$samples_per_s, 0)
  expect_gte(fit$input_share, 0)
  expect_lte(fit$input_share, 1)
  expect_gte(fit$elapsed_s, sum(fit$epoch_s))
  expect_named(
    fit$history, c("loss", "mean_absolute_error", "val_loss", "val_mean_absolute_error")
  )
})

test_that("validation data may be a dataset, a data frame, or list(x, y)", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  data <- gpu_dataset(y ~ ., frame)
  test <- mixed_frame(16)
  as_data <- gpu_dataset(y ~ ., test, recipe = data)
  losses <- vapply(list(as_data, test), function(validation) {
    model <- gpu_mlp(data, seed = 1)
    fit <- gpu_fit(model, data, 1, validation = validation, engine = "keras", verbose = 0)
    expect_equal(fit$history$val_loss, gpu_evaluate(model, test)[["loss"]], tolerance = 1e-5)
    fit$history$val_loss
  }, 0)
  expect_equal(losses[1], losses[2], tolerance = 1e-5)
  x <- a_matrix()
  y <- x[, 1]
  matrices <- gpu_dataset(x, y)
  model <- gpu_mlp(matrices)
  fit <- gpu_fit(model, matrices, 1, validation = list(x[1:9, ], y[1:9]), verbose = 0)
  expect_equal(
    fit$history$val_loss, gpu_evaluate(model, x[1:9, ], y[1:9])[["loss"]],
    tolerance = 1e-5
  )
})

test_that("rows may come as list(x, y)", {
  skip_without_tensorflow()
  x <- a_matrix()
  fit <- gpu_fit(a_model(), list(x, rep(0:2, 20)), epochs = 1, verbose = 0)
  expect_equal(fit$rows, 60)
})

test_that("batch_size replaces the dataset's own", {
  skip_without_tensorflow()
  data <- line()
  fit <- gpu_fit(gpu_mlp(data), data, 1, batch_size = 50, engine = "keras", verbose = 0)
  expect_identical(fit$plan$batch_size, 50L)
  expect_identical(fit$plan$steps_per_epoch, 4L)
})

test_that("training goes on where it ended", {
  skip_without_tensorflow()
  data <- line()
  model <- gpu_mlp(data, units = 8, seed = 1)
  first <- gpu_fit(model, data, epochs = 5, engine = "graph_loop", verbose = 0)
  second <- gpu_fit(model, data, epochs = 5, engine = "graph_loop", verbose = 0)
  expect_lt(second$history$loss[5], first$history$loss[5])
})

test_that("Keras' callbacks work: early stopping ends the training", {
  skip_without_tensorflow()
  data <- line()
  stopping <- import_keras()$callbacks$EarlyStopping(
    monitor = "loss", patience = 0L, min_delta = 1e9
  )
  fit <- gpu_fit(gpu_mlp(data), data, epochs = 9, callbacks = list(stopping), verbose = 0)
  expect_identical(fit$stopped, "early")
  expect_identical(fit$epochs, 2L)
  expect_match(format(fit)[1], "2 epochs .* stopped early")
})

test_that("a callback of the user's own on every batch sees every batch", {
  skip_without_tensorflow()
  data <- line()
  batches <- 0
  counting <- import_keras()$callbacks$LambdaCallback(
    on_train_batch_end = function(batch, logs) batches <<- batches + 1
  )
  fit <- gpu_fit(gpu_mlp(data), data, epochs = 2, callbacks = list(counting), verbose = 0)
  expect_identical(batches, 20)
  expect_identical(fit$engine$engine, "keras")
  expect_match(fit$engine$reason, "every batch")
})

test_that("verbose = 0 prints nothing, TRUE a line for each epoch", {
  skip_without_tensorflow()
  data <- line()
  model <- gpu_mlp(data)
  expect_silent(gpu_fit(model, data, epochs = 2, engine = "keras", verbose = 0))
  lines <- capture.output(fit <- gpu_fit(model, data, epochs = 2, engine = "keras"))
  expect_match(lines, "^epoch [12]/2  loss: [0-9.]+  mean_absolute_error: [0-9.]+$")
  expect_length(lines, 2)
})

test_that("weights count as repeated rows do", {
  skip_without_tensorflow()
  x <- a_matrix(40)
  y <- x[, 1]
  weighted <- gpu_dataset(x, y, weights = rep(c(2, 0), 20), batch_size = 40, seed = 1)
  model <- gpu_mlp(weighted, units = 4, seed = 1)
  expect_match(format(weighted), "a weight for each row", all = FALSE)
  unweighted <- gpu_evaluate(model, gpu_dataset(x[c(TRUE, FALSE), ], y[c(TRUE, FALSE)]))
  expect_equal(
    gpu_evaluate(model, weighted)[["loss"]], unweighted[["loss"]],
    tolerance = 1e-5
  )
})

test_that("balanced class weights make a rare class count", {
  skip_without_tensorflow(slow = TRUE)
  x <- a_matrix(100)
  rare <- factor(ifelse(x[, 1] > 0.9, "rare", "common"))
  share <- function(...) {
    data <- gpu_dataset(x, rare, batch_size = 50, seed = 1, ...)
    model <- afresh("of a rare class", function() {
      gpu_mlp(data, units = 4, learning_rate = 0.05, seed = 1)
    })
    gpu_fit(model, data, epochs = 20, engine = "graph_loop", verbose = 0)
    mean(gpu_predict(model, x))
  }
  balanced <- share(class_weight = "balanced")
  expect_gt(balanced, share() + 0.05)
  by_hand <- 100 / (2 * table(rare))
  expect_equal(share(class_weight = c(by_hand)), balanced, tolerance = 1e-4)
})

# Sparse matrices and files ------------------------------------------------------------------------

# A short training: its losses, and predictions of `newdata`, which may come in another form too.
learn <- function(x, y, newdata, ..., other = NULL) {
  data <- gpu_dataset(x, y, batch_size = 16, validation = 0.2, seed = 3, ...)
  model <- gpu_mlp(data, units = 4, seed = 1)
  fit <- gpu_fit(model, data, epochs = 3, engine = "graph_loop", verbose = FALSE)
  measure <- function(newdata) {
    list(values = gpu_predict(model, newdata), metrics = gpu_evaluate(model, newdata, y))
  }
  found <- c(list(losses = as.data.frame(fit, wide = TRUE)), measure(newdata))
  if (!is.null(other)) expect_equal(measure(other), found[-1], tolerance = 1e-5)
  found
}

expect_same_training <- function(found, expected) {
  measured <- setdiff(names(expected$losses), "seconds")
  expect_equal(found$losses[measured], expected$losses[measured], tolerance = 1e-5)
  expect_equal(found$values, expected$values, tolerance = 1e-5)
  expect_equal(found$metrics, expected$metrics, tolerance = 1e-5)
}

test_that("a sparse matrix trains, predicts and evaluates as the dense one", {
  skip_without_tensorflow()
  silence_tensorflow()
  x <- a_sparse_matrix(61)
  y <- factor(c("a", "b", "c")[seq_len(61) %% 3 + 1])
  expected <- learn(as.matrix(x), y, as.matrix(x), other = x)
  expect_same_training(learn(x, y, x, other = as.matrix(x)), expected)
})

test_that("a model of scaled sparse rows scales dense ones alike, and the reverse", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  x <- a_sparse_matrix(61)
  for (form in list(x, as.matrix(x))) {
    data <- gpu_dataset(form, cos(1:61), scale = TRUE)
    model <- trained(data)
    expect_equal(gpu_predict(model, x), gpu_predict(model, as.matrix(x)), tolerance = 1e-5)
    expect_equal(gpu_predict(model, x), gpu_predict(model, data), tolerance = 1e-5)
  }
})

test_that("a file trains, predicts and evaluates as the same matrix", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  x <- a_matrix(61)
  y <- cos(1:61)
  file <- save_npy(x, withr::local_tempfile(fileext = ".npy"))
  expected <- learn(x, y, x, scale = TRUE)
  expect_same_training(learn(file, y, file, scale = TRUE), expected)
  labels <- save_npy(as.array(y), withr::local_tempfile(fileext = ".npy"))
  expect_same_training(learn(file, labels, x, scale = TRUE), expected)
})

test_that("a user's file is not changed", {
  skip_without_tensorflow()
  silence_tensorflow()
  file <- save_npy(a_matrix(20), withr::local_tempfile(fileext = ".npy"))
  before <- tools::md5sum(file)
  model <- trained(gpu_dataset(file, 1:20, scale = TRUE))
  gpu_predict(model, file)
  expect_identical(tools::md5sum(file), before)
})

# A dense layer on each pixel or time step, compiled as given, always with the same weights.
a_pixel_model <- function(shape, units, activation, loss) {
  keras <- import_keras()
  keras$utils$set_random_seed(3L)
  model <- keras$Sequential(list(
    keras$Input(as.list(as.integer(shape))), keras$layers$Dense(units, activation)
  ))
  model$compile("sgd", loss)
  model
}

# The losses of Keras' own fit().
fit_in_keras <- function(model, ...) {
  fit <- model$fit(..., batch_size = 8L, epochs = 2L, shuffle = FALSE, verbose = 0L)
  unlist(as_r(fit$history)$loss)
}

test_that("labels of several dimensions train as in Keras, and come back as arrays", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  set.seed(1)
  images <- array(stats::runif(40 * 4 * 5 * 2), c(40, 4, 5, 2))
  masks <- array(sample(0:2, 40 * 4 * 5, TRUE), c(40, 4, 5))
  hot <- array(as.numeric(c(masks == 0, masks == 1, masks == 2)), c(40, 4, 5, 3))
  cases <- list(
    list(y = masks, units = 3L, activation = "softmax", loss = "sparse_categorical_crossentropy"),
    list(y = hot, units = 3L, activation = "softmax", loss = "categorical_crossentropy"),
    list(y = masks == 1, units = 1L, activation = "sigmoid", loss = "binary_crossentropy"),
    list(y = images, units = 2L, activation = NULL, loss = "mse")
  )
  for (case in few(cases, 2)) { # with labels of one dimension less than the output, and as many
    make <- function() a_pixel_model(c(4, 5, 2), case$units, case$activation, case$loss)
    own <- fit_in_keras(make(), images, case$y + 0)
    model <- make()
    data <- gpu_dataset(images, case$y, batch_size = 8, shuffle = FALSE)
    fit <- gpu_fit(model, data, epochs = 2, engine = "graph_loop", verbose = 0)
    expect_equal(fit$history$loss, own, tolerance = 1e-5)
    predicted <- gpu_predict(model, images[1:6, , , ])
    expect_identical(dim(predicted), c(6L, 4L, 5L, case$units))
    theirs <- as_r(model$predict(images[1:6, , , ], verbose = 0L))
    expect_equal(predicted, theirs, tolerance = 1e-5)
    loss <- as_r(model$evaluate(images, case$y + 0, verbose = 0L))
    expect_equal(gpu_evaluate(model, images, case$y)[["loss"]], loss, tolerance = 1e-5)
  }
})

test_that("a step of a sequence has a label and a weight of its own", {
  skip_without_tensorflow(slow = TRUE)
  set.seed(1)
  x <- array(stats::rnorm(40 * 6 * 2), c(40, 6, 2))
  y <- matrix(sample(0:2, 40 * 6, TRUE), 40)
  weights <- matrix(stats::runif(40 * 6), 40)
  make <- function() a_pixel_model(c(6, 2), 3L, "softmax", "sparse_categorical_crossentropy")
  own <- fit_in_keras(make(), x, y, sample_weight = weights)
  data <- gpu_dataset(x, y, weights = weights, batch_size = 8, shuffle = FALSE)
  fit <- gpu_fit(make(), data, epochs = 2, engine = "graph_loop", verbose = 0)
  expect_equal(fit$history$loss, own, tolerance = 1e-5)
  at <- 0
  chunks <- function() {
    rows <- at + 1:8
    at <<- (at + 8) %% 40
    list(x[rows, , ], y[rows, ], weights[rows, ])
  }
  data <- gpu_dataset(chunks, steps = 5)
  fit <- gpu_fit(make(), data, epochs = 2, engine = "graph_loop", verbose = 0)
  expect_equal(fit$history$loss, own, tolerance = 1e-5)
})

test_that("labels and weights of another shape than the output's are refused", {
  skip_without_tensorflow()
  x <- array(0, c(8, 6, 2))
  y <- matrix(rep(0:2, 16), 8)
  model <- a_pixel_model(c(6, 2), 3L, "softmax", "sparse_categorical_crossentropy")
  expect_snapshot(error = TRUE, {
    gpu_fit(model, list(x, y[, 1:5]))
    gpu_fit(model, list(x, y + 1))
    gpu_fit(model, gpu_dataset(x, y, weights = rep(1, 8)))
  })
  expect_snapshot(gpu_dataset(x, x, batch_size = 4, seed = 1))
})

test_that("rows need no labels where the loss needs none", {
  skip_without_tensorflow(slow = TRUE)
  reticulate::py_run_string(paste(
    "import keras, tensorflow as tf",
    "class Again(keras.Sequential):",
    "  def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):",
    "    assert y is None",
    "    return tf.reduce_mean((x - y_pred) ** 2)",
    "def make_again():",
    "  keras.utils.set_random_seed(3)",
    "  model = Again([keras.Input((3,)), keras.layers.Dense(3)])",
    "  model.compile('sgd')",
    "  return model",
    sep = "\n"
  ), convert = FALSE)
  make <- function() {
    afresh("again", function() reticulate::py_eval("make_again()", convert = FALSE))
  }
  x <- a_matrix(40)
  own <- fit_in_keras(make(), x)
  at <- 0
  chunks <- function() {
    at <<- at + 8
    if (at > 40) at <<- 0
    if (at > 0) list(x[at - 7:0, ])
  }
  tensors <- runtime()$tensorflow()$data$Dataset$from_tensor_slices(x)$batch(8L)
  makers <- list(
    function() gpu_dataset(x, batch_size = 8, shuffle = FALSE),
    function() gpu_dataset(list(x), batch_size = 8, shuffle = FALSE),
    function() gpu_dataset(list(x, NULL), batch_size = 8, shuffle = FALSE),
    function() gpu_dataset(chunks),
    function() gpu_dataset(tensors)
  )
  for (data in makers) {
    model <- make()
    fit <- gpu_fit(model, data(), epochs = 2, engine = "graph_loop", verbose = 0)
    expect_equal(fit$history$loss, own, tolerance = 1e-5)
  }
  for (rows in list(list(x), list(x, NULL))) {
    expect_identical(gpu_fit(make(), rows, epochs = 1, verbose = 0)$rows, 40L)
    loss <- as_r(model$evaluate(x, verbose = 0L))
    expect_equal(gpu_evaluate(model, rows)[["loss"]], loss, tolerance = 1e-5)
  }
  expect_equal(gpu_evaluate(model, x)[["loss"]], loss, tolerance = 1e-5)
  expect_identical(dim(gpu_predict(model, list(x))), c(40L, 3L))
  expect_snapshot(gpu_fit(a_model(), list(x)), error = TRUE)
})
