# Which tests run in which lane of `make`.

test_that("each lane runs its own tests", {
  lanes <- c("", "fast", "slow", "all", "nightly")
  runs <- function(lane, slow) {
    withr::local_envvar(GPUKERAS_TESTS = lane)
    is.null(tryCatch(skip_outside_lane(slow), skip = identity))
  }
  expect_identical(lanes[vapply(lanes, runs, NA, slow = FALSE)], c("", "all", "nightly"))
  expect_identical(lanes[vapply(lanes, runs, NA, slow = TRUE)], c("slow", "all", "nightly"))
})
