test_that("a value comes back as it is, and the call carries the arguments", {
  seen <- NULL
  local_core(function(name, args) {
    seen <<- list(name, args)
    answer(list(a = 1))
  })
  expect_identical(call_core("some entry", list(x = 2)), list(a = 1))
  expect_identical(seen, list("some entry", list(x = 2)))
  expect_identical(call_core("another"), list(a = 1))
  expect_identical(seen[[2]], list())
})

test_that("an envelope that is not ok is an error of the exported function", {
  local_core(function(name, args) {
    list(
      ok = FALSE, code = "data", message = "Bad.", hint = "Mend it.",
      details = list(arg = "x", column = "a")
    )
  })
  exported <- function() call_core("some entry")
  error <- expect_error(exported(), class = "gpukeras_error_data")
  expect_identical(rlang::call_name(error$call), "exported")
  expect_identical(error$arg, "x")
  expect_identical(error$column, "a")
})

test_that("an answer without `ok` is never taken for a value", {
  local_core(function(name, args) list(value = 1, code = "data", message = "", hint = ""))
  expect_error(call_core("some entry"))
})

test_that("the core is imported once and kept", {
  skip_without_tensorflow()
  expect_identical(core(), core())
  expect_identical(the$core, core())
})

test_that("values of each kind come up as R values", {
  skip_without_tensorflow()
  record <- call_core("dataset", list(
    features = list(kind = "array", values = a_matrix(4)), options = list(batch_size = 2)
  ))
  expect_identical(record$plan$rows, 4L)
  expect_identical(record$plan$mode, "resident")
  expect_false(record$weighted)
  expect_null(record$label)
})

test_that("a room has what was asked for; a lone column is a vector", {
  room <- new_room()
  expect_identical(room$make(2L, 3L), matrix(0, 2, 3))
  expect_identical(room$take(), matrix(0, 2, 3))
  named <- new_room()
  named$make(1L, 2L, list("a", "b"))
  expect_identical(named$take(), matrix(0, 1, 2, dimnames = list(NULL, c("a", "b"))))
  other <- new_room()
  other$make(2L, 1L)
  expect_identical(other$take(), c(0, 0))
})

test_that("what the core did not expect passes through as an error", {
  skip_without_tensorflow()
  error <- expect_error(call_core("no such entry point"), "no such entry point")
  expect_false(inherits(error, "gpukeras_error"))
  error <- expect_error(call_core("devices", list(no_such_argument = 1)), "no_such_argument")
  expect_false(inherits(error, "gpukeras_error"))
})

test_that("handles that did not survive are told from living ones", {
  skip_without_tensorflow()
  living <- gpu_dataset(a_matrix(2))$handle
  expect_false(is_dead(living))
  expect_true(is_dead(unserialize(serialize(living, NULL))))
  expect_true(is_dead(NULL))
})

test_that("which Python was chosen is known", {
  skip_without_tensorflow()
  facts <- read_python()
  expect_true(file.exists(facts$python))
  expect_match(facts$version, "^3\\.")
  expect_match(facts$numpy, "^[0-9]+\\.")
  expect_identical(facts$reticulate, as.character(utils::packageVersion("reticulate")))
})

test_that("loading starts no Python, listing devices does not start TensorFlow's", {
  skip_without_tensorflow()
  child <- start_r(c(
    "library(gpukeras)",
    "stopifnot(!reticulate::py_available())",
    "devices <- gpu_devices()",
    "memory <- gpu_memory()",
    "stopifnot(nrow(devices) > 0, 'CPU:0' %in% memory$device)",
    "stopifnot(!gpu_setup(seed = 1)$already_started)",
    "data <- gpu_dataset(mpg ~ ., mtcars)",
    "stopifnot(!gpu_setup(seed = 1)$already_started)",
    "model <- gpu_mlp(data)",
    "stopifnot(gpu_setup(seed = 1)$already_started)",
    "cat('done\\n')"
  ))
  expect_identical(child$status, 0L, info = toString(readLines(child$err)))
  expect_identical(readLines(child$out), "done")
})

test_that("what fails when Python starts does not keep it from starting", {
  local_core(function(name, args) stop("no NumPy"))
  expect_silent(prepare_python())
})

test_that("once Python starts, the core prepares for TensorFlow before anyone imports it", {
  skip_without_tensorflow()
  run <- start_r(c(
    "library(gpukeras)",
    "invisible(reticulate::py_config())",
    "invisible(reticulate::import('tensorflow'))",
    "preload <- reticulate::import('gpukeras.preload')",
    "cat(preload$done$status)"
  ))
  expect_identical(run$status, 0L)
  expect_true(readLines(run$out, warn = FALSE) %in% c("done", "not needed", "failed"))
})

test_that("library(gpukeras) starts no Python, and loads no reticulate", {
  run <- start_r(c("library(gpukeras)", "cat(isNamespaceLoaded('reticulate'))"))
  expect_identical(readLines(run$out, warn = FALSE), "FALSE")
})

test_that("a Python that ran before gpukeras was loaded is known", {
  skip_without_tensorflow()
  run <- start_r(c(
    "invisible(reticulate::py_config())", "library(gpukeras)",
    "cat(gpukeras:::the$python_before)"
  ))
  expect_identical(readLines(run$out, warn = FALSE), "TRUE")
})
