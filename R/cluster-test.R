# gpu_cluster_test(): a worker that fails on purpose.

#' Make a worker fail on purpose, and see whether it is noticed
#'
#' Starts a small training of two workers on this computer's processors, makes the second one fail,
#' and reports what the first one told and how long that took. A training of days relies on it.
#'
#' @param kind The fault: `"kill"` ends the process, as the system does where memory runs out;
#'   `"stop"` stops it, as a computer that hangs: the connection stays, and the others notice the
#'   silence after `timeout` seconds; `"slow"` lets it wait after each epoch, which the report of
#'   the training tells.
#' @param timeout Seconds without a heartbeat after which a worker counts as lost, as in
#'   [gpu_cluster()].
#' @return A `gpu_cluster_test`, which `print()` shows: `$kind`, `$found` (whether the first worker
#'   named the second), `$sentence`, `$said` (its error or note), `$seconds` (from the fault to the
#'   end of the first worker; of `"slow"` the whole training), `$timeout_s`.
#' @section Errors:
#' `gpukeras_error_cluster` if the two workers do not train at all,
#' `gpukeras_error_runtime_missing` on Windows, `gpukeras_error_spec` for a wrong option.
#' @seealso [gpu_cluster()], whose `$timeouts` are learned.
#' @examplesIf gpukeras:::can_run_examples(processes = TRUE)
#' # Two processes start, which takes some ten seconds.
#' gpu_cluster_test("kill")
#' @export
gpu_cluster_test <- function(kind = c("kill", "stop", "slow"), timeout = 5) {
  if (missing(kind)) kind <- "kill"
  check_no_na_options(list(kind = kind, timeout = timeout))
  options <- list(kind = kind, timeout_s = timeout)
  record <- suspendInterrupts(call_core("cluster_test", list(options = options)))
  new_result(record, "gpu_cluster_test")
}

#' @export
format.gpu_cluster_test <- function(x, ...) {
  c(
    sprintf("<gpu_cluster_test> %s", if (x$found) "found" else "NOT FOUND"),
    x$sentence,
    if (nzchar(x$said)) wrap_lines(x$said, "it said:  ")
  )
}
