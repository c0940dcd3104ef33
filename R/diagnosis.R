# Mirrors diagnosis.py: is the GPU used, and if not, why not.

#' Is the GPU used, and why not?
#'
#' Reads what the operating system, the driver, Python and TensorFlow say, and,
#' where TensorFlow lists a GPU, computes on it in a process of its own and
#' checks the result. The answer is one verdict, at most one root cause with its
#' evidence, and a fix to copy. TensorFlow's devices are not started in this
#' session.
#'
#' What cannot be read is "not determined", never "no".
#'
#' @return A `gpu_check` object, a list with
#'   * `verdict`: `"CONFIRMED"` (training was seen on the GPU), `"PARTIAL"`,
#'     `"UNPROVEN"` (the GPU computes, but no training step was traced, or it is
#'     not determined) or `"NOT USED"`;
#'   * `cause` and `cause_id`: the root cause, `NA` if none is proven;
#'   * `fix`: what to do about it, or `""`;
#'   * `evidence`: sentences;
#'   * `findings`: a data frame of all that was looked at (`id`, `status`:
#'     `"ok"`, `"note"` or `"problem"`, `title`, `evidence`, `fix`), which
#'     `as.data.frame()` gives too;
#'   * `facts`: a nested list.
#' @seealso [gpu_report()] for a text to paste into a bug report.
#' @export
#' @examplesIf interactive()
#' gpu_check()
gpu_check <- function() {
  new_gpu_check(call_core("check", list(session = read_session())))
}

# Which Python R chose, and R's view of the variables that decide about GPUs.
read_session <- function() {
  variables <- c(
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "KERAS_BACKEND",
    "TF_FORCE_GPU_ALLOW_GROWTH", "XLA_FLAGS"
  )
  environment <- Sys.getenv(variables, unset = NA, names = TRUE)
  facts <- list(
    r = as.character(getRversion()),
    tensorflow_r_loaded = isNamespaceLoaded("tensorflow"),
    environment = as.list(environment[!is.na(environment)])
  )
  c(read_python(), facts)
}

new_gpu_check <- function(record) {
  findings <- records_frame(record$findings, c("id", "status", "title", "evidence", "fix"))
  structure(
    list(
      verdict = record$verdict,
      cause = record$cause %||% NA_character_,
      cause_id = record$cause_id %||% NA_character_,
      fix = record$fix,
      evidence = as.character(unlist(record$evidence)),
      findings = findings,
      facts = record$facts
    ),
    class = "gpu_check"
  )
}

#' @export
format.gpu_check <- function(x, ...) {
  marks <- c(ok = cli::symbol$tick, note = cli::symbol$bullet, problem = cli::symbol$cross)
  others <- x$findings[!x$findings$id %in% x$cause_id, ]
  titles <- sub("\\.$", "", others$title)
  found <- sprintf("%s %s: %s", marks[others$status], titles, others$evidence)
  fixes <- ifelse(others$status == "problem", paste("  Fix:", others$fix), NA)
  listed <- c(rbind(found, fixes))
  c(
    paste("GPU:", x$verdict),
    paste("Cause:", format_cause(x)),
    paste("Evidence:", x$evidence),
    if (nzchar(x$fix)) paste("Fix:", x$fix),
    listed[!is.na(listed)]
  )
}

format_cause <- function(x) {
  if (!is.na(x$cause)) {
    return(sprintf("%s [%s]", x$cause, x$cause_id))
  }
  if (x$verdict == "NOT USED") "not determined" else "none found"
}

#' @export
print.gpu_check <- function(x, ...) {
  cli::cat_line(format(x))
  invisible(x)
}

#' @export
as.data.frame.gpu_check <- function(x, ...) {
  x$findings
}

#' Report on the GPU as plain text
#'
#' [gpu_check()] with all its facts, to paste into a bug report. The names of
#' the user, the host and the home folder are left out.
#'
#' @param file A file to write to, or `NULL` to print.
#' @return The text, one string a line, invisibly.
#' @export
#' @examplesIf interactive()
#' gpu_report()
gpu_report <- function(file = NULL) {
  if (!is.null(file)) {
    check_string(file)
  }
  text <- call_core("report", list(session = read_session()))
  lines <- strsplit(text, "\n", fixed = TRUE)[[1]]
  if (is.null(file)) writeLines(lines) else write_beside(lines, file)
  invisible(lines)
}

# Written beside and then renamed: a failure leaves an older file as it was.
write_beside <- function(lines, file) {
  beside <- tempfile(basename(file), dirname(file))
  on.exit(unlink(beside))
  writeLines(lines, beside)
  file.rename(beside, file)
}
