# Progress and interrupts. Python calls the listener on R's main thread at most every 0.2 s and
# after each epoch. If it returns TRUE, the training stops cleanly.

progress_listener <- function(verbose, call = caller_env()) {
  show <- if (!shows_progress(verbose, call)) {
    function(event) NULL
  } else if (can_draw()) {
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

# Whether a line can be drawn anew: at a terminal, and not in a document, which would keep each.
can_draw <- function() {
  cli::is_dynamic_tty() && !isTRUE(getOption("knitr.in.progress"))
}

# The listener of a call that is no training, whose steps are so many `units`. A bar of cli appears
# after two seconds, and only where it can be drawn. Passes over rows that come before the call's
# own steps name their verb and units themselves.
call_listener <- function(verbose, verb = "", units = "rows", call = caller_env()) {
  bar <- shows_progress(verbose, call) && can_draw()
  interruptible(if (bar) call_bar(call, verb, units) else identity)
}

call_bar <- function(frame, verb, units) {
  new_bar(frame, function(event) {
    units <- event$units %||% units
    list(
      verb = event$verb %||% verb, total = event$steps, done = event$step,
      status = format_steps(event$steps %||% event$step, units)
    )
  })
}

format_steps <- function(steps, units) {
  if (units == "bytes") format_bytes(steps) else count_of(steps, units)
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

# It counts epochs and parts of them: the batches of a first epoch may be unknown.
bar_printer <- function(frame) {
  new_bar(frame, function(event) {
    counted <- if (is.null(event$steps)) count_of(event$step, "batches")
    list(
      verb = "", total = event$epochs, done = event$epoch - 1 + done_share(event),
      status = paste(c(counted, format_event(event)), collapse = " ")
    )
  })
}

done_share <- function(event) {
  if (event$kind == "epoch") {
    return(1)
  }
  if (is.null(event$steps)) 0 else event$step / event$steps
}

# A bar that is removed when `frame`, that of the exported function, ends. Each pass over the rows
# has a bar, as what is left is reckoned for each by itself. `read` returns of an event the verb,
# the total or NULL, the number done, and a text.
new_bar <- function(frame, read) {
  bar <- before <- NULL
  function(event) {
    state <- read(event)
    if (is.null(bar) || state$verb != before$verb || state$done < before$done) {
      if (!is.null(bar)) cli::cli_progress_done(bar, .envir = frame)
      bar <<- start_bar(frame, state)
    }
    before <<- state
    cli::cli_progress_update(set = state$done, status = state$status, id = bar, .envir = frame)
  }
}

start_bar <- function(frame, state) {
  shown <- if (is.null(state$total)) {
    "{cli::pb_spin} {cli::pb_status}"
  } else {
    # The time left comes first: a narrow terminal cuts off what stands last, such as metrics.
    "{cli::pb_bar} {cli::pb_percent} {cli::pb_eta_str} {cli::pb_status}"
  }
  cli::cli_progress_bar(
    total = state$total %||% NA, clear = TRUE, auto_terminate = FALSE, .envir = frame,
    format = trimws(paste(state$verb, shown))
  )
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
