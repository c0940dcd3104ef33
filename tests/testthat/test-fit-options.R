# Options of a training ----------------------------------------------------------------------------

rate_of <- function(model) as.numeric(as_r(model$optimizer$learning_rate$numpy()))

# Trains the same small model; `...` are arguments of gpu_fit().
short_fit <- function(..., epochs = 3, validation = 0.25, rate = 0.01, engine = "graph_loop") {
  silence_tensorflow()
  data <- line(validation = validation)
  model <- afresh(paste("of a rate of", rate), function() {
    gpu_mlp(data, units = 8, learning_rate = rate, seed = 1)
  })
  fit <- gpu_fit(model, data, epochs = epochs, engine = engine, ..., verbose = FALSE)
  list(fit = fit, model = model, data = data)
}

test_that("a schedule sets the rate of each step, and the optimizer has its own again", {
  skip_without_tensorflow()
  for (engine in few_engines()) {
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
    model <- afresh("by SGD", function() {
      gpu_mlp(data, units = 8, optimizer = "sgd", learning_rate = 1, seed = 1)
    })
    before <- weights(model)
    gpu_fit(model, data, 1, batch_size = 200, ..., engine = "graph_loop", verbose = FALSE)
    Map(function(after, before) after - before, weights(model), before)
  }
  norm <- function(x) sqrt(sum(x^2))
  expect_gt(norm(unlist(moved())), 0.1)
  expect_equal(norm(unlist(moved(clip_global_norm = 1e-2))), 1e-2, tolerance = 1e-3)
  expect_equal(max(abs(unlist(moved(clip_value = 1e-3)))), 1e-3, tolerance = 1e-3)
  expect_lt(max(vapply(moved(clip_norm = 1e-2), norm, 0)), 1.01e-2)
})

test_that("averages of the weights are validated, and stay", {
  skip_without_tensorflow(slow = TRUE)
  for (engine in few_engines()) {
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
    stopped = "early", epochs = 3L, best_epoch = 0L
  ))
  expect_match(fit$reasons[["stopped"]], "mean_absolute_error")
})

# Without a seed it is remembered for the model: python/tests/training/test_seeds.py.
test_that("a batch size that was found trains, and with a seed only where it is given", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  import_keras()$utils$set_random_seed(1L)
  data <- line()
  model <- gpu_mlp(data, units = 4, seed = 1)
  size <- gpu_batch_size(model, data, from = 8, to = 16, verbose = FALSE)
  size$recommended <- 25L
  train <- function(...) gpu_fit(model, data, 1, ..., engine = "graph_loop", verbose = FALSE)
  fit <- function(...) train(...)$plan
  expect_identical(fit(batch_size = size)$batch_size, 25L)
  history <- train()
  expect_identical(history$plan$batch_size, 20L)
  expect_match(history$notes, "gpu_batch_size\\(\\) found (8|16) rows by measuring", all = FALSE)
  expect_identical(fit(batch_size = 40)$batch_size, 40L)
  other <- gpu_mlp(data, units = 4, seed = 1)
  expect_identical(gpu_fit(other, data, 1, verbose = FALSE)$plan$batch_size, 20L)
})

test_that("a loss that is no number stops with a warning, and the weights of before", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- line()
  for (engine in few_engines()) {
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
  losses <- function(loss, metrics = NULL, engine = "graph_loop") {
    gpu_fit(own_model(loss, metrics), data, 2, engine = engine, verbose = FALSE)$history
  }
  expected <- losses("mse", list("mae"))
  for (engine in few_engines()) {
    found <- losses(squared, list(absolute), engine)
    expect_equal(found$loss, expected$loss, tolerance = 1e-4)
    expect_equal(found[[2]], expected$mae, tolerance = 1e-4)
  }
  huber <- losses(import_keras()$losses$Huber(delta = 1e6))$loss
  expect_equal(2 * huber, expected$loss, tolerance = 1e-3)
  expect_error(losses(function(y_true, y_pred) stop("my loss failed")), "my loss failed")
})

test_that("class weights and weights of rows count in a loss of one's own", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  ops <- import_keras()$ops
  brier <- function(y_true, y_pred) {
    ops$mean(ops$square(ops$subtract(y_true, y_pred)), axis = -1L)
  }
  x <- a_matrix(60)
  y <- as.numeric(x[, 1] > 0.5)
  first <- function(...) {
    data <- gpu_dataset(x, y, batch_size = 60, seed = 1, ...)
    model <- afresh("with a loss of one's own", function() own_model(brier))
    gpu_fit(model, data, 1, engine = "graph_loop", verbose = FALSE)$history$loss
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
  skip_without_tensorflow(slow = TRUE)
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
  model <- afresh("with checkpoints", function() gpu_mlp(data, units = 8, seed = 1))
  fit <- gpu_fit(
    model, data, epochs, engine = "graph_loop", ..., checkpoint = folder, verbose = FALSE
  )
  list(fit = fit, predictions = gpu_predict(model, a_matrix(10)))
}

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
  expect_match(fit$notes, "checkpoint-000002.npz was passed over", all = FALSE)
  for (file in dir(folder, "^checkpoint", full.names = TRUE)) writeBin(as.raw(0:99), file)
  error <- expect_error(checkpointed(3, folder = folder), class = "gpukeras_error_checkpoint")
  expect_match(one_line(error), "all checkpoints in run are damaged")
  expect_identical(error$arg, "checkpoint")
})

# Interrupting -------------------------------------------------------------------------------------

# Enough rows that an interrupt comes within an epoch.
many_rows <- function() matrix(sin(1:80000), ncol = 20)

test_that("an interrupt gives the history so far, and the script goes on", {
  skip_on_os("windows")
  skip_without_tensorflow()
  file <- withr::local_tempfile()
  training <- function() file.exists(file) && length(readLines(file, warn = FALSE)) > 2
  found <- in_second_session(function(x, file) {
    data <- gpu_dataset(x, x[, 1], batch_size = 20)
    model <- gpu_mlp(data)
    log <- reticulate::import("keras")$callbacks$CSVLogger(file)
    fit <- gpu_fit(model, data, 100000, engine = "keras", callbacks = list(log), verbose = 0)
    list(
      class(fit)[1], fit$stopped, fit$epochs == nrow(as.data.frame(fit, wide = TRUE)),
      is.finite(gpu_predict(model, x[1, , drop = FALSE])),
      gpu_fit(model, data, 1, engine = "graph_loop", verbose = 0)$stopped
    )
  }, list(many_rows(), file), when = list(training))
  expect_identical(found, list("gpu_history", "interrupted", TRUE, TRUE, "completed"))
})

test_that("an interrupt with a checkpoint gives the history, and training goes on later", {
  skip_on_os("windows")
  skip_without_tensorflow()
  folder <- file.path(withr::local_tempdir(), "run")
  found <- in_second_session(function(x, folder) {
    data <- gpu_dataset(x, x[, 1], batch_size = 20, seed = 1)
    model <- gpu_mlp(data, seed = 1)
    fit <- gpu_fit(
      model, data, 100000, engine = "graph_loop", checkpoint = folder, verbose = FALSE
    )
    stored <- read_history(folder)$epochs
    more <- gpu_fit(
      model, data, fit$epochs + 1, engine = "graph_loop", checkpoint = folder, verbose = FALSE
    )
    list(
      class(fit)[1], fit$stopped, fit$epochs == stored, more$stopped,
      # The epoch that was interrupted is trained to its end.
      more$resumed_epochs >= fit$epochs - 1 && more$epochs == fit$epochs + 1
    )
  }, list(many_rows(), folder), when = list(function() length(dir(folder, "^checkpoint")) > 1))
  expect_identical(found, list("gpu_history", "interrupted", TRUE, "completed", TRUE))
})

# Last, as it ends the session that the interrupts are tried in.
test_that("a training goes on from its checkpoint in another process, to the same weights", {
  skip_on_os("windows")
  skip_without_tensorflow(slow = TRUE)
  path <- withr::local_tempdir()
  folder <- file.path(path, "run")
  end_second_session(function(folder) {
    x <- matrix(sin(1:600), 200, 3)
    data <- gpu_dataset(x, drop(x %*% c(1, -2, 3)), batch_size = 20, validation = 0.25, seed = 1)
    model <- gpu_mlp(data, units = 8, seed = 1)
    die <- function(epoch) if (epoch == 3) tools::pskill(Sys.getpid(), tools::SIGKILL)
    gpu_fit(
      model, data, 5, engine = "graph_loop", early_stopping = 50, verbose = FALSE,
      checkpoint = folder, callbacks = list(on_epoch_begin = die)
    )
  }, list(folder))
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
  expect_setequal(dir(folder), c(sprintf("checkpoint-%06d.npz", 3:5), "history.json"))

  nothing_left <- checkpointed(5, early_stopping = 50, folder = folder)
  expect_identical(nothing_left$fit$resumed_epochs, 5L)
  expect_identical(nothing_left$predictions, resumed$predictions)
})

test_that("checkpoints that could not be saved to the end are a classed warning", {
  ended <- list(stopped = "completed", checkpoint = "", unsaved = "`checkpoint`: the disk is full.")
  told <- expect_warning(warn_stopped(ended), class = "gpukeras_warning_checkpoint")
  expect_match(conditionMessage(told), "not saved to its end: `checkpoint`: the disk is full.*None is there")
  expect_snapshot(cat(sub("to its end:.*", "to its end: ...", conditionMessage(told)[1]), "\n"))
  ended$checkpoint <- "run"
  told <- expect_warning(warn_stopped(ended), class = "gpukeras_warning_checkpoint")
  expect_match(conditionMessage(told), "An earlier checkpoint is kept")
  expect_silent(warn_stopped(list(stopped = "completed", unsaved = "", checkpoint = "run")))
})
