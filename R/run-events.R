# Output and conditions of a child of gpu_run(), passed on in their order.

# Passes on output and conditions until the child has ended. Returns the end of its output.
await_child <- function(child, folder, timeout, verbose, call = caller_env()) {
  listener <- new_listener(child, folder, verbose)
  deadline <- Sys.time() + timeout
  while (child$is_alive() && !is_idle(folder)) {
    listener$wait()
    if (Sys.time() > deadline) {
      abort_gpukeras(
        sprintf("The function had not finished after %s seconds.", format(timeout)),
        code = "run", hint = "It was ended, with everything that it had started.",
        reason = "timeout", output = listener$tail(), call = call
      )
    }
  }
  listener$drain()
  listener$tail()
}

# Whether a child still runs some seconds after it has written its result.
is_idle <- function(folder, grace = 10) {
  written <- file.mtime(file.path(folder, "outcome.rds"))
  !is.na(written) && Sys.time() - written > grace
}

new_listener <- function(child, folder, verbose) {
  tail <- ""
  errors <- new_error_reader(folder, verbose)
  read <- function() {
    out <- child$read_output()
    err <- child$read_error()
    tail <<- keep_end(paste0(tail, out, gsub(event_pattern, "", err)))
    if (verbose && nzchar(out)) cat(out)
    errors(err)
    nzchar(out) || nzchar(err)
  }
  wait <- function() {
    state <- child$poll_io(200)
    if (all(state %in% c("closed", "nopipe"))) Sys.sleep(0.02)
    read()
  }
  drain <- function() while (read()) NULL
  list(wait = wait, drain = drain, tail = function() trimws(tail))
}

keep_end <- function(text, most = 4000) substr(text, nchar(text) - most + 1, nchar(text))

# The marker of a condition in the child's standard error, with its number.
event_pattern <- "\001gpukeras:[0-9]+\002"

# Prints the child's standard error, and signals its conditions at their markers.
new_error_reader <- function(folder, verbose) {
  held <- ""
  show <- function(text) if (verbose && nzchar(text)) cat(text, file = stderr())
  function(text) {
    held <<- paste0(held, text)
    while ((start <- regexpr(event_pattern, held)) > 0) {
      mark <- regmatches(held, start)
      before <- substr(held, 1, start - 1)
      # Before the signal, which may leave this function.
      held <<- substring(held, start + nchar(mark))
      show(before)
      signal_event(gsub("[^0-9]", "", mark), folder, verbose)
    }
    half <- regexpr("\001", held, fixed = TRUE) # an incomplete marker
    end <- if (half > 0) half - 1 else nchar(held)
    ready <- substr(held, 1, end)
    held <<- substring(held, end + 1)
    show(ready)
  }
}

signal_event <- function(number, folder, verbose) {
  file <- file.path(folder, sprintf("event-%s.rds", number))
  condition <- readRDS(file)
  unlink(file)
  if (inherits(condition, "warning")) {
    warning(condition)
  } else if (verbose) {
    message(condition)
  }
}
