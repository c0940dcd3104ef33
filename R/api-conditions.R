# Conditions in functions of the user's that Python calls on R's main thread: generators between two
# steps, callbacks between two epochs.
#
# Whatever stops such a function must not cross Python as an R error, which would lose its class: it
# is kept here, Python ends cleanly, and it is raised again as it was. Warnings are kept too, and
# come after Python: who catches one by tryCatch() leaves the function for good.

# Runs code of the user's for Python: what stops it is kept, and Python told that it did.
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

# R itself keeps no more than 50.
keep_warning <- function(condition) {
  if (length(the$warnings) < 50) the$warnings <- c(the$warnings, list(condition))
  rlang::cnd_muffle(condition)
}

# Gives the warnings that were kept, as they were.
raise_warnings <- function() {
  kept <- the$warnings
  the$warnings <- list()
  for (condition in kept) warning(condition)
}

# Raises what stopped an R function that only Python and reticulate know of, such as a method of a
# keras3 callback: its fields come back as attributes of Python's exception. reticulate 1.28 keeps
# the message alone.
raise_crossed <- function(fields) {
  if (!is.null(fields)) {
    own <- setdiff(names(fields), c("r_class", "args"))
    stop(structure(fields[own], class = as.character(fields$r_class)))
  }
}

# Raises what stopped the user's code, as it was.
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
