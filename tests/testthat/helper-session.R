# A second R session, for what another session must do, and for what an interrupt from outside ends.
# One with TensorFlow takes seconds to start, so all files share it; who needs a session that has
# done nothing yet, or that dies, starts its own by start_r().

second <- new.env()

# The session, idle and with gpukeras attached. One that a failed test left at work is ended.
second_session <- function() {
  if (is.null(second$session) || second$session$get_state() != "idle") {
    close_second_session()
    env <- c(
      callr::rcmd_safe_env(),
      RETICULATE_PYTHON = python_path(), TF_CPP_MIN_LOG_LEVEL = "3"
    )
    second$session <- callr::r_session$new(callr::r_session_options(env = env))
    second$began <- second$session$run(begin_second)
  }
  second$session
}

# What is true while the session begins, for test-api.R. Its processor is two devices, which
# test-devices-several.R trains on.
begin_second <- function() {
  started <- function() gpu_setup(seed = 1)$already_started
  library(gpukeras)
  facts <- list(python = reticulate::py_available())
  tf <- reticulate::import("tensorflow")
  halves <- replicate(2, tf$config$LogicalDeviceConfiguration())
  cpu <- tf$config$list_physical_devices("CPU")[[1]]
  tf$config$set_logical_device_configuration(cpu, halves)
  facts$devices <- gpu_devices()
  facts$memory <- gpu_memory()
  facts$listed <- started()
  data <- gpu_dataset(mpg ~ ., mtcars)
  facts$staged <- started()
  gpu_mlp(data)
  facts$built <- started()
  facts
}

close_second_session <- function() {
  if (!is.null(second$session)) second$session$kill()
  second$session <- NULL
}

# Runs a function there, and gives what it returns. Each time `when` has come, an interrupt is sent:
# `when` is a list of functions that say whether.
in_second_session <- function(f, args = list(), when = list()) {
  session <- second_session()
  session$call(f, args)
  for (condition in when) {
    stopifnot(wait_until(function() condition() || session$poll_process(0) == "ready"))
    session$interrupt()
  }
  said <- NULL
  ended <- wait_until(function() {
    session$poll_process(1000)
    said <<- session$read()
    !is.null(said) && said$code != 301 # which is a message
  })
  if (!ended) close_second_session()
  testthat::expect_true(ended)
  if (!is.null(said$error)) stop(said$error)
  said$result
}

# Runs a function there that ends the process by SIGKILL.
end_second_session <- function(f, args = list()) {
  session <- second_session()
  session$call(f, args)
  session$wait(600000)
  testthat::expect_identical(session$get_exit_status(), -9L)
  close_second_session()
}
