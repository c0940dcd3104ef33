# Progress and interrupts. Python calls the listener on R's main thread at most every 0.2 s and
# after each epoch; a TRUE from it stops the training cleanly.

progress_listener <- function(verbose, call = caller_env()) {
  if (!rlang::is_bool(verbose) && !(rlang::is_scalar_double(verbose) && verbose %in% 0:2) &&
    !(rlang::is_scalar_integer(verbose) && verbose %in% 0:2)) {
    abort_spec(verbose, "verbose", "TRUE or FALSE", call)
  }
  show <- if (!verbose) {
    function(event) NULL
  } else if (cli::is_dynamic_tty()) {
    bar_printer(frame = call)
  } else {
    line_printer()
  }
  function(event) {
    tryCatch(
      {
        allowInterrupts(Sys.sleep(0)) # where R looks for a pending one; gpu_fit() suspends them
        if (event$kind != "waiting") show(event)
        FALSE
      },
      interrupt = function(condition) TRUE
    )
  }
}

# A bar that goes when `frame`, the exported function's, is left, in whatever way.
bar_printer <- function(frame) {
  started <- FALSE
  function(event) {
    if (!started) {
      start_bar(event, frame)
      started <<- TRUE
    }
    done <- (event$epoch - 1) * (event$steps %||% 0) + event$step
    cli::cli_progress_update(set = done, status = format_event(event), .envir = frame)
  }
}

# In a first epoch of unknown length there is nothing that a share could be taken of.
start_bar <- function(event, frame) {
  known <- !is.null(event$steps)
  cli::cli_progress_bar(
    total = if (known) event$epochs * event$steps else NA, clear = TRUE, .envir = frame,
    format = if (known) {
      "{cli::pb_bar} {cli::pb_percent} {cli::pb_status} {cli::pb_eta_str}"
    } else {
      "{cli::pb_spin} {cli::pb_current} batches {cli::pb_status}"
    }
  )
}

# Plain lines: every epoch of a short training, about 20 of a long one.
line_printer <- function(most = 20) {
  function(event) {
    every <- max(1, event$epochs %/% most)
    last <- event$epoch == event$epochs
    if (event$kind == "epoch" && (event$epoch %% every == 0 || last)) {
      cat_lines(format_event(event))
    }
  }
}

# A bar of cli does not run what has braces, but passes a terminal's codes on.
format_event <- function(event, most = 8) {
  metrics <- utils::head(event$metrics, most)
  shown <- paste0(names(metrics), ": ", format_numbers(metrics))
  if (length(event$metrics) > most) shown <- c(shown, "...")
  show_controls(paste(c(sprintf("epoch %d/%d", event$epoch, event$epochs), shown), collapse = "  "))
}

# Four significant digits, each number by itself.
format_numbers <- function(x) {
  vapply(x, function(one) format(signif(one, 4), digits = 4), "", USE.NAMES = FALSE)
}
