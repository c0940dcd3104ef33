a_setting <- function(name, value, status, reason) {
  list(name = name, value = value, status = status, reason = reason)
}

a_setup <- function() {
  list(
    device = "GPU:1",
    precision = "mixed_bfloat16",
    settings = list(
      a_setting("device", "GPU:1", "applied", "as asked"),
      a_setting("visible_devices", "GPU:1", "applied", "the others stay free"),
      a_setting("memory", "growth", "unchanged", "as wanted"),
      a_setting("threads", 2, "too late", "TensorFlow has started; restart R"),
      a_setting("seed", NULL, "unchanged", "not asked for"),
      a_setting("deterministic", FALSE, "unchanged", "as wanted")
    ),
    already_started = TRUE,
    notes = list("TensorFlow itself calls it GPU:0.")
  )
}

test_that("gpu_setup() passes every option under its name", {
  seen <- NULL
  local_core(function(name, args) {
    seen <<- list(name = name, args = args)
    answer(a_setup())
  })
  gpu_setup(device = "gpu", memory = 2048, threads = 4, seed = 1, jit = FALSE)
  expect_identical(seen$name, "setup")
  expect_named(seen$args, c(names(formals(gpu_setup)), "on_wait"))
  expect_identical(seen$args$memory, 2048)
  gpu_setup()
  expect_true("threads" %in% names(seen$args)) # NULL is passed, not dropped
  expect_null(seen$args$threads)
})

test_that("gpu_setup() gives what was chosen as a data frame too", {
  local_answer(a_setup())
  setup <- gpu_setup()
  expect_s3_class(setup, "gpu_setup")
  settings <- as.data.frame(setup)
  expect_named(settings, c("name", "value", "status", "reason"))
  expect_identical(settings$value[5:6], c("none", "FALSE"))
  expect_true(setup$already_started)
})

test_that("gpu_setup() prints what it chose and why, and marks what is too late", {
  local_answer(a_setup())
  expect_snapshot(gpu_setup())
})

test_that("gpu_devices() and gpu_memory() are data frames in human units", {
  devices <- list(
    list(
      name = "CPU:0", kind = "CPU", label = "AMD EPYC 7302", compute_capability = "",
      memory_bytes = 25274793984, visible = TRUE
    ),
    list(
      name = "GPU:0", kind = "GPU", label = "Tesla T4", compute_capability = "7.5",
      memory_bytes = NULL, visible = FALSE
    )
  )
  memory <- list(
    list(device = "CPU:0", current_bytes = 5e8, peak_bytes = 6e8, limit_bytes = 25274793984),
    list(device = "GPU:0", current_bytes = NULL, peak_bytes = NULL, limit_bytes = 15 * 2^30)
  )
  local_core(function(name, args) answer(if (name == "devices") devices else memory))
  expect_s3_class(gpu_devices(), c("gpu_devices", "gpu_result", "data.frame"), exact = TRUE)
  expect_identical(gpu_devices()$memory_bytes, c(25274793984, NA))
  expect_identical(gpu_memory()$current_bytes, c(5e8, NA))
  expect_identical(class(as.data.frame(gpu_devices())), "data.frame")
  expect_snapshot({
    gpu_devices()
    gpu_memory()
  })
})

test_that("with_device() runs the code between entering and leaving", {
  steps <- character()
  local_core(function(name, args) {
    steps <<- c(steps, name)
    answer(if (name == "enter_device") "handle")
  })
  value <- with_device("cpu", {
    steps <- c(steps, "code")
    42
  })
  expect_identical(value, 42)
  expect_identical(steps, c("enter_device", "code", "exit_device"))
})

test_that("with_device() leaves the device after an error too", {
  steps <- character()
  local_core(function(name, args) {
    steps <<- c(steps, name)
    answer(NULL)
  })
  expect_error(with_device("cpu", stop("broken")), "broken")
  expect_identical(steps, c("enter_device", "exit_device"))
})

test_that("a device that cannot be entered is not left", {
  steps <- character()
  local_core(function(name, args) {
    steps <<- c(steps, name)
    list(ok = FALSE, code = "no_device", message = "No.", hint = "", details = list())
  })
  expect_error(with_device("gpu", stop("not run")), class = "gpukeras_error_no_device")
  expect_identical(steps, "enter_device")
})

test_that("the real core lists devices and sets TensorFlow up", {
  skip_without_tensorflow()
  devices <- gpu_devices()
  expect_identical(devices$name[1], "CPU:0")
  expect_gt(devices$memory_bytes[1], 2^28)
  memory <- gpu_memory()
  expect_lte(memory$current_bytes[1], memory$peak_bytes[1])
  withr::local_preserve_seed()
  setup <- gpu_setup(seed = 1)
  drawn <- draw_seed()
  gpu_setup(seed = 1)
  expect_identical(draw_seed(), drawn) # the seed of a dataset or a model
  expect_true(setup$device %in% devices$name)
  expect_identical(setup$settings$value[setup$settings$name == "seed"], "1")
  expect_error(gpu_setup(device = "GPU:31"), class = "gpukeras_error_no_device")
  expect_error(gpu_setup(threads = 0), class = "gpukeras_error_spec")
})

test_that("with_device() enters and leaves the real device", {
  skip_without_tensorflow()
  expect_identical(with_device("cpu", 1 + 1), 2)
  error <- expect_error(with_device("GPU:31", 1), class = "gpukeras_error_no_device")
  expect_identical(error$wanted, "GPU:31")
  expect_true("CPU:0" %in% unlist(error$found))
})

skip_without_jax <- function(...) {
  skip_without_tensorflow(...)
  skip_if_not(reticulate::py_module_available("jax"), "The Python package jax is not installed.")
}

test_that("on JAX a data frame is learned and predicted without TensorFlow", {
  skip_without_jax()
  found <- in_new_session(function() {
    library(gpukeras)
    setup <- gpu_setup(backend = "jax", seed = 1)
    data <- gpu_dataset(iris, y = "Species", validation = 0.2)
    model <- gpu_mlp(data, units = 16, learning_rate = 0.05)
    history <- gpu_fit(model, data, epochs = 5, verbose = 0)
    list(
      setup = setup$settings[setup$settings$name == "backend", c("value", "status")],
      engine = history$engine$engine, classes = gpu_predict(model, iris, type = "class"),
      late = gpu_setup(backend = "tensorflow")$settings$status[1],
      tensorflow = reticulate::py_eval("'tensorflow' in __import__('sys').modules")
    )
  })
  expect_identical(unlist(found$setup, use.names = FALSE), c("jax", "applied"))
  expect_identical(found$late, "too late")
  expect_identical(found$engine, "compiled")
  expect_gt(mean(found$classes == iris$Species), 0.8)
  expect_false(found$tensorflow)
})

test_that("on JAX a model is saved, loaded and shown by TensorBoard", {
  skip_without_jax(slow = TRUE) # what saves or draws loads TensorFlow, where it is installed
  found <- in_new_session(function() {
    library(gpukeras)
    gpu_setup(backend = "jax", seed = 1)
    data <- gpu_dataset(iris, y = "Species", validation = 0.2)
    model <- gpu_mlp(data, units = 16)
    board <- withr::local_tempdir()
    gpu_fit(model, data, tensorboard = board, engine = "keras", verbose = 0)
    file <- tempfile(fileext = ".keras")
    gpu_save(model, file)
    list(
      same = identical(gpu_predict(gpu_load(file), iris), gpu_predict(model, iris)),
      board = length(list.files(board, "^events", recursive = TRUE)),
      mlp_fit = gpu_mlp_fit(Species ~ ., iris, epochs = 1)$history$engine$engine
    )
  })
  expect_true(found$same)
  expect_gt(found$board, 0)
  expect_identical(found$mlp_fit, "compiled") # by default what every backend has
})
