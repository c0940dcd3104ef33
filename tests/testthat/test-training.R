# A line that is learned within a few epochs.
line <- function(rows = 200, ...) {
  x <- a_matrix(rows)
  gpu_dataset(x, drop(x %*% c(1, -2, 3)), batch_size = 20, seed = 1, ...)
}

test_that("each engine trains when asked for", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- line()
  for (engine in c("keras", "superstep", "compiled")) {
    model <- gpu_mlp(data, units = 8, learning_rate = 0.01, seed = 1)
    fit <- gpu_fit(model, data, epochs = 15, engine = engine, verbose = 0)
    expect_s3_class(fit, "gpu_history")
    expect_identical(fit$engine$engine, engine)
    expect_identical(fit$stopped, "completed")
    expect_lt(fit$history$loss[15], fit$history$loss[1] / 2)
  }
})

test_that("the engines make the same updates", {
  skip_without_tensorflow()
  data <- line()
  losses <- lapply(c("keras", "superstep", "compiled"), function(engine) {
    model <- gpu_mlp(data, units = 8, seed = 1)
    gpu_fit(model, data, epochs = 3, engine = engine, verbose = 0)$history$loss
  })
  expect_equal(losses[[2]], losses[[1]], tolerance = 1e-4)
  expect_equal(losses[[3]], losses[[1]], tolerance = 1e-4)
})

test_that("auto says which engine it took, and why", {
  skip_without_tensorflow()
  data <- line()
  fit <- gpu_fit(gpu_mlp(data), data, epochs = 2, verbose = 0)
  expect_true(fit$engine$engine %in% c("keras", "superstep", "compiled"))
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
  first <- gpu_fit(model, data, epochs = 5, engine = "superstep", verbose = 0)
  second <- gpu_fit(model, data, epochs = 5, engine = "superstep", verbose = 0)
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
  skip_without_tensorflow()
  x <- a_matrix(100)
  rare <- factor(ifelse(x[, 1] > 0.9, "rare", "common"))
  share <- function(...) {
    data <- gpu_dataset(x, rare, batch_size = 50, seed = 1, ...)
    model <- gpu_mlp(data, units = 4, learning_rate = 0.05, seed = 1)
    gpu_fit(model, data, epochs = 20, engine = "superstep", verbose = 0)
    mean(gpu_predict(model, x))
  }
  balanced <- share(class_weight = "balanced")
  expect_gt(balanced, share() + 0.05)
  by_hand <- 100 / (2 * table(rare))
  expect_equal(share(class_weight = c(by_hand)), balanced, tolerance = 1e-4)
})

# Options of a training ----------------------------------------------------------------------------

rate_of <- function(model) as.numeric(as_r(model$optimizer$learning_rate$numpy()))

# Trains the same small model; `...` are arguments of gpu_fit().
short_fit <- function(..., epochs = 3, validation = 0.25, rate = 0.01, engine = "superstep") {
  silence_tensorflow()
  data <- line(validation = validation)
  model <- gpu_mlp(data, units = 8, learning_rate = rate, seed = 1)
  fit <- gpu_fit(model, data, epochs = epochs, engine = engine, ..., verbose = FALSE)
  list(fit = fit, model = model, data = data)
}

test_that("a schedule sets the rate of each step, and the optimizer has its own again", {
  skip_without_tensorflow()
  for (engine in c("keras", "superstep", "compiled")) {
    done <- short_fit(schedule = schedule_exponential(0.02, decay = 0.5), engine = engine)
    expect_equal(done$fit$learning_rate, 0.02 * 0.5^((8 * 1:3 - 1) / 8), tolerance = 1e-5)
    expect_equal(rate_of(done$model), 0.01, tolerance = 1e-6)
  }
  frame <- as.data.frame(done$fit, wide = TRUE)
  expect_identical(frame$learning_rate, done$fit$learning_rate)
})

test_that("each kind of schedule trains", {
  skip_without_tensorflow()
  schedules <- list(
    schedule_one_cycle(), schedule_cyclic(step_size = 1), schedule_warmup_cosine(),
    schedule_plateau(patience = 1, min_delta = 1e9), schedule_constant(0.005, warmup = 0.5)
  )
  last <- vapply(schedules, function(schedule) {
    fit <- short_fit(schedule = schedule)$fit
    expect_true(all(is.finite(fit$history$val_loss)))
    expect_lte(max(fit$learning_rate), 0.01 * (1 + 1e-6))
    fit$learning_rate[3]
  }, 0)
  expect_lt(last[1], 1e-5)
  expect_lt(last[3], 1e-3)
  expect_equal(last[4:5], c(0.005, 0.005), tolerance = 1e-5)
})

test_that("clipping bounds an update in each of its ways", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- line()
  weights <- function(model) lapply(as_r(model$get_weights()), as_r)
  moved <- function(...) {
    model <- gpu_mlp(data, units = 8, optimizer = "sgd", learning_rate = 1, seed = 1)
    before <- weights(model)
    gpu_fit(model, data, 1, batch_size = 200, ..., engine = "superstep", verbose = FALSE)
    Map(function(after, before) after - before, weights(model), before)
  }
  norm <- function(x) sqrt(sum(x^2))
  expect_gt(norm(unlist(moved())), 0.1)
  expect_equal(norm(unlist(moved(clip_global_norm = 1e-2))), 1e-2, tolerance = 1e-3)
  expect_equal(max(abs(unlist(moved(clip_value = 1e-3)))), 1e-3, tolerance = 1e-3)
  expect_lt(max(vapply(moved(clip_norm = 1e-2), norm, 0)), 1.01e-2)
})

test_that("averages of the weights are validated, and stay", {
  skip_without_tensorflow()
  for (engine in c("keras", "superstep")) {
    done <- short_fit(ema = 0.9, engine = engine)
    measured <- gpu_evaluate(done$model, done$data, part = "validation")[["loss"]]
    expect_equal(done$fit$history$val_loss[3], measured, tolerance = 1e-5)
  }
  expect_false(isTRUE(all.equal(measured, short_fit()$fit$history$val_loss[3])))
})

test_that("early stopping ends with the best weights", {
  skip_without_tensorflow()
  stopped <- short_fit(epochs = 30, early_stopping = 2, rate = 1)
  fit <- stopped$fit
  expect_identical(fit$stopped, "early")
  expect_identical(fit$best_epoch, which.min(fit$history$val_loss))
  expect_identical(fit$epochs, fit$best_epoch + 2L)
  best <- min(fit$history$val_loss)
  found <- gpu_evaluate(stopped$model, stopped$data, part = "validation")[["loss"]]
  expect_equal(found, best, tolerance = 1e-5)
  expect_match(fit$reasons[["stopped"]], "val_loss")
})

test_that("early stopping takes options", {
  skip_without_tensorflow()
  options <- list(
    patience = 1, monitor = "mean_absolute_error", min_delta = 1e9, mode = "min",
    restore_best = FALSE, start_epoch = 2
  )
  fit <- short_fit(epochs = 9, early_stopping = options, validation = 0)$fit
  expect_identical(fit[c("stopped", "epochs", "best_epoch")], list(
    stopped = "early", epochs = 3L, best_epoch = 2L
  ))
  expect_match(fit$reasons[["stopped"]], "mean_absolute_error")
})

test_that("a batch size that was found trains, and is remembered for the model", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- line()
  model <- gpu_mlp(data, units = 4, seed = 1)
  size <- gpu_batch_size(model, data, from = 8, to = 16, verbose = FALSE)
  size$recommended <- 25L
  fit <- function(...) gpu_fit(model, data, 1, ..., engine = "superstep", verbose = FALSE)$plan
  expect_identical(fit(batch_size = size)$batch_size, 25L)
  found <- fit()
  expect_true(found$batch_size %in% c(8L, 16L))
  expect_match(found$batch_reason, "gpu_batch_size()", fixed = TRUE)
  expect_identical(fit(batch_size = 40)$batch_size, 40L)
  other <- gpu_mlp(data, units = 4, seed = 1)
  expect_identical(gpu_fit(other, data, 1, verbose = FALSE)$plan$batch_size, 20L)
})

test_that("a loss that is no number stops with a warning, and the weights of before", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- line()
  for (engine in c("keras", "superstep", "compiled")) {
    model <- gpu_mlp(data, units = 4, optimizer = "sgd", learning_rate = 1000, seed = 1)
    before <- gpu_predict(model, a_matrix(5))
    warned <- NULL
    fit <- withCallingHandlers(
      gpu_fit(model, data, 9, engine = engine, verbose = FALSE),
      gpukeras_warning_non_finite = function(condition) {
        warned <<- condition
        invokeRestart("muffleWarning")
      }
    )
    expect_s3_class(warned, "gpukeras_warning")
    expect_match(one_line(warned), "no finite number at step [0-9]+ of epoch 1 .learning rate 1e")
    expect_identical(fit$stopped, "non_finite")
    expect_identical(gpu_predict(model, a_matrix(5)), before)
  }
  expect_match(format(fit)[1], "STOPPED", fixed = TRUE)
})

# Losses, metrics and callbacks of the user's own --------------------------------------------------

# A network for `line()` with a loss of one's own.
own_model <- function(loss, metrics = NULL) {
  keras <- import_keras()
  keras$utils$set_random_seed(1L)
  layers <- list(
    keras$layers$Input(list(3L)), keras$layers$Dense(8L, activation = "relu"),
    keras$layers$Dense(1L)
  )
  model <- keras$Sequential(layers)
  model$compile(optimizer = "adam", loss = loss, metrics = metrics)
  model
}

test_that("a loss may be an R function of tensors, or a Keras object", {
  skip_without_tensorflow()
  silence_tensorflow()
  ops <- import_keras()$ops
  squared <- function(y_true, y_pred) {
    ops$mean(ops$square(ops$subtract(y_true, y_pred)), axis = -1L)
  }
  absolute <- function(y_true, y_pred) { # labels come as a vector, predictions as a column
    ops$mean(ops$abs(ops$subtract(ops$reshape(y_true, c(-1L, 1L)), y_pred)), axis = -1L)
  }
  data <- line()
  losses <- function(loss, metrics = NULL, engine = "superstep") {
    gpu_fit(own_model(loss, metrics), data, 2, engine = engine, verbose = FALSE)$history
  }
  expected <- losses("mse", list("mae"))
  for (engine in c("keras", "superstep", "compiled")) {
    found <- losses(squared, list(absolute), engine)
    expect_equal(found$loss, expected$loss, tolerance = 1e-4)
    expect_equal(found[[2]], expected$mae, tolerance = 1e-4)
  }
  huber <- losses(import_keras()$losses$Huber(delta = 1e6))$loss
  expect_equal(2 * huber, expected$loss, tolerance = 1e-3)
  expect_error(losses(function(y_true, y_pred) stop("my loss failed")), "my loss failed")
})

test_that("class weights and weights of rows count in a loss of one's own", {
  skip_without_tensorflow()
  silence_tensorflow()
  ops <- import_keras()$ops
  brier <- function(y_true, y_pred) {
    ops$mean(ops$square(ops$subtract(y_true, y_pred)), axis = -1L)
  }
  x <- a_matrix(60)
  y <- as.numeric(x[, 1] > 0.5)
  first <- function(...) {
    data <- gpu_dataset(x, y, batch_size = 60, seed = 1, ...)
    gpu_fit(own_model(brier), data, 1, engine = "superstep", verbose = FALSE)$history$loss
  }
  weights <- ifelse(y == 1, 3, 1)
  expect_equal(first(class_weight = c("0" = 1, "1" = 3)), first(weights = weights))
  expect_false(isTRUE(all.equal(first(weights = weights), first())))
})

test_that("Keras callbacks see epochs, change the rate and save models", {
  skip_without_tensorflow()
  silence_tensorflow()
  callbacks <- import_keras()$callbacks
  folder <- withr::local_tempdir()
  file <- file.path(folder, "best.keras")
  done <- short_fit(epochs = 4, callbacks = list(
    callbacks$ReduceLROnPlateau("loss", factor = 0.1, patience = 1L, min_delta = 1e9),
    callbacks$ModelCheckpoint(file), callbacks$CSVLogger(file.path(folder, "log.csv"))
  ))
  # Keras' epoch 1 sets the best value, each later one lowers the rate for the next.
  expect_equal(done$fit$learning_rate, c(0.01, 0.01, 1e-3, 1e-4), tolerance = 1e-5)
  log <- utils::read.csv(file.path(folder, "log.csv"))
  expect_equal(log$val_loss, done$fit$history$val_loss, tolerance = 1e-6)
  saved <- import_keras()$models$load_model(file)
  expect_equal(gpu_predict(saved, a_matrix(5)), gpu_predict(done$model, a_matrix(5)))
})

test_that("verbose, callbacks and early stopping work with a schedule and a checkpoint", {
  skip_without_tensorflow()
  folder <- file.path(withr::local_tempdir(), "run")
  seen <- integer()
  done <- short_fit(
    epochs = 30, early_stopping = 1, rate = 1, schedule = schedule_constant(warmup = 0.5),
    ema = 0.5, clip_global_norm = 1, checkpoint = folder,
    on_epoch_end = function(epoch) seen <<- c(seen, epoch)
  )
  expect_identical(done$fit$stopped, "early")
  expect_identical(seen, seq_len(done$fit$epochs))
  expect_identical(read_history(folder)$best_epoch, done$fit$best_epoch)
})

# Checkpoints --------------------------------------------------------------------------------------

# A training in a process of its own; its history's facts, and the weights' sum.
checkpointed <- function(epochs, ..., folder) {
  silence_tensorflow()
  data <- line(validation = 0.25)
  model <- gpu_mlp(data, units = 8, seed = 1)
  fit <- gpu_fit(
    model, data, epochs, engine = "superstep", ..., checkpoint = folder, verbose = FALSE
  )
  list(fit = fit, predictions = gpu_predict(model, a_matrix(10)))
}

test_that("a training goes on from its checkpoint in another process, to the same weights", {
  skip_on_os("windows")
  skip_without_tensorflow()
  path <- withr::local_tempdir()
  folder <- file.path(path, "run")
  child <- start_r(c(
    "library(gpukeras)",
    "x <- matrix(sin(1:600), 200, 3)",
    "data <- gpu_dataset(x, drop(x %*% c(1, -2, 3)), batch_size = 20, validation = 0.25, seed = 1)",
    "model <- gpu_mlp(data, units = 8, seed = 1)",
    "die <- function(epoch) if (epoch == 3) tools::pskill(Sys.getpid(), tools::SIGKILL)",
    "gpu_fit(model, data, 5, engine = 'superstep', early_stopping = 50, verbose = FALSE,",
    sprintf("  checkpoint = '%s', callbacks = list(on_epoch_begin = die))", folder)
  ))
  expect_identical(child$status, 137L)
  before <- read_history(folder)
  expect_identical(before$epochs, 2L)
  expect_length(before$history$loss, 2)

  undisturbed <- checkpointed(5, early_stopping = 50, folder = file.path(path, "other"))
  resumed <- checkpointed(5, early_stopping = 50, folder = folder)
  expect_identical(resumed$fit$resumed_epochs, 2L)
  expect_identical(resumed$fit$epochs, 5L)
  expect_match(resumed$fit$notes, "Resumed after epoch 2", all = FALSE)
  expect_identical(resumed$fit$history$loss[1:2], before$history$loss)
  expect_identical(resumed$fit$history, undisturbed$fit$history)
  expect_identical(resumed$predictions, undisturbed$predictions)
  expect_equal(as.data.frame(read_history(folder)), as.data.frame(resumed$fit))
  expect_setequal(dir(folder), c(sprintf("checkpoint-%06d.gpukeras", 3:5), "history.json"))

  nothing_left <- checkpointed(5, early_stopping = 50, folder = folder)
  expect_identical(nothing_left$fit$resumed_epochs, 5L)
  expect_identical(nothing_left$predictions, resumed$predictions)
})

test_that("a checkpoint takes options, and a path as R writes it", {
  skip_on_os("windows")
  skip_without_tensorflow()
  home <- withr::local_tempdir()
  withr::local_envvar(HOME = home)
  options <- list(folder = "~/run", every_s = 0, keep = 1)
  fit <- checkpointed(3, folder = options)$fit
  expect_length(dir(file.path(home, "run"), "^checkpoint"), 1)
  expect_identical(basename(fit$checkpoint), "run")
  expect_identical(read_history("~/run")$epochs, 3L)
  expect_identical(checkpointed(4, folder = "~/run")$fit$resumed_epochs, 3L)
})

test_that("a damaged checkpoint is passed over, and all of them an error", {
  skip_without_tensorflow()
  folder <- file.path(withr::local_tempdir(), "run")
  checkpointed(2, folder = folder)
  files <- dir(folder, "^checkpoint", full.names = TRUE)
  writeBin(as.raw(0:99), files[2])
  fit <- checkpointed(3, folder = folder)$fit
  expect_identical(fit$resumed_epochs, 1L)
  expect_match(fit$notes, "checkpoint-000002.gpukeras was passed over", all = FALSE)
  for (file in dir(folder, "^checkpoint", full.names = TRUE)) writeBin(as.raw(0:99), file)
  error <- expect_error(checkpointed(3, folder = folder), class = "gpukeras_error_checkpoint")
  expect_match(one_line(error), "all checkpoints in run are damaged")
  expect_identical(error$arg, "checkpoint")
})

# Evaluating ---------------------------------------------------------------------------------------

test_that("evaluation takes a dataset and its parts, a data frame, or a matrix with labels", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  data <- gpu_dataset(y ~ ., frame, validation = 0.25, seed = 1)
  model <- trained(data)
  all <- gpu_evaluate(model, data)
  expect_named(all, c("loss", "mean_absolute_error"))
  expect_equal(gpu_evaluate(model, frame), all, tolerance = 1e-5)
  train <- gpu_evaluate(model, data, part = "train")
  validation <- gpu_evaluate(model, data, part = "validation")
  expect_equal(0.75 * train + 0.25 * validation, all, tolerance = 1e-5)
  x <- a_matrix()
  y <- x[, 1]
  plain <- trained(gpu_dataset(x, y))
  expected <- mean((gpu_predict(plain, x) - y)^2)
  expect_equal(gpu_evaluate(plain, x, y)[["loss"]], expected, tolerance = 1e-4)
  expect_equal(gpu_evaluate(plain, list(x, y))[["loss"]], expected, tolerance = 1e-4)
})

test_that("evaluation does not depend on the batch size", {
  skip_without_tensorflow()
  data <- line()
  model <- trained(data)
  expect_equal(
    gpu_evaluate(model, data, batch_size = 7L), gpu_evaluate(model, data),
    tolerance = 1e-5
  )
})

test_that("evaluation trains nothing", {
  skip_without_tensorflow()
  data <- line()
  model <- trained(data)
  before <- gpu_predict(model, a_matrix(5))
  gpu_evaluate(model, data)
  expect_identical(gpu_predict(model, a_matrix(5)), before)
})

# Interrupting -------------------------------------------------------------------------------------

test_that("many predictions are those of few rows, and later ones leave them alone", {
  skip_without_tensorflow()
  x <- a_matrix(1000)[rep(1:1000, 101), ]
  for (units in 1:2) {
    model <- a_model(units = units, activation = "linear")
    some <- gpu_predict(model, x[1:1000, ])
    found <- gpu_predict(model, x)
    expect_identical(NROW(found), 101000L)
    expect_identical(dim(found), if (units == 2) c(101000L, 2L))
    expect_equal(utils::tail(found, 1000), some, tolerance = 1e-6, ignore_attr = TRUE)
    before <- found + 0
    gpu_predict(model, -x)
    expect_identical(found, before)
    found[1] <- 7
    expect_false(any(gpu_predict(model, x) == 7))
  }
})

test_that("an interrupt gives the history so far, and the script goes on", {
  skip_on_os("windows")
  skip_without_tensorflow()
  log <- withr::local_tempfile()
  child <- start_r(wait = FALSE, lines = c(
    "library(gpukeras)",
    "x <- matrix(sin(1:400000), ncol = 20)",
    "data <- gpu_dataset(x, x[, 1], batch_size = 20)",
    "model <- gpu_mlp(data)",
    sprintf("log <- reticulate::import('keras')$callbacks$CSVLogger('%s')", log),
    "cat('pid', Sys.getpid(), '\\n')",
    "fit <- gpu_fit(model, data, 100000, engine = 'keras', callbacks = list(log), verbose = 0)",
    "cat(class(fit), fit$stopped, fit$epochs == nrow(as.data.frame(fit, wide = TRUE)), '\\n')",
    "cat(is.finite(gpu_predict(model, x[1, , drop = FALSE])), '\\n')",
    "cat(gpu_fit(model, data, 1, engine = 'superstep', verbose = 0)$stopped, 'again\\n')"
  ))
  line_with <- function(pattern) grep(pattern, readLines(child$out, warn = FALSE), value = TRUE)
  training <- function() file.exists(log) && length(readLines(log, warn = FALSE)) > 2
  began <- wait_until(training, 90)
  pid <- as.integer(sub("pid ", "", line_with("^pid")))
  withr::defer(tools::pskill(pid, tools::SIGKILL))
  expect_true(began, info = toString(readLines(child$err, warn = FALSE)))
  tools::pskill(pid, tools::SIGINT)
  wait_until(function() length(line_with("again")) > 0 || !tools::pskill(pid, 0), 30)
  expect_identical(
    readLines(child$out, warn = FALSE)[-1],
    c("gpu_history interrupted TRUE ", "TRUE ", "completed again"),
    info = toString(readLines(child$err, warn = FALSE))
  )
})

test_that("an interrupt with a checkpoint gives the history, and training goes on later", {
  skip_on_os("windows")
  skip_without_tensorflow()
  folder <- file.path(withr::local_tempdir(), "run")
  child <- start_r(wait = FALSE, lines = c(
    "library(gpukeras)",
    "x <- matrix(sin(1:400000), ncol = 20)",
    "data <- gpu_dataset(x, x[, 1], batch_size = 20, seed = 1)",
    sprintf("folder <- '%s'", folder),
    "cat('pid', Sys.getpid(), '\\n')",
    "model <- gpu_mlp(data, seed = 1)",
    "fit <- gpu_fit(model, data, 100000, checkpoint = folder, verbose = FALSE)",
    "cat(class(fit), fit$stopped, fit$epochs == read_history(folder)$epochs, '\\n')",
    "more <- gpu_fit(model, data, fit$epochs + 1, checkpoint = folder, verbose = FALSE)",
    "# The epoch that was interrupted is trained to its end.",
    "resumed <- more$resumed_epochs >= fit$epochs - 1",
    "cat(more$stopped, resumed && more$epochs == fit$epochs + 1, '\\n')"
  ))
  lines <- function() if (file.exists(child$out)) readLines(child$out, warn = FALSE)
  began <- wait_until(function() length(dir(folder, "^checkpoint")) > 1, 90)
  pid <- as.integer(sub("pid ", "", grep("^pid", lines(), value = TRUE)))
  withr::defer(tools::pskill(pid, tools::SIGKILL))
  expect_true(began, info = toString(readLines(child$err, warn = FALSE)))
  tools::pskill(pid, tools::SIGINT)
  wait_until(function() length(lines()) > 2 || !tools::pskill(pid, 0), 30)
  expect_identical(
    lines()[-1], c("gpu_history interrupted TRUE ", "completed TRUE "),
    info = toString(readLines(child$err, warn = FALSE))
  )
})

# Sparse matrices and files ------------------------------------------------------------------------

# Losses of a short training, and predictions of `newdata`.
learn <- function(x, y, newdata, ...) {
  data <- gpu_dataset(x, y, batch_size = 16, validation = 0.2, seed = 3, ...)
  model <- gpu_mlp(data, units = 4, seed = 1)
  fit <- gpu_fit(model, data, epochs = 3, engine = "keras", verbose = FALSE)
  list(
    losses = as.data.frame(fit, wide = TRUE), values = gpu_predict(model, newdata),
    metrics = gpu_evaluate(model, newdata, y)
  )
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
  expected <- learn(as.matrix(x), y, as.matrix(x))
  expect_same_training(learn(x, y, x), expected)
  expect_same_training(learn(x, y, as.matrix(x)), expected)
  expect_same_training(learn(as.matrix(x), y, x), expected)
})

test_that("a model of scaled sparse rows scales dense ones alike, and the reverse", {
  skip_without_tensorflow()
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
  skip_without_tensorflow()
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
