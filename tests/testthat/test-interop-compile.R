# keras3's optimizers, losses and metrics: in compile(), and given to gpu_fit().

test_that("every optimizer of keras3 trains, and every schedule of its rate", {
  skip_without_keras3()
  names <- grep("^optimizer_", getNamespaceExports("keras3"), value = TRUE)
  for (name in setdiff(names, "optimizer_loss_scale")) {
    optimizer <- getExportedValue("keras3", name)(0.01)
    fit <- fit_briefly(zero_model(), loss = "mse", optimizer = optimizer, engine = "keras")
    expect_true(all(is.finite(fit$history$loss)), label = name)
  }
  rate <- keras3::learning_rate_schedule_exponential_decay(0.1, 3, 0.5)
  fit <- fit_briefly(
    zero_model(),
    loss = "mse", optimizer = keras3::optimizer_sgd(rate), engine = "graph_loop"
  )
  expect_equal(fit$learning_rate, 0.1 * 0.5^(c(2, 5) / 3), tolerance = 1e-5)
  rich <- keras3::optimizer_adam_w(0.01,
    clipnorm = 1, weight_decay = 0.01, use_ema = TRUE, gradient_accumulation_steps = 2
  )
  expect_length(fit_briefly(zero_model(), loss = "mse", optimizer = rich)$history$loss, 2)
  scaled <- keras3::optimizer_loss_scale(keras3::optimizer_sgd(0.1))
  expect_length(fit_briefly(zero_model(), loss = "mse", optimizer = scaled)$history$loss, 2)
})

test_that("gpu_fit() compiles a model with what keras3's compile() takes", {
  skip_without_keras3()
  x <- a_matrix(40)
  own <- keras3::custom_metric("own", function(y_true, y_pred) {
    keras3::op_mean(keras3::op_abs(y_true - y_pred))
  })
  model <- zero_model()
  fit <- gpu_fit(model, gpu_dataset(x, x[, 1], batch_size = 40),
    epochs = 1, optimizer = keras3::optimizer_sgd(0.1), loss = keras3::loss_mean_squared_error(),
    metrics = list("mae", own), engine = "graph_loop", verbose = 0
  )
  expect_named(fit$history, c("loss", "mae", "own"))
  expect_equal(fit$history$loss, mean(x[, 1]^2), tolerance = 1e-5)
  expect_equal(fit$history$own, fit$history$mae, tolerance = 1e-5)
  kernel <- as.vector(keras3::get_weights(model)[[1]]) # one step down the gradient from zero
  expect_equal(kernel, 0.2 * as.vector(crossprod(x, x[, 1])) / 40, tolerance = 1e-4)
  again <- fit_briefly(model, loss = "mae", metrics = "mse") # compiled anew, by "adam"
  expect_named(again$history, c("loss", "mse", "val_loss", "val_mse"))
  expect_match(class(model$optimizer)[1], "Adam$")
})

test_that("losses and metrics are R functions and classes too, and several for several outputs", {
  skip_without_keras3()
  squared <- function(y_true, y_pred) keras3::op_mean(keras3::op_square(y_true - y_pred))
  fit <- fit_briefly(zero_model(), loss = squared, metrics = keras3::metric_mean_squared_error())
  expect_equal(fit$history$loss, fit$history$mean_squared_error, tolerance = 1e-5)
  absolute <- keras3::Loss("Absolute", call = function(y_true, y_pred) {
    keras3::op_abs(y_true - keras3::op_squeeze(y_pred, -1L)) # labels are a vector, as in Keras
  })
  fit <- fit_briefly(zero_model(), loss = absolute(), metrics = c("mae", "mse"))
  expect_equal(fit$history$loss, fit$history$mae, tolerance = 1e-5)
  x <- a_matrix(40)
  input <- keras3::keras_input(3)
  model <- keras3::keras_model(input, list(
    p = keras3::layer_dense(input, 1, name = "p"),
    q = keras3::layer_dense(input, 2, activation = "softmax", name = "q")
  ))
  data <- gpu_dataset(x, list(p = x[, 1], q = factor(x[, 2] > 0)), batch_size = 10)
  fit <- fit_briefly(model, data,
    loss = list(p = "mse", q = "sparse_categorical_crossentropy"), metrics = list(q = "accuracy")
  )
  expect_setequal(names(fit$history), c("loss", "p_loss", "q_loss", "q_accuracy"))
})

test_that("every loss of keras3 that judges rows trains", {
  skip_without_keras3()
  x <- a_matrix(36)
  y <- factor(rep_len(c("a", "b", "c"), 36))
  binary <- c("loss_binary_crossentropy", "loss_binary_focal_crossentropy")
  classes <- c(
    "loss_sparse_categorical_crossentropy", "loss_categorical_generalized_cross_entropy",
    "loss_circle"
  )
  names <- grep("^loss_", getNamespaceExports("keras3"), value = TRUE)
  for (name in setdiff(names, "loss_ctc")) { # which takes sequences
    labels <- if (name %in% binary) y == "a" else if (name %in% classes) y else diag(3)[y, ]
    model <- keras3::keras_model_sequential(input_shape = 3) |>
      keras3::layer_dense(if (name %in% binary) 1 else 3, activation = "sigmoid")
    loss <- getExportedValue("keras3", name)()
    fit <- fit_briefly(model, list(x, labels), loss = loss, epochs = 1, engine = "keras")
    expect_true(is.finite(fit$history$loss), label = name)
  }
})

test_that("what cannot be compiled or trained is said", {
  skip_without_keras3()
  without <- zero_model()
  keras3::compile(without, optimizer = "adam")
  expect_snapshot(error = TRUE, {
    fit_briefly(zero_model())
    fit_briefly(zero_model(), optimizer = "sgd")
    fit_briefly(zero_model(), loss = "mse", optimizer = "nonsense")
    fit_briefly(zero_model(), loss = "nonsense")
    fit_briefly(without)
    gpu_evaluate(without, a_matrix(8), 1:8)
  })
})
