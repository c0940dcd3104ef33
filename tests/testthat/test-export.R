# Saving, loading and exporting models, as a user would.

an_export_record <- function(...) {
  record <- list(
    path = "/models/digits.onnx", format = "onnx", title = "ONNX", bytes = 123456,
    model = "digits",
    inputs = list(list(name = "pixels", shape = list(8L, 8L, 1L), dtype = "float32")),
    outputs = list(list(shape = list(10L), dtype = "float32")), rows = 16L, drawn = FALSE,
    max_difference = 1.23456e-7, largest = 0.99, allowed = 1e-4, tolerance = 1e-4,
    tolerance_reason = "float32, computed in another order", runner = "onnxruntime 1.31.1",
    encoded = TRUE, seconds = 1.5,
    code = list(
      "import onnxruntime", "session = onnxruntime.InferenceSession('/models/digits.onnx')",
      "session.run(None, {'pixels': rows})"
    ),
    notes = list()
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

test_that("a model comes back with recipe and history", {
  skip_without_tensorflow()
  folder <- withr::local_tempdir()
  withr::local_dir(folder)
  data <- gpu_dataset(y ~ ., mixed_frame(), seed = 1)
  silence_tensorflow()
  model <- gpu_mlp(data, units = 4, seed = 1)
  fit <- gpu_fit(model, data, epochs = 2, engine = "keras", verbose = 0)
  expect_output(
    expect_identical(expect_invisible(gpu_save(model, "model.keras", history = fit)), "model.keras"),
    "saved Sequential .* the recipe, a history of 2 epochs"
  )
  expect_identical(list.files(all.files = TRUE, no.. = TRUE), "model.keras")
  again <- expect_silent(gpu_load("model.keras"))
  expect_identical(gpu_predict(again, mixed_frame()), gpu_predict(model, mixed_frame()))
  expect_identical(gpu_recipe(again), gpu_recipe(model))
  saved <- archive_history("model.keras")
  expect_s3_class(saved, "gpu_history")
  expect_equal(as.data.frame(saved), as.data.frame(fit))
  expect_identical(names(saved$reasons), names(fit$reasons))
  expect_identical(format(saved), format(fit))
})

test_that("a formula that a later session will refuse is told when the model is loaded", {
  skip_without_tensorflow()
  silence_tensorflow()
  withr::local_dir(withr::local_tempdir())
  local_function <- function(x) x / 2
  data <- gpu_dataset(mpg ~ local_function(wt) + hp, mtcars, seed = 1)
  model <- gpu_mlp(data, units = 2, seed = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  gpu_save(model, "own.keras", verbose = FALSE)
  expect_silent(gpu_load("own.keras")) # this session knows the function
  known <- the$formulas
  withr::defer(the$formulas <- known)
  the$formulas <- list() # as in a later session
  expect_snapshot(again <- gpu_load("own.keras"))
  expect_error(gpu_predict(again, mtcars), "local_function", class = "gpukeras_error_data")
})

test_that("files are not overwritten unasked", {
  skip_without_tensorflow()
  path <- file.path(withr::local_tempdir(), "model.keras")
  writeLines("mine", path)
  error <- expect_error(gpu_save(a_model(), path), class = "gpukeras_error_data")
  expect_match(one_line(error), "is there already", fixed = TRUE)
  expect_identical(readLines(path), "mine")
  gpu_save(a_model(), path, overwrite = TRUE, verbose = FALSE)
  expect_error(read_history(path), class = "gpukeras_error_data")
  expect_message(gpu_load(path), class = "gpukeras_message")
  expect_snapshot(read_history(path), error = TRUE)
  expect_snapshot(model <- gpu_load(path))
})

test_that("files of plain Keras load, and say what they lack", {
  skip_without_tensorflow()
  path <- file.path(withr::local_tempdir(), "plain.keras")
  a_model()$save(path)
  expect_snapshot(model <- gpu_load(path))
  expect_true(as_r(model$compiled))
  expect_identical(dim(gpu_predict(model, a_matrix())), c(60L, 3L))
  expect_error(read_history(path), class = "gpukeras_error_data")
  expect_snapshot(read_history(path), error = TRUE)
})

test_that("dangerous and damaged files are refused by name", {
  skip_without_tensorflow()
  folder <- withr::local_tempdir()
  at <- function(name) file.path(folder, name)
  keras <- import_keras()
  evil <- reticulate::py_eval("lambda x: x", convert = FALSE)
  layers <- list(keras$layers$Input(list(2L)), keras$layers$Lambda(evil, name = "evil"))
  lambda <- keras$Sequential(layers)
  lambda$save(at("lambda.keras"))
  expect_error(gpu_load(at("lambda.keras")), "lambda in `evil`", class = "gpukeras_error_model")
  pickle <- reticulate::import("pickle", convert = FALSE)
  pathlib <- reticulate::import("pathlib", convert = FALSE)
  pathlib$Path(at("pickle.keras"))$write_bytes(pickle$dumps(list(1L), protocol = 4L))
  expect_error(gpu_load(at("pickle.keras")), "Python pickle", class = "gpukeras_error_model")
  zipfile <- reticulate::import("zipfile", convert = FALSE)
  archive <- zipfile$ZipFile(at("lambda.keras"), "a")
  archive$writestr("../evil", "x")
  archive$close()
  error <- expect_error(gpu_load(at("lambda.keras")), class = "gpukeras_error_model")
  expect_match(one_line(error), "'../evil', which lies outside of it", fixed = TRUE)
  expect_identical(error$arg, "x")
  expect_error(gpu_load(at("none.keras")), "does not exist", class = "gpukeras_error_model")
  expect_error(gpu_load(at("old.h5")), "must end with", class = "gpukeras_error_spec")
})

# Custom layers, losses and functions --------------------------------------------------------------

# The size of a file differs by version.
without_sizes <- function(lines) sub("[(][0-9.]+ [A-Za-z]+[)]$", "(SIZE)", lines)

own_class <- function() {
  reticulate::py_run_string(paste(
    "import keras", "class Scale(keras.layers.Layer):", "    def call(self, x):",
    "        return 2 * x",
    sep = "\n"
  ), local = TRUE, convert = FALSE)$Scale
}

r_loss <- function(y_true, y_pred) {
  tf <- runtime()$tensorflow()
  tf$reduce_mean(tf$abs(tf$subtract(y_true, y_pred)), axis = -1L)
}

needing_model <- function(scale, loss = r_loss) {
  keras <- import_keras()
  model <- keras$Sequential(list(
    keras$Input(list(3L)), scale, keras$layers$Dense(1L, name = "out")
  ), name = "needing")
  attr(loss, "py_function_name") <- attr(loss, "py_function_name") %||% "r_loss"
  model$compile(optimizer = "sgd", loss = loss)
  model
}

test_that("what a file needs is told at saving, and taken at loading", {
  skip_without_tensorflow()
  silence_tensorflow()
  withr::local_dir(withr::local_tempdir())
  class <- own_class()
  model <- needing_model(class())
  gpu_fit(model, list(a_matrix(), a_matrix()[, 1]), verbose = 0)
  expect_snapshot(gpu_save(model, "own.keras"), transform = without_sizes)
  expect_snapshot(gpu_load("own.keras"), error = TRUE)
  expect_snapshot(half <- gpu_load("own.keras", custom_objects = list(Scale = own_class())))
  expect_false(as_r(half$compiled))
  again <- gpu_load("own.keras", custom_objects = list(Scale = own_class(), r_loss = r_loss))
  expect_true(as_r(again$compiled))
  expect_equal(gpu_predict(again, a_matrix()), gpu_predict(model, a_matrix()))
  expect_equal(gpu_predict(half, a_matrix()), gpu_predict(model, a_matrix()))
  rows <- list(a_matrix(), a_matrix()[, 1])
  expect_equal(
    gpu_fit(again, rows, epochs = 2, verbose = 0)$history$loss[1],
    gpu_evaluate(model, rows[[1]], rows[[2]])[["loss"]],
    tolerance = 0.1
  )
  gpu_save(again, "again.keras", verbose = FALSE) # the R function kept its name
  given <- list(Scale = structure(identity, Layer = own_class()), r_loss = r_loss)
  expect_true(as_r(gpu_load("again.keras", custom_objects = given)$compiled))
})

test_that("a lambda is told at saving, and loaded if its user says so", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  withr::local_dir(withr::local_tempdir())
  keras <- import_keras()
  python <- reticulate::py_eval("lambda x: 2.0 * x", convert = FALSE)
  model <- needing_model(keras$layers$Lambda(python, name = "double"), "mse")
  expect_snapshot(gpu_save(model, "lambda.keras"), transform = without_sizes)
  expect_snapshot(gpu_load("lambda.keras"), error = TRUE)
  again <- suppressMessages(gpu_load("lambda.keras", safe_mode = FALSE))
  expect_equal(gpu_predict(again, a_matrix()), gpu_predict(model, a_matrix()))
  function_of_r <- function(x) runtime()$tensorflow()$negative(x)
  model <- needing_model(keras$layers$Lambda(function_of_r, name = "minus"), "mse")
  expect_output(gpu_save(model, "r.keras"), "custom_objects = list(", fixed = TRUE)
  name <- unlist(call_core("save_archive", list(
    model = model, path = absolute_paths("r.keras"), overwrite = TRUE
  ))$needs$objects)
  again <- suppressMessages(
    gpu_load("r.keras", custom_objects = stats::setNames(list(function_of_r), name))
  )
  expect_equal(gpu_predict(again, a_matrix()), gpu_predict(model, a_matrix()))
})

test_that("a name out of a file is told, and never run", {
  skip_without_tensorflow()
  silence_tensorflow()
  withr::local_dir(withr::local_tempdir())
  loss <- function(y_true, y_pred) runtime()$tensorflow()$reduce_mean(y_pred)
  attr(loss, "py_function_name") <- "{file.create('ran')}\u001b[2J"
  gpu_save(needing_model(own_class()(), loss), "evil.keras", verbose = FALSE)
  said <- expect_message(gpu_load("evil.keras", list(Scale = own_class())), "but not compiled")
  expect_match(conditionMessage(said), "{file.create('ran')}\\x1b[2J", fixed = TRUE)
  expect_false(file.exists("ran"))
})

test_that("custom objects are a named list of classes and functions", {
  skip_outside_lane()
  expect_snapshot(error = TRUE, {
    gpu_load("a.keras", custom_objects = list(identity))
    gpu_load("a.keras", custom_objects = c(a = "b"))
    gpu_load("a.keras", custom_objects = list(a = 1))
    gpu_load("a.keras", safe_mode = NA)
  })
  wrapper <- local({
    `__class__` <- structure(list(), class = "python.builtin.type")
    function(...) NULL
  })
  found <- as_custom_objects(list(a = wrapper, b = identity))
  expect_s3_class(found$a, "python.builtin.type")
  expect_identical(attr(found$b, "py_function_name"), "b")
})

test_that("options are checked before Python is asked", {
  local_core(function(name, args) stop("not reached"))
  expect_error(gpu_save(3, "a.keras"), class = "gpukeras_error_spec")
  expect_error(gpu_export("model", "a.onnx"), class = "gpukeras_error_spec")
  expect_error(history_text(list()), class = "gpukeras_error_spec")
  expect_snapshot(history_text(list()), error = TRUE)
})

test_that("a history crosses without what R adds", {
  fit <- new_gpu_history(a_report(
    reasons = list(precision = "float32"),
    history = list(loss = list(NaN)), epoch_s = list(1), epochs = 1L
  ))
  record <- jsonlite::parse_json(history_text(fit), simplifyVector = FALSE)
  expect_null(record$where)
  expect_named(record$reasons, names(fit$reasons))
  again <- new_gpu_history(record)
  expect_identical(again$history$loss, NaN)
  expect_identical(format(again), format(fit))
})

test_that("an export is printed", {
  expect_snapshot(new_gpu_export(an_export_record()))
  expect_snapshot(new_gpu_export(an_export_record(
    title = "LiteRT", encoded = FALSE, drawn = TRUE, max_difference = 0, bytes = 3e9,
    inputs = list(
      list(name = "a", shape = list(NULL, 3L), dtype = "float32"),
      list(name = "b", shape = list(), dtype = "int32")
    ),
    notes = list("The file takes one row at a time.")
  )))
})

test_that("an exported model is run and compared", {
  skip_without_tensorflow()
  path <- file.path(withr::local_tempdir(), "model.tflite")
  data <- gpu_dataset(y ~ ., mixed_frame(), seed = 1)
  done <- gpu_export(trained(data), path, data = data)
  expect_s3_class(done, "gpu_export")
  expect_identical(done$format, "litert")
  expect_lte(done$max_difference, done$allowed)
  expect_identical(done$bytes, as.numeric(file.size(path)))
  expect_false(done$drawn)
})

test_that("an export does not replace a file, and formats that do not fit are named", {
  skip_without_tensorflow()
  path <- withr::local_tempfile(lines = "mine", fileext = ".tflite")
  model <- a_model()
  expect_error(gpu_export(model, path), "is there already", class = "gpukeras_error_data")
  expect_error(gpu_export(model, path, "onnx"), "must end with", class = "gpukeras_error_spec")
  expect_error(gpu_export(model, path, "no"), "must be one of", class = "gpukeras_error_spec")
  expect_identical(readLines(path), "mine")
})

test_that("functions that a file cannot tell apart are told of", {
  expect_no_warning(warn_shared_names(list()))
  expect_snapshot(warn_shared_names(list("anonymous_R_function", "act")))
})
