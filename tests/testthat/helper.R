# Answers every call to the Python core with `fake(name, args)` for the rest of the test.
local_core <- function(fake, frame = parent.frame()) {
  before <- the$core
  the$core <- list(invoke = fake)
  withr::defer(the$core <- before, envir = frame)
}

# What the core answers when a call succeeds.
answer <- function(value) {
  list(ok = TRUE, value = value)
}

# A core that always gives `value`.
local_answer <- function(value, frame = parent.frame()) {
  local_core(function(name, args) answer(value), frame)
}

# Skips where the real core cannot run.
skip_without_tensorflow <- function() {
  skip_where_fast()
  testthat::skip_if_not(has_tensorflow(), "TensorFlow is not installed")
}

# `make test-fast` runs what needs no TensorFlow and no further process.
skip_where_fast <- function() {
  testthat::skip_if(identical(Sys.getenv("GPUKERAS_TESTS"), "fast"), "Left out by make test-fast")
}

# `make test-nightly` runs what takes long, and differs little from what `make test` runs.
is_nightly <- function() identical(Sys.getenv("GPUKERAS_TESTS"), "nightly")

skip_unless_nightly <- function() {
  testthat::skip_if_not(is_nightly(), "Left to make test-nightly")
}

skip_without_parsnip <- function() {
  skip_if_not_installed("parsnip")
  skip_without_tensorflow()
  silence_tensorflow()
}

# Of a vector of cases the first `count`, in `make test-nightly` all.
few <- function(cases, count) if (is_nightly()) cases else utils::head(cases, count)

# The engines that make the same updates: what R adds to a training is seen on one.
few_engines <- function() few(c("graph_loop", "keras", "compiled"), 1)
