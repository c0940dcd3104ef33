# What a child of gpu_run() says: output and errors as they come, conditions where they belong.

# Passes on what the child says until it has ended; gives the end of what it wrote.
attend <- function(child, folder, timeout, verbose, call = caller_env()) {
  hear <- new_listener(child, folder, verbose)
  deadline <- Sys.time() + timeout
  while (child$is_alive() && !is_idle(folder)) {
    hear$wait()
    if (Sys.time() > deadline) {
      abort_gpukeras(
        sprintf("The function had not finished after %s seconds.", format(timeout)),
        code = "run", hint = "It was ended, with everything that it had started.",
        reason = "timeout", output = hear$tail(), call = call
      )
    }
  }
  hear$drain()
  hear$tail()
}

# A child that has given its result has some seconds to end by itself.
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

# Where the child signals a condition, it writes its number between its other lines.
event_pattern <- "\001gpukeras:[0-9]+\002"

# Prints what comes by standard error, and signals the child's conditions where they belong.
new_error_reader <- function(folder, verbose) {
  held <- ""
  show <- function(text) if (verbose && nzchar(text)) cat(text, file = stderr())
  function(text) {
    held <<- paste0(held, text)
    while ((start <- regexpr(event_pattern, held)) > 0) {
      mark <- regmatches(held, start)
      before <- substr(held, 1, start - 1)
      held <<- substring(held, start + nchar(mark)) # first: the signal may leave this function
      show(before)
      signal_event(gsub("[^0-9]", "", mark), folder, verbose)
    }
    half <- regexpr("\001", held, fixed = TRUE) # a mark that has not come whole
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
