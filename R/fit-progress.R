# Progress and interrupts. Python calls the listener on R's main thread at most every 0.2 s and
# after each epoch. If it returns TRUE, the training stops cleanly.

progress_listener <- function(verbose, call = caller_env()) {
  show <- if (!shows_progress(verbose, call)) {
    function(event) NULL
  } else if (cli::is_dynamic_tty()) {
    bar_printer(frame = call)
  } else {
    line_printer()
  }
  interruptible(show)
}

# Whether `verbose` asks for progress; Keras' 0, 1, 2 and "auto" are understood.
shows_progress <- function(verbose, call = caller_env()) {
  if (identical(verbose, "auto")) verbose <- TRUE
  if (!rlang::is_bool(verbose) && !(rlang::is_scalar_double(verbose) && verbose %in% 0:2) &&
    !(rlang::is_scalar_integer(verbose) && verbose %in% 0:2)) {
    abort_spec(verbose, "verbose", "TRUE or FALSE", call)
  }
  verbose > 0
}

# The listener of a call that is no training, whose steps are so many `units`. A bar of cli appears
# after two seconds, and only at a terminal.
call_listener <- function(verbose, verb, units, call = caller_env()) {
  bar <- shows_progress(verbose, call) && cli::is_dynamic_tty()
  interruptible(if (bar) call_bar(call, verb, units) else identity)
}

call_bar <- function(frame, verb, units) {
  new_bar(frame, units, verb = paste0(verb, " "), function(event) {
    status <- if (is.null(event$steps)) "" else count_of(event$steps, units)
    list(total = event$steps, done = event$step, status = status)
  })
}

# Says that the first epoch finds out how many batches there are.
tell_counting <- function(data, verbose) {
  shows <- identical(verbose, "auto") || verbose > 0
  if (shows && data$plan$steps_per_epoch == 0) {
    cli::cli_inform(c(
      i = "The first epoch counts the batches, and ends when there are no more.",
      i = "Give {.code steps_per_epoch} if they do not end."
    ), class = "gpukeras_counting")
  }
}

# A listener that shows events, and returns TRUE after an interrupt.
interruptible <- function(show) {
  force(show)
  function(event) {
    tryCatch(
      {
        allowInterrupts(Sys.sleep(0)) # handles a pending interrupt; they are suspended elsewhere
        if (!identical(event$kind, "waiting")) show(event)
        FALSE
      },
      interrupt = function(condition) TRUE
    )
  }
}

# The length of a first epoch may be unknown; then there is no share to show.
bar_printer <- function(frame) {
  new_bar(frame, "batches", function(event) {
    list(
      total = if (!is.null(event$steps)) event$epochs * event$steps,
      done = (event$epoch - 1) * (event$steps %||% 0) + event$step, status = format_event(event)
    )
  })
}

# A bar that is removed when `frame`, that of the exported function, ends. `read` returns the total
# or NULL, the number done, and a text for an event; `verb` stands before the bar.
new_bar <- function(frame, units, read, verb = "") {
  started <- FALSE
  function(event) {
    state <- read(event)
    if (!started) {
      cli::cli_progress_bar(
        total = state$total %||% NA, clear = TRUE, .envir = frame,
        format = paste0(verb, if (is.null(state$total)) {
          sprintf("{cli::pb_spin} {cli::pb_current} %s {cli::pb_status}", units)
        } else {
          "{cli::pb_bar} {cli::pb_percent} {cli::pb_status} {cli::pb_eta_str}"
        })
      )
      started <<- TRUE
    }
    cli::cli_progress_update(set = state$done, status = state$status, .envir = frame)
  }
}

# A line for every epoch of a short training, about 20 for a long one.
line_printer <- function(most = 20) {
  function(event) {
    every <- max(1, event$epochs %/% most)
    last <- event$epoch == event$epochs
    if (event$kind == "epoch" && (event$epoch %% every == 0 || last)) {
      cat_lines(format_event(event))
    }
  }
}

# A bar of cli does not evaluate text in braces, but passes on terminal control codes.
format_event <- function(event, most = 8) {
  metrics <- utils::head(event$metrics, most)
  shown <- paste0(names(metrics), ": ", format_number(metrics))
  if (length(event$metrics) > most) shown <- c(shown, "...")
  show_controls(paste(c(sprintf("epoch %d/%d", event$epoch, event$epochs), shown), collapse = "  "))
}
