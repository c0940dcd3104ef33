# Answers every call to the Python core with `fake(name, args)` for the rest of the test.
local_core <- function(fake, frame = parent.frame()) {
  before <- mget(c("core", "missing"), the)
  the$core <- list(invoke = fake)
  the$missing <- list() # it needs no packages of Python
  withr::defer(list2env(before, the), envir = frame)
}

# What the core answers when a call succeeds.
answer <- function(value) {
  list(ok = TRUE, value = value)
}

# A core that always gives `value`.
local_answer <- function(value, frame = parent.frame()) {
  local_core(function(name, args) answer(value), frame)
}

# Skips where the real core cannot run. `slow` is that of skip_outside_lane().
skip_without_tensorflow <- function(slow = FALSE) {
  skip_outside_lane(slow)
  testthat::skip_if_not(has_tensorflow(), "TensorFlow is not installed")
}

# Skips where Python is missing or lacks requirements, so that the core cannot be loaded.
skip_without_core <- function() {
  skip_outside_lane()
  testthat::skip_if_not(has_core(), "Python does not meet the requirements of gpukeras")
}

# The lanes of `make`, as pytest's markers have them. GPUKERAS_TESTS is "fast" (no TensorFlow, no
# further process), "slow", "all" or "nightly"; without it, as in devtools::test(), `make test`'s
# tests run. A slow test takes seconds, and goes deeper than another test of the same promise.
skip_outside_lane <- function(slow = FALSE) {
  lane <- Sys.getenv("GPUKERAS_TESTS")
  testthat::skip_if(is_fast(), "Left out by make test-fast")
  testthat::skip_if(lane == "" && slow, "Left to make test-all")
  testthat::skip_if(lane == "slow" && !slow, "Run by make test")
}

is_fast <- function() identical(Sys.getenv("GPUKERAS_TESTS"), "fast")

is_nightly <- function() identical(Sys.getenv("GPUKERAS_TESTS"), "nightly")

skip_unless_nightly <- function() {
  testthat::skip_if_not(is_nightly(), "Left to make test-nightly")
}

skip_without_parsnip <- function(slow = FALSE) {
  skip_if_not_installed("parsnip")
  skip_without_tensorflow(slow)
  silence_tensorflow()
}

# Of a vector of cases the first `count`, in `make test-nightly` all.
few <- function(cases, count) if (is_nightly()) cases else utils::head(cases, count)

# The engines that make the same updates: what R adds to a training is seen on one.
few_engines <- function() few(c("graph_loop", "keras", "compiled"), 1)

# Text of another R session with the bullets that cli has where a locale has no others.
plain_bullets <- function(text) gsub("\u2139", "i", text, fixed = TRUE)
