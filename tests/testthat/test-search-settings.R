test_that("settings print", {
  expect_output(print(tune_range(1e-4, 0.1, log = TRUE)), "<gpu_setting> 1e-04 to 0.1, on a log")
  expect_output(print(tune_values("adam", c(64, 32))), "\"adam\", c(64, 32)", fixed = TRUE)
  shown <- format(tune_range(0, 0.99, when = list(optimizer = "sgd")))
  expect_identical(shown, "<gpu_setting> 0 to 0.99, when optimizer is \"sgd\"")
  expect_true(tune_range(1L, 9L)$integer)
  expect_error(tune_values(), class = "gpukeras_error_spec")
})
