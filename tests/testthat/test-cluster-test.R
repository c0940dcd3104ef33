# Faults on purpose; real ones are tests of the core.

test_that("a test of a cluster says what was found", {
  local_answer(list(
    kind = "kill", found = TRUE, sentence = "Worker 2 was killed, and worker 1 named it after 0.2 s.",
    said = "ClusterError: Lost worker 2 (127.0.0.1:2222).", seconds = 0.2, timeout_s = 5
  ))
  expect_snapshot(gpu_cluster_test())
  local_answer(list(
    kind = "slow", found = FALSE, said = "", seconds = 9, timeout_s = 5,
    sentence = "Worker 2 was slow, and worker 1 did not name it."
  ))
  expect_snapshot(gpu_cluster_test("slow"))
  expect_error(gpu_cluster_test(timeout = NA), class = "gpukeras_error_spec")
})
