# Errors are classed `gpukeras_error_<code>`, parent `gpukeras_error`; the codes are those of
# errors.py, and `run` of gpu_run(). The condition carries `hint`, `arg` and the other details as
# fields.

# Raises an error that the core returned.
abort_core <- function(envelope, call) {
  details <- envelope$details
  fields <- details[setdiff(names(details), c("message", "class", "call", "hint"))]
  rlang::exec(
    abort_gpukeras,
    envelope$message,
    code = envelope$code,
    hint = envelope$hint,
    call = call,
    !!!fields
  )
}

# Raises a classed error; `message` is plain text: braces in a column name stay braces.
abort_gpukeras <- function(message, code, hint = "", ..., call = caller_env()) {
  bullets <- c(message, if (nzchar(hint)) c(i = hint))
  bullets[] <- gsub("([{}])", "\\1\\1", show_controls(bullets))
  cli::cli_abort(
    bullets,
    class = c(paste0("gpukeras_error_", code), "gpukeras_error"),
    hint = hint,
    ...,
    call = as_generic_call(call)
  )
}

# Reports `gpu_dataset()` as the caller; method dispatch is internal. Arguments are left out where
# one is an address, which may hold a password.
as_generic_call <- function(call) {
  call <- rlang::error_call(call)
  method <- is.call(call) && is.symbol(call[[1]]) && grepl("^gpu_dataset[.]", call[[1]])
  if (method) quote(gpu_dataset()) else if (has_address(call)) call[1] else call
}

has_address <- function(code) {
  if (missing(code)) { # as in x[, 1]
    FALSE
  } else if (is.character(code)) {
    any(is_url(code))
  } else {
    is.call(code) && any(vapply(as.list(code), function(part) has_address(part), NA))
  }
}

# A note to the user, by rlang: cli_inform() would evaluate braces in a text from a file.
inform_gpukeras <- function(..., class = NULL) {
  text <- c(...)
  text[] <- show_controls(text)
  rlang::inform(text, class = c("gpukeras_message", class))
}

# A warning of the same kind.
warn_gpukeras <- function(message, code) {
  message[] <- show_controls(message)
  rlang::warn(message, class = c(paste0("gpukeras_warning_", code), "gpukeras_warning"))
}

# The message of another condition, without terminal colours, which would be shown as code.
said_by <- function(condition) cli::ansi_strip(conditionMessage(condition))
