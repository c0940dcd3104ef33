# Training on several devices and in several processes, as R users do it. Without GPUs a processor
# is split in two, which a process can do only before TensorFlow starts: the second session has.

two_names <- c("CPU:0", "CPU:1")

# What the core reports of a training on several replicas.
shared_report <- function(replicas, workers, ...) {
  a_report(
    micro_batch = 512L %/% replicas, replicas = replicas, workers = workers,
    reasons = list(
      engine = "XLA compiles for one device, and there are several", batch_size = "as asked",
      learning_rate = "2 times the one given: rate_scaling = \"linear\""
    ),
    engine = list(
      engine = "graph_loop", reason = "XLA compiles for one device, and there are several",
      trials = list()
    ),
    ...
  )
}

tell_speed <- function(fit) grep("^speed", format(fit), value = TRUE)

# Printing -----------------------------------------------------------------------------------------

test_that("a history tells the batch size of all replicas and of each", {
  fit <- new_gpu_history(shared_report(
    2L, 1L,
    device = "GPU:0", devices = list("GPU:0", "GPU:1"), variables = list(`GPU:0` = 6L)
  ))
  expect_snapshot({
    print(fit)
    cat(tell_speed(new_gpu_history(shared_report(4L, 4L))))
    cat(tell_speed(new_gpu_history(shared_report(8L, 4L))))
    cat(tell_speed(new_gpu_history(shared_report(1L, 1L))))
  })
})

test_that("what was done to the learning rate is among the reasons", {
  fit <- new_gpu_history(shared_report(2L, 1L))
  expect_identical(
    fit$reasons[["learning_rate"]], "2 times the one given: rate_scaling = \"linear\""
  )
  expect_identical(fit$replicas, 2L)
})

# What crosses -------------------------------------------------------------------------------------

test_that("several names cross as a list, a lone one and a number as they are", {
  expect_identical(as_devices(two_names), as.list(two_names))
  expect_identical(as_devices("all"), "all")
  expect_identical(as_devices(2), 2)
  expect_null(as_devices(NULL))
})

# Errors -------------------------------------------------------------------------------------------

test_that("devices that are not there are an error, and train nothing", {
  skip_without_tensorflow()
  skip_if(has_gpu(), "what is refused here may be there")
  data <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8, seed = 1)
  model <- gpu_mlp(data, units = 4, seed = 1)
  before <- as_r(model$get_weights())
  expect_snapshot(error = TRUE, gpu_fit(model, data, devices = 2))
  expect_snapshot(error = TRUE, gpu_fit(model, data, devices = c("GPU:0", "GPU:1")))
  expect_snapshot(error = TRUE, gpu_evaluate(model, data, devices = 2))
  for (devices in list(2, "GPU:0", c("CPU:0", "CPU:7"))) {
    expect_error(gpu_fit(model, data, devices = devices), class = "gpukeras_error_no_device")
  }
  condition <- expect_error(gpu_fit(model, data, devices = 2), class = "gpukeras_error_no_device")
  expect_identical(condition$arg, "devices")
  expect_identical(as_r(model$get_weights()), before)
})

test_that("devices and a scaling of the rate that are none are refused", {
  skip_without_tensorflow()
  data <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8, seed = 1)
  model <- gpu_mlp(data, units = 4, seed = 1)
  wrong <- list(0, -1, 1.5, TRUE, NA, character(), "", c("CPU:0", "cpu:0"), c(0, 1), list("a", 2))
  for (devices in wrong) {
    condition <- expect_error(gpu_fit(model, data, devices = devices), class = "gpukeras_error")
    expect_identical(condition$arg, "devices")
    expect_match(one_line(condition), "`devices`", fixed = TRUE)
  }
  for (scaling in list("quadratic", NULL, NA, 2, c("none", "sqrt"))) {
    condition <- expect_error(
      gpu_fit(model, data, rate_scaling = scaling),
      class = "gpukeras_error_spec"
    )
    expect_match(one_line(condition), "`rate_scaling`", fixed = TRUE)
  }
})

test_that("\"all\" and the model's own device are one, and scale no rate", {
  skip_without_tensorflow()
  skip_if(has_gpu())
  silence_tensorflow()
  data <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8, seed = 1)
  model <- gpu_mlp(data, units = 4, seed = 1)
  for (devices in list("all", "CPU:0", "cpu:0")) {
    fit <- gpu_fit(
      model, data,
      epochs = 1, engine = "keras", devices = devices, rate_scaling = "linear", verbose = FALSE
    )
    expect_identical(as.integer(fit$replicas), 1L)
    expect_false("learning_rate" %in% names(fit$reasons))
    expect_match(tell_speed(fit), "at batch size 8, ", fixed = TRUE)
  }
})

# Real devices -------------------------------------------------------------------------------------

# Lines of R that keep in `name` what `code` gives, an error too.
kept <- function(name, code) {
  sprintf("told[['%s']] <- tryCatch({ %s }, gpukeras_error = function(e) list(
    class = class(e)[1], arg = e$arg, message = conditionMessage(e)))", name, code)
}

# Trains on two halves of a processor. `alone` says that this session must make them itself.
train_on_two <- function(alone) {
  if (alone) {
    tf <- reticulate::import("tensorflow")
    halves <- replicate(2, tf$config$LogicalDeviceConfiguration())
    cpu <- tf$config$list_physical_devices("CPU")[[1]]
    tf$config$set_visible_devices(list(), "GPU")
    tf$config$set_logical_device_configuration(cpu, halves)
  }
  library(gpukeras)
  kept <- function(code) {
    tryCatch(code, gpukeras_error = function(e) {
      list(class = class(e)[1], arg = e$arg, message = conditionMessage(e))
    })
  }
  both <- c("CPU:0", "CPU:1")
  data <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 6, seed = 1)
  one <- gpu_mlp(data, units = 4, seed = 1)
  two <- gpu_mlp(data, units = 4, seed = 1)
  gpu_fit(one, data, epochs = 3, engine = "graph_loop", verbose = FALSE)
  fit <- gpu_fit(two, data, epochs = 3, devices = both, verbose = FALSE)
  list(
    values = cbind(gpu_predict(one, data), gpu_predict(two, data)),
    metrics = cbind(gpu_evaluate(one, data), gpu_evaluate(two, data, devices = both)),
    fit = fit[c("replicas", "workers", "devices", "micro_batch", "reasons")],
    speed = grep("^speed", format(fit), value = TRUE),
    rate = gpu_fit(
      two, data, epochs = 1, devices = both, rate_scaling = "sqrt", verbose = FALSE
    )$reasons[["learning_rate"]],
    odd = kept(gpu_fit(two, data, batch_size = 7, devices = both)),
    compiled = kept(gpu_fit(two, data, engine = "compiled", devices = both)),
    other = kept(gpu_fit(two, data, devices = "CPU:1")),
    number = kept(gpu_fit(two, data, devices = 2)),
    again = gpu_fit(two, data, epochs = 1, engine = "graph_loop", verbose = FALSE)$replicas
  )
}

test_that("two devices learn what one does, and share out evaluation too", {
  skip_without_tensorflow()
  # Where there is a GPU, it must be hidden.
  told <- if (has_gpu()) {
    in_new_session(train_on_two, list(alone = TRUE))
  } else {
    in_second_session(train_on_two, list(alone = FALSE))
  }
  expect_equal(told$values[, 1], told$values[, 2], tolerance = 1e-5)
  expect_equal(told$metrics[, 1], told$metrics[, 2], tolerance = 1e-5)
  expect_identical(as.integer(told$fit[c("replicas", "workers", "micro_batch")]), c(2L, 1L, 3L))
  expect_identical(unlist(told$fit$devices), two_names)
  expect_match(told$speed, "at batch size 6 (3 on each of 2 devices),", fixed = TRUE)
  expect_match(told$fit$reasons[["learning_rate"]], "^as given")
  expect_match(told$rate, "1.41 times the one given", fixed = TRUE)
  expect_identical(as.integer(told$again), 1L)
  expect_identical(told$odd[c("class", "arg")], list(
    class = "gpukeras_error_spec", arg = "batch_size"
  ))
  expect_match(told$odd$message, "6 or 8")
  expect_identical(told$compiled$arg, "engine")
  expect_identical(told$other$class, "gpukeras_error_spec")
  expect_identical(told$number$class, "gpukeras_error_no_device")
})

# Real workers -------------------------------------------------------------------------------------

# The same training in this process.
trained_alone <- function() {
  silence_tensorflow()
  data <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 6, seed = 1)
  model <- gpu_mlp(data, units = 4, seed = 1)
  gpu_fit(model, data, epochs = 3, engine = "graph_loop", verbose = FALSE)
  list(
    weights = lapply(as_r(model$get_weights()), as.numeric),
    metrics = gpu_evaluate(model, data)
  )
}

test_that("launched workers train one model, and refuse to train two", {
  skip_without_tensorflow(slow = TRUE)
  folder <- withr::local_tempdir()
  script <- withr::local_tempfile(fileext = ".R", lines = c(
    "library(gpukeras)",
    "folder <- commandArgs(TRUE); cluster <- gpu_cluster(timeout = 30)",
    "told <- list(cluster = unclass(cluster)); index <- cluster$index",
    "data <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 6, seed = 1)",
    "model <- gpu_mlp(data, units = 4, seed = 1)",
    "fit <- gpu_fit(model, data, epochs = 3, engine = 'graph_loop', verbose = FALSE,",
    "  checkpoint = file.path(folder, paste0('run-', index)))",
    "told$weights <- lapply(model$get_weights(), as.numeric)",
    "told$hash <- rlang::hash(told$weights)",
    "told$format <- format(fit); told$history <- fit$history",
    "told$metrics <- gpu_evaluate(model, data)",
    "told$predicted <- if (index == 1) gpu_predict(model, data)",
    kept("devices", "gpu_fit(model, data, devices = 2)"),
    kept("late", "gpu_fit(model, data, epochs = index)"),
    "saveRDS(told, file.path(folder, paste0('told-', index, '.rds')))"
  ))
  launch <- suppressMessages(gpu_launch(script, 2, args = folder))
  expect_identical(as.data.frame(launch)$status, c("done", "done"))
  told <- lapply(file.path(folder, paste0("told-", 1:2, ".rds")), readRDS)
  expect_identical(told[[1]]$hash, told[[2]]$hash)
  expect_identical(told[[1]]$history, told[[2]]$history)
  expect_identical(told[[1]]$metrics, told[[2]]$metrics)
  speed <- vapply(told, function(one) grep("^speed", one$format, value = TRUE), "")
  expect_match(speed, "at batch size 6 (3 on each of 2 workers),", fixed = TRUE)
  expect_identical(told[[1]]$cluster$replicas, 2L)
  expect_identical(dir.exists(file.path(folder, paste0("run-", 1:2))), c(TRUE, FALSE))
  expect_length(told[[1]]$predicted, nrow(mtcars))

  alone <- trained_alone()
  expect_equal(told[[1]]$weights, alone$weights, tolerance = 1e-5)
  expect_equal(told[[1]]$metrics, alone$metrics, tolerance = 1e-5)

  for (one in told) {
    expect_identical(one$devices[c("class", "arg")], list(
      class = "gpukeras_error_spec", arg = "devices"
    ))
    expect_identical(one$late$class, "gpukeras_error_cluster")
    expect_match(one$late$message, "Worker 2 .*`epochs`")
  }
})
