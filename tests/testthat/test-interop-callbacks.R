# keras3 callbacks in gpu_fit(): Keras' own, and those written in R.

test_that("keras3's early stopping, plateau, schedule and NaN guard do what they do", {
  skip_without_keras3()
  fresh <- function() keras3_model(3, 1, "linear", "mse")
  early <- keras3::callback_early_stopping(patience = 0, min_delta = 1e9)
  expect_identical(fit_briefly(fresh(), callbacks = early, epochs = 5)$stopped, "early")
  rates <- keras3::callback_learning_rate_scheduler(function(epoch, lr) 0.1 / (epoch + 1))
  expect_equal(fit_briefly(fresh(), callbacks = rates)$learning_rate, 0.1 / (1:2), tolerance = 1e-6)
  plateau <- keras3::callback_reduce_lr_on_plateau(patience = 0, factor = 0.1, min_delta = 1e9)
  fit <- fit_briefly(fresh(), callbacks = list(plateau), epochs = 3)
  expect_lt(fit$learning_rate[3], fit$learning_rate[1])
  guard <- keras3::callback_terminate_on_nan()
  expect_identical(fit_briefly(fresh(), callbacks = list(guard))$stopped, "completed")
})

test_that("keras3's files are written: models, logs", {
  skip_without_keras3()
  folder <- withr::local_tempdir()
  path <- function(name) file.path(folder, name)
  fit_briefly(keras3_model(3, 1, "linear", "mse"), callbacks = list(
    keras3::callback_model_checkpoint(path("m{epoch:02d}.keras")),
    keras3::callback_model_checkpoint(
      path("best.weights.h5"),
      save_weights_only = TRUE, save_best_only = TRUE, monitor = "val_loss"
    ),
    keras3::callback_csv_logger(path("log.csv"))
  ))
  expect_setequal(
    list.files(folder), c("m01.keras", "m02.keras", "best.weights.h5", "log.csv")
  )
  expect_named(utils::read.csv(path("log.csv")), c("epoch", "loss", "val_loss"))
})

test_that("a callback that counts batches counts every one", {
  skip_without_keras3()
  folder <- withr::local_tempdir()
  saving <- keras3::callback_model_checkpoint(
    file.path(folder, "{epoch}-{batch}.keras"),
    save_freq = 2L
  )
  x <- a_matrix(40)
  data <- gpu_dataset(x, x[, 1], batch_size = 10)
  fit <- fit_briefly(keras3_model(3, 1, "linear", "mse"), data, callbacks = list(saving))
  expect_setequal(list.files(folder), c("1-2.keras", "1-4.keras", "2-2.keras", "2-4.keras"))
  expect_match(fit$reasons[["engine"]], "ModelCheckpoint works on every batch")
})

test_that("TensorBoard's callback without its package says what to use", {
  skip_without_keras3()
  skip_if(reticulate::py_module_available("tensorboard"), "tensorboard is installed")
  board <- keras3::callback_tensorboard(withr::local_tempdir())
  expect_snapshot(
    fit_briefly(keras3_model(3, 1, "linear", "mse"), callbacks = list(board)),
    error = TRUE
  )
})

test_that("backup_and_restore goes on where the training failed, and is counted so", {
  skip_without_keras3()
  folder <- withr::local_tempdir()
  backup <- function() keras3::callback_backup_and_restore(folder)
  failing <- keras3::callback_lambda(
    on_epoch_end = function(epoch, logs) if (epoch == 2) stop("the power went off")
  )
  model <- keras3_model(3, 1, "linear", "mse")
  expect_error(
    fit_briefly(model, callbacks = list(backup(), failing), epochs = 4), "the power went off"
  )
  other <- keras3_model(3, 1, "linear", "mse")
  fit <- fit_briefly(other, callbacks = list(backup()), epochs = 4)
  expect_identical(fit$stopped, "completed")
  expect_identical(c(fit$epochs, fit$resumed_epochs), c(4L, 2L))
  expect_identical(as.data.frame(fit, wide = TRUE)$epoch, 3:4) # the others are of another call
  expect_match(fit$notes, "Resumed after epoch 2, by the callback BackupAndRestore.", fixed = TRUE)
  expect_length(fit_briefly(other, epochs = 1)$history$loss, 1) # another training begins at 1
  expect_snapshot(error = TRUE, {
    fit_briefly(other, callbacks = list(backup()), checkpoint = tempfile())
  })
})

test_that("callbacks written in R see epochs, and batches where they ask for them", {
  skip_without_keras3()
  seen <- character()
  note <- function(what) seen <<- c(seen, what)
  all <- keras3::callback_lambda(
    on_train_begin = function(logs) note("begin"),
    on_epoch_begin = function(epoch, logs) note(paste("epoch", epoch)),
    on_epoch_end = function(epoch, logs) note(names(logs)),
    on_train_end = function(logs) note("end")
  )
  fit_briefly(keras3_model(3, 1, "linear", "mse"), callbacks = list(all))
  expect_identical(
    seen, c("begin", "epoch 1", "loss", "val_loss", "epoch 2", "loss", "val_loss", "end")
  )
  batches <- 0
  counting <- keras3::Callback("Counting",
    on_train_batch_end = function(batch, logs = NULL) batches <<- batches + 1,
    on_epoch_end = function(epoch, logs = NULL) self$model$stop_training <- TRUE
  )
  fit <- fit_briefly(keras3_model(3, 1, "linear", "mse"), callbacks = list(counting()))
  expect_identical(fit$epochs, 1L)
  expect_identical(batches, 3)
  expect_identical(fit$stopped, "early")
  expect_identical(fit$engine$engine, "keras")
  expect_snapshot(error = TRUE, {
    fit_briefly(keras3_model(3, 1, "linear", "mse"), callbacks = list(counting))
  })
})

test_that("averages that keras3's optimizer keeps are swapped in by its callback", {
  skip_without_keras3()
  model <- zero_model()
  swap <- keras3::callback_swap_ema_weights(swap_on_epoch = TRUE)
  fit <- fit_briefly(model,
    callbacks = list(swap), loss = "mse", optimizer = keras3::optimizer_sgd(0.1, use_ema = TRUE)
  )
  expect_identical(fit$stopped, "completed")
})

test_that("an error in a method of a callback keeps its class, fields and trace", {
  skip_without_keras3()
  mine <- function(...) rlang::abort("Enough.", class = "mine", extra = 7)
  callbacks <- list(
    keras3::Callback("Mine", on_epoch_end = function(epoch, logs) mine())(),
    keras3::callback_lambda(on_train_batch_end = mine),
    keras3::callback_learning_rate_scheduler(mine)
  )
  for (callback in callbacks) {
    model <- keras3_model(3, 1, "linear", "mse")
    caught <- tryCatch(fit_briefly(model, callbacks = list(callback)), mine = identity)
    expect_s3_class(caught, c("mine", "rlang_error", "error", "condition"), exact = TRUE)
    expect_identical(conditionMessage(caught), "Enough.")
    expect_identical(caught$extra, 7)
    expect_s3_class(caught$trace, "rlang_trace")
    expect_length(fit_briefly(model)$history$loss, 2) # and the model goes on
  }
})

test_that("an error of R in a loss, a metric, a layer or a train_step keeps its class", {
  skip_without_keras3()
  mine <- function(...) rlang::abort("Enough.", class = "mine")
  Layer <- keras3::Layer("Failing", call = function(x) mine()) # nolint: object_name_linter.
  of_loss <- keras3_model(3, 1, "linear", function(y_true, y_pred) mine())
  expect_error(fit_briefly(of_loss), "Enough.", class = "mine")
  metric <- keras3::custom_metric("m", function(y_true, y_pred) mine())
  of_metric <- keras3_model(3, 1, "linear", "mse", list(metric))
  expect_error(fit_briefly(of_metric), "Enough.", class = "mine")
  stepping <- keras3::new_model_class("Stepping", train_step = function(data) mine())
  inputs <- keras3::keras_input(3)
  of_step <- stepping(inputs, keras3::layer_dense(inputs, 1))
  keras3::compile(of_step, "sgd", "mse")
  expect_error(fit_briefly(of_step), "Enough.", class = "mine")
  of_layer <- keras3::keras_model_sequential(layers = list(Layer(), keras3::layer_dense(units = 1)))
  keras3::compile(of_layer, "sgd", "mse")
  expect_error(fit_briefly(of_layer), "Enough.", class = "mine")
})
