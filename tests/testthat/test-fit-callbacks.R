# What crosses to Python ---------------------------------------------------------------------------

# Runs what Python would call for a hook.
run_hook <- function(callbacks, hook, ...) {
  as_callbacks(callbacks)$functions[[hook]](...)
}

test_that("functions and Keras callbacks are told apart, in their order", {
  skip_without_tensorflow()
  stopping <- import_keras()$callbacks$EarlyStopping(patience = 1L)
  logger <- import_keras()$callbacks$CSVLogger("unused")
  crossing <- as_callbacks(list(stopping, on_epoch_end = identity, log = logger))
  expect_identical(crossing$keras, list(stopping, logger))
  expect_named(crossing$functions, "on_epoch_end")
  expect_identical(as_callbacks(stopping)$keras, list(stopping))
  expect_identical(as_callbacks(), list(keras = list(), functions = NULL))
  expect_identical(as_callbacks(NULL), as_callbacks())
})

test_that("a function takes as many arguments as it has", {
  takes <- list(
    function() "nothing",
    function(epoch) epoch,
    function(metrics) metrics,
    function(metrics, epoch) list(epoch, metrics),
    function(e, m) list(e, m),
    function(epoch, logs, path = "x") list(epoch, logs, path),
    function(epoch, path = "x") list(epoch, path),
    function(...) list(...),
    function(e, ...) list(e, ...)
  )
  metrics <- c(loss = 0.5)
  expected <- list(
    "nothing", 3L, metrics, list(3L, metrics), list(3L, metrics), list(3L, metrics, "x"),
    list(3L, "x"), list(epoch = 3L, metrics = metrics), list(3L, metrics = metrics)
  )
  for (i in seq_along(takes)) {
    fill <- as_filler(takes[[i]], "on_epoch_end")
    expect_identical(fill(list(epoch = 3L, metrics = metrics)), expected[[i]])
  }
  expect_identical(as_filler(length, "on_train_end")(list(metrics = metrics)), 1L)
})

test_that("metrics are a named numeric vector", {
  seen <- list()
  keep <- list(on_epoch_end = function(epoch, metrics) seen <<- list(epoch, metrics))
  run_hook(keep, "on_epoch_end", 2L, list(loss = NaN, "top-5 accuracy" = 1L, val_loss = Inf))
  expect_identical(seen, list(2L, c(loss = NaN, "top-5 accuracy" = 1, val_loss = Inf)))
  run_hook(keep, "on_epoch_end", 2L, list())
  expect_length(seen[[2]], 0)
  expect_type(seen[[2]], "double")
})

test_that("only the string stop stops", {
  answer_of <- function(value) {
    run_hook(list(on_epoch_begin = function() value), "on_epoch_begin", 1L)
  }
  expect_identical(answer_of("stop"), list(stop = TRUE))
  for (other in list(NULL, TRUE, "STOP", c("stop", "stop"), FALSE, list("stop"))) {
    expect_identical(answer_of(other), list(stop = FALSE))
  }
})

test_that("all functions of a hook are called, in their order", {
  called <- character()
  say <- function(word, answer = NULL) {
    function() {
      called <<- c(called, word)
      answer
    }
  }
  callbacks <- list(
    on_epoch_end = say("a", "stop"), on_train_end = say("no"), on_epoch_end = say("b")
  )
  crossing <- as_callbacks(callbacks, on_epoch_end = say("c"))
  expect_named(crossing$functions, c("on_epoch_end", "on_train_end"))
  expect_identical(crossing$functions$on_epoch_end(1L, list()), list(stop = TRUE))
  expect_identical(called, c("a", "b", "c"))
})

test_that("what stops a function is kept, not raised", {
  withr::defer(the$condition <- NULL)
  fails <- list(on_train_begin = function() rlang::abort("mine", class = "my_error"))
  expect_identical(run_hook(fails, "on_train_begin"), list(failed = TRUE))
  expect_s3_class(the$condition, "my_error")
  stops <- list(on_train_begin = function() rlang::interrupt())
  expect_identical(run_hook(stops, "on_train_begin"), list(interrupted = TRUE))
  expect_s3_class(the$condition, "interrupt")
})

test_that("callbacks that cannot be used are refused", {
  skip_outside_lane()
  expect_snapshot(error = TRUE, {
    as_callbacks(list(on_batch_end = identity), call = NULL)
    as_callbacks(function(epoch) NULL, call = NULL)
    as_callbacks(list(on_epoch_end = "stop"), call = NULL)
    as_callbacks(NULL, on_epoch_end = 3, call = NULL)
    as_callbacks("EarlyStopping", call = NULL)
  })
  error <- expect_error(as_callbacks(list(identity)), class = "gpukeras_error_spec")
  expect_identical(error$arg, "callbacks")
})

# In a training ------------------------------------------------------------------------------------

rows <- a_matrix(100)
quiet_fit <- function(..., epochs = 3, engine = "graph_loop") {
  silence_tensorflow()
  data <- gpu_dataset(rows, rows[, 1], batch_size = 20, validation = 0.2, seed = 1)
  model <- afresh("with functions", function() gpu_mlp(data, units = 4, seed = 1))
  list(model = model, fit = gpu_fit(model, data, epochs, ..., engine = engine, verbose = 0))
}

test_that("functions see the epochs and metrics that the history has", {
  skip_without_tensorflow()
  seen <- list()
  note <- function(hook) {
    function(...) {
      seen[[length(seen) + 1]] <<- list(hook = hook, ...)
      NULL
    }
  }
  hooks <- c("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
  fit <- quiet_fit(callbacks = lapply(rlang::set_names(hooks), note))$fit
  expect_identical(
    vapply(seen, function(call) call$hook, ""),
    c("on_train_begin", rep(c("on_epoch_begin", "on_epoch_end"), 3), "on_train_end")
  )
  ends <- Filter(function(call) call$hook == "on_epoch_end", seen)
  expect_identical(lapply(ends, `[[`, "epoch"), as.list(1:3))
  expect_named(
    ends[[1]]$metrics, c("loss", "mean_absolute_error", "val_loss", "val_mean_absolute_error")
  )
  expect_equal(vapply(ends, function(call) call$metrics[["val_loss"]], 0), fit$history$val_loss)
  expect_equal(seen[[8]]$metrics, ends[[3]]$metrics)
})

test_that("functions do not change the engine", {
  skip_without_tensorflow()
  fit <- quiet_fit(on_epoch_end = function(epoch) NULL, engine = "compiled")$fit
  expect_identical(fit$engine$engine, "compiled")
})

test_that("a function stops the training after an epoch", {
  skip_without_tensorflow()
  at_two <- function(epoch, metrics) if (epoch == 2) "stop" else "go on"
  for (arguments in list(
    list(on_epoch_end = at_two), list(callbacks = list(on_epoch_begin = at_two))
  )) {
    fit <- do.call(quiet_fit, c(arguments, epochs = 5))$fit
    expect_identical(fit$stopped, "early")
    expect_identical(fit$epochs, 2L)
    expect_identical(nrow(as.data.frame(fit, wide = TRUE)), 2L)
  }
})

test_that("functions and Keras callbacks work beside each other", {
  skip_without_tensorflow()
  count <- 0
  stopping <- import_keras()$callbacks$EarlyStopping("loss", patience = 0L, min_delta = 1e9)
  fit <- quiet_fit(
    callbacks = list(stopping), on_epoch_end = function() count <<- count + 1, epochs = 9
  )$fit
  expect_identical(fit$stopped, "early")
  expect_identical(count, 2)
})

test_that("an error in a function arrives as itself, and the model keeps what it has learned", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- gpu_dataset(rows, rows[, 1], batch_size = 20, seed = 1)
  model <- gpu_mlp(data, units = 4, seed = 1)
  before <- gpu_predict(model, rows)
  own <- function(epoch) if (epoch == 2) rlang::abort("mine", class = "my_error", value = 7)
  plain <- function(epoch) if (epoch == 2) stop("plain")
  for (hook in c("on_epoch_begin", "on_epoch_end")) {
    for (f in list(own, plain)) {
      expected <- rlang::catch_cnd(f(2), "error")
      error <- rlang::catch_cnd(
        gpu_fit(model, data, 3, callbacks = rlang::set_names(list(f), hook), verbose = 0), "error"
      )
      expect_identical(class(error), class(expected))
      expect_identical(conditionMessage(error), conditionMessage(expected))
      expect_identical(error$value, expected$value)
      expect_s3_class(error$trace, "rlang_trace")
    }
  }
  expect_identical(as.character(conditionCall(error))[1], "on_epoch_end")
  expect_false(identical(gpu_predict(model, rows), before))
  expect_identical(gpu_fit(model, data, 1, verbose = 0)$stopped, "completed")
})

test_that("an error at the end arrives too", {
  skip_without_tensorflow()
  fails <- list(on_train_end = function(metrics) stop(names(metrics)[1]))
  expect_error(quiet_fit(callbacks = fails), "^loss$", class = "simpleError")
})

test_that("an interrupt in a function ends the training as any other", {
  skip_without_tensorflow()
  interrupted <- function(epoch) if (epoch == 2) rlang::interrupt()
  fit <- quiet_fit(on_epoch_end = interrupted)$fit
  expect_identical(fit$stopped, "interrupted")
  expect_identical(fit$epochs, 2L)
  before <- quiet_fit(callbacks = list(on_epoch_begin = interrupted))$fit
  expect_identical(before$stopped, "interrupted")
  expect_identical(before$epochs, 1L)
})

test_that("Ctrl-C in a function ends the training", {
  skip_on_os("windows")
  skip_without_tensorflow()
  here <- withr::local_tempfile()
  found <- in_second_session(function(here) {
    x <- matrix(sin(1:4000), ncol = 20)
    data <- gpu_dataset(x, x[, 1], batch_size = 20)
    wait <- function(epoch) {
      if (epoch == 2) file.create(here)
      if (epoch == 2) Sys.sleep(3600)
    }
    fit <- gpu_fit(gpu_mlp(data), data, 9, engine = "keras", on_epoch_end = wait, verbose = 0)
    list(fit$stopped, fit$epochs)
  }, list(here), when = list(function() file.exists(here)))
  expect_identical(found, list("interrupted", 2L))
})

test_that("warnings and messages in a function are R's own", {
  skip_without_tensorflow()
  told <- character()
  withCallingHandlers(
    quiet_fit(on_epoch_end = function(epoch) warning("epoch ", epoch), epochs = 2),
    warning = function(condition) {
      told <<- c(told, conditionMessage(condition))
      invokeRestart("muffleWarning")
    }
  )
  expect_identical(told, c("epoch 1", "epoch 2"))
  expect_message(quiet_fit(on_epoch_end = function() message("hello"), epochs = 1), "hello")
})

test_that("a warning that is caught leaves the function, and all goes on", {
  skip_without_tensorflow()
  warned <- tryCatch(
    quiet_fit(on_epoch_end = function() warning("mine"), epochs = 1), warning = conditionMessage
  )
  expect_identical(warned, "mine")
  expect_silent(fit <- quiet_fit(epochs = 1)$fit)
  expect_identical(fit$stopped, "completed")
})

test_that("no more warnings are kept than R itself keeps", {
  withr::defer(the$warnings <- list())
  often <- list(on_train_begin = function() for (i in 1:60) warning(i))
  expect_silent(run_hook(often, "on_train_begin"))
  expect_length(the$warnings, 50)
  expect_length(testthat::capture_warnings(raise_warnings()), 50)
  expect_silent(raise_warnings())
})

test_that("a function may evaluate and predict with the model in training", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- gpu_dataset(rows, rows[, 1], batch_size = 20, seed = 1)
  model <- gpu_mlp(data, units = 4, seed = 1)
  losses <- numeric()
  fit <- gpu_fit(model, data, 3, verbose = 0, engine = "graph_loop", on_epoch_end = function() {
    losses <<- c(losses, gpu_evaluate(model, data)[["loss"]], mean(gpu_predict(model, rows)))
  })
  expect_identical(fit$epochs, 3L)
  expect_length(losses, 6)
  expect_equal(losses[5], gpu_evaluate(model, data)[["loss"]])
})
