# The end of a child of gpu_run(): a result, an error, a signal, or an exit status.

read_outcome <- function(child, folder, output, call = caller_env()) {
  file <- file.path(folder, "outcome.rds")
  if (!file.exists(file)) {
    abort_ended(child, output, call)
  }
  outcome <- readRDS(file)
  if (!is.null(outcome$error)) {
    abort_remote(outcome$error, call)
  }
  unpack(outcome$value, folder, keep_saved)
}

# Raises an error with the classes and fields of the child's, which is its parent.
abort_remote <- function(error, call) {
  own <- c("rlang_error", "simpleError", "error", "condition", "gpukeras_error")
  internal <- c(
    "message", "call", "trace", "parent", "rlang", "body", "header", "footer", "use_cli_format"
  )
  fields <- unclass(error)[setdiff(names(error), c("", internal))]
  fields$reason <- "error"
  rlang::exec(
    rlang::abort,
    "The function failed in its R process.",
    class = c(setdiff(class(error), c(own, "gpukeras_error_run")), "gpukeras_error_run", own[5]),
    !!!fields,
    parent = error,
    call = call
  )
}

abort_ended <- function(child, output, call) {
  status <- child$get_exit_status()
  remote <- tryCatch(child$get_result(), error = function(condition) condition)$parent
  abort <- function(message, hint, ...) {
    abort_gpukeras(message, code = "run", hint = hint, ..., output = output, call = call)
  }
  if (inherits(remote, "condition")) {
    said <- sprintf("The R process could not start: %s", said_by(remote))
    abort(said, "It needs gpukeras and the packages attached here.", reason = "start")
  }
  if (isTRUE(status < 0)) {
    signal <- -status
    said <- sprintf("The R process was killed by signal %s.", format_signal(signal))
    abort(said, hint_of_signal(signal), reason = "signal", signal = signal)
  }
  said <- sprintf("The R process ended with status %s before it gave a result.", format(status))
  abort(said, "The function must not call quit().", reason = "status", status = status)
}

format_signal <- function(signal) {
  names <- c(
    "1" = "SIGHUP", "2" = "SIGINT", "3" = "SIGQUIT", "4" = "SIGILL", "6" = "SIGABRT",
    "7" = "SIGBUS", "8" = "SIGFPE", "9" = "SIGKILL", "11" = "SIGSEGV", "13" = "SIGPIPE",
    "15" = "SIGTERM", "24" = "SIGXCPU", "25" = "SIGXFSZ"
  )
  name <- names[as.character(signal)]
  if (is.na(name)) format(signal) else sprintf("%s (%s)", format(signal), name)
}

hint_of_signal <- function(signal) {
  crash <- "Native code crashed, such as TensorFlow's or a driver's"
  says <- "; what it wrote last is in the condition's `output`."
  switch(as.character(signal),
    "9" = "Often that is the system's out-of-memory killer: give the function less at once.",
    "15" = "Somebody ended it, such as a job scheduler at its time or memory limit.",
    "6" = paste0("Native code gave up, as TensorFlow does when one of its checks fails", says),
    "4" = paste0("The processor lacks instructions that native code was built for", says),
    paste0(crash, says)
  )
}
