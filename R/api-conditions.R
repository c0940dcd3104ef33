# Conditions in R functions that Python calls on R's main thread: generators between two steps,
# callbacks between two epochs.
#
# An R error that passes through Python would lose its class. So it is stored here, Python ends
# cleanly, and the same condition is raised again. Warnings are stored too and signalled after
# Python has returned, because a tryCatch() of the caller would otherwise unwind the stack through
# Python.

# Runs a user's code for Python: stores an error or interrupt, and returns to Python that one
# occurred.
keep_condition <- function(code) {
  the$condition <- NULL
  tryCatch(
    withCallingHandlers(
      allowInterrupts(code),
      error = function(condition) the$condition <- rlang::cnd_entrace(condition),
      warning = keep_warning
    ),
    error = function(condition) {
      the$condition <- the$condition %||% condition
      list(failed = TRUE)
    },
    interrupt = function(condition) {
      the$condition <- condition
      list(interrupted = TRUE)
    }
  )
}

# At most 50, as R itself does.
keep_warning <- function(condition) {
  if (length(the$warnings) < 50) the$warnings <- c(the$warnings, list(condition))
  rlang::cnd_muffle(condition)
}

# Signals the stored warnings.
raise_warnings <- function() {
  kept <- the$warnings
  the$warnings <- list()
  for (condition in kept) warning(condition)
}

# Raises the error of an R function that reticulate called, such as a method of a keras3 callback.
# Its fields are attributes of Python's exception; reticulate 1.28 keeps the message only.
raise_crossed <- function(fields) {
  if (!is.null(fields)) {
    own <- setdiff(names(fields), c("r_class", "args"))
    stop(structure(fields[own], class = as.character(fields$r_class)))
  }
}

# Raises the stored error or interrupt again.
raise_kept <- function() {
  condition <- the$condition
  the$condition <- NULL
  if (inherits(condition, "interrupt")) {
    rlang::interrupt()
  }
  if (!is.null(condition)) {
    stop(condition)
  }
}
