refuse <- function(...) {
  envelope <- list(ok = FALSE, code = "data", message = "Bad.", hint = "", details = list())
  local_core(function(name, args) utils::modifyList(envelope, list(...)), parent.frame())
}

test_that("an error of the core is classed and carries its details", {
  refuse(code = "no_device", hint = "Look.", details = list(wanted = "gpu", found = list("CPU:0")))
  error <- expect_error(gpu_devices(), class = "gpukeras_error_no_device")
  expect_s3_class(error, "gpukeras_error")
  expect_identical(error$hint, "Look.")
  expect_identical(error$wanted, "gpu")
  expect_identical(error$found, list("CPU:0"))
})

test_that("an error names the function that was called", {
  refuse()
  error <- expect_error(gpu_memory(), class = "gpukeras_error_data")
  expect_identical(rlang::call_name(error$call), "gpu_memory")
})

test_that("braces in names stay braces, and details do not hide the message", {
  refuse(message = "Column `{x}` is \"}\".", details = list(message = "other", class = "other"))
  error <- expect_error(gpu_devices(), class = "gpukeras_error_data")
  expect_match(conditionMessage(error), "Column `{x}` is \"}\".", fixed = TRUE)
})

test_that("errors read well", {
  refuse(
    code = "no_device", message = "There is no device \"gpu\"; TensorFlow finds CPU:0.",
    hint = "gpu_check() says why."
  )
  expect_snapshot(gpu_setup(device = "gpu"), error = TRUE)
})

test_that("another condition is quoted without its colours", {
  withr::local_options(cli.num_colors = 256L)
  condition <- rlang::catch_cnd(abort_gpukeras("Bad.", "data", hint = "Look."))
  expect_match(conditionMessage(condition), "\u001b[", fixed = TRUE)
  expect_no_match(said_by(condition), "\u001b[", fixed = TRUE)
})

test_that("a call with an address is shown without its arguments", {
  shown <- function(call) as_generic_call(call)
  expect_equal(shown(quote(gpu_predict(m, "s3://k:s@b/x.csv"))), quote(gpu_predict()))
  expect_equal(shown(quote(f(m, x = c("a", "s3://k:s@b/x.csv")[1, ]))), quote(f()))
  expect_equal(shown(quote(gpu_fit(model, x[, 1], "a"))), quote(gpu_fit(model, x[, 1], "a")))
  expect_equal(shown(quote(gpu_dataset.character(x))), quote(gpu_dataset()))
  expect_null(shown(NULL))
})
