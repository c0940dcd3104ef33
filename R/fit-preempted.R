# What a queue's signal does to an R session whose training is saved: see `core/preemption.py`.

# Ends a session that is not interactive, with the exit status by which a job script knows that it
# is to run again. What was opened within `code` is closed before. In an interactive session the
# error stays an error.
ending_preempted <- function(code) {
  tryCatch(code, gpukeras_error_preempted = function(condition) {
    if (interactive()) rlang::cnd_signal(condition)
    ends <- sprintf("R ends with the exit status %d.", condition$status)
    inform_gpukeras(c(rlang::cnd_header(condition), i = condition$hint, i = ends))
    quit(save = "no", status = condition$status)
  })
}
