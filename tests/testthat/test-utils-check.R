test_that("checks let through what is right", {
  expect_null(check_flag(TRUE))
  expect_null(check_string("a"))
})

test_that("checks name the argument, what is expected and what was found", {
  deterministic <- NA
  error <- expect_error(check_flag(deterministic), class = "gpukeras_error_spec")
  expect_identical(error$arg, "deterministic")
  expect_match(conditionMessage(error), "`deterministic` must be TRUE or FALSE, not NA.")
})

test_that("what is wrong is refused", {
  for (x in list(NULL, NA, 1, "yes", c(TRUE, FALSE))) {
    expect_error(check_flag(x), class = "gpukeras_error_spec")
  }
  for (x in list(NULL, NA_character_, 1, c("a", "b"), character())) {
    expect_error(check_string(x), class = "gpukeras_error_spec")
  }
})

test_that("options of one name, of which Python would keep the last, are refused", {
  expect_identical(check_options(list(a = 1, b = 2), "groups", "a list"), list(a = 1, b = 2))
  expect_snapshot(error = TRUE, check_options(list(a = 1, a = 2), "groups", "a list"))
})

test_that("descriptions never show a user's data", {
  expect_identical(describe(NULL), "NULL")
  expect_identical(describe(NA), "NA")
  expect_identical(describe(1.5), "1.5")
  expect_identical(describe(strrep("x", 100)), sprintf("\"%s\"", strrep("x", 40)))
  expect_identical(describe(c("secret", "secret")), "a character of length 2")
  expect_identical(describe(factor("secret")), "a factor of length 1")
  expect_identical(describe(as.Date("2024-01-02")), "a Date of length 1")
  expect_identical(describe(matrix(1, 2, 3)), "a matrix 2 x 3")
  expect_identical(describe(matrix(1i, 2, 3)), "a complex matrix 2 x 3")
  expect_identical(describe(data.frame(secret = 1:2)), "a data.frame 2 x 1")
})

test_that("exported functions refuse before they call the core", {
  skip_outside_lane()
  local_core(function(name, args) stop("the core was called"))
  expect_snapshot(error = TRUE, {
    gpu_setup(deterministic = NA)
    gpu_setup(jit = "yes")
    with_device(c("cpu", "gpu"), 1)
    gpu_report(file = 1)
  })
})

test_that("arguments that are left out are named, with the call", {
  skip_outside_lane()
  local_core(function(name, args) stop("the core was called"))
  for (name in c("fit", "predict", "evaluate", "cost", "profile", "importance", "effects")) {
    call <- call(paste0("gpu_", name))
    error <- expect_error(eval(call), "`model` is missing", class = "gpukeras_error_spec")
    expect_identical(conditionCall(error), call)
    expect_identical(error$arg, "model")
  }
  expect_snapshot(error = TRUE, {
    gpu_batch_size()
    gpu_learning_rate()
    gpu_tune()
    gpu_fit_many()
    gpu_fit_many(mtcars)
    gpu_load()
    gpu_marshal()
  })
})
