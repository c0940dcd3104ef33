# gpu_report(): the check as plain text, or results as an HTML page.

#' Report as plain text, or as a page
#'
#' Without `x`: returns [gpu_check()] with all its facts as plain text, to paste into a bug report.
#'
#' With results of this package: writes an HTML page with their verdicts, reasons, tables and plots,
#' in one file that needs neither network nor script. The page follows the reader's light or dark
#' setting, and can be printed.
#'
#' Both omit the names of the user, the host and the home folder.
#'
#' @param x `NULL` for the text; or a result, or a list of several: a [gpu_profile()], [gpu_fit()]'s
#'   history, a [gpu_monitor()], [gpu_cost()], [gpu_check()], [gpu_batch_size()],
#'   [gpu_learning_rate()], [gpu_dataset()], [gpu_setup()], [gpu_devices()] or [gpu_memory()]. Names
#'   of the list become headings. A string is used as `file`.
#' @param file The file to write. It is written under another name and renamed, so a failure leaves
#'   an older file unchanged. `NULL` prints the text; a page is written to the session's temporary
#'   folder, and opened in a browser if R is interactive.
#' @return The text, one string per line, or the path of the page; invisibly.
#' @section Errors:
#' `gpukeras_error_spec` for an `x` that is not such a result; `gpukeras_error_data` if the folder
#' of `file` does not exist.
#' @export
#' @examplesIf gpukeras:::can_run_examples()
#' head(gpu_report())
#'
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' fit <- gpu_fit(gpu_mlp(train), train, epochs = 5, verbose = FALSE)
#' gpu_report(list("The training" = fit, train), tempfile("report-", fileext = ".html"))
gpu_report <- function(x = NULL, file = NULL) {
  if (rlang::is_string(x) && is.null(file)) {
    file <- x
    x <- NULL
  }
  if (!is.null(file)) check_target(file)
  if (is.null(x)) {
    return(invisible(report_text(file)))
  }
  page <- html_page(report_parts(x))
  shown <- is.null(file) && rlang::is_interactive()
  file <- file %||% tempfile("gpukeras-", fileext = ".html")
  write_beside(page, file)
  if (shown) utils::browseURL(file)
  invisible(file)
}

report_text <- function(file, call = caller_env()) {
  text <- call_core("report", list(session = read_session()), call = call)
  lines <- strsplit(text, "\n", fixed = TRUE)[[1]]
  if (is.null(file)) writeLines(lines) else write_beside(lines, file)
  lines
}

# Checks that a path can be a file.
check_target <- function(file, call = caller_env()) {
  check_string(file, call = call)
  if (!dir.exists(dirname(file)) || dir.exists(file)) {
    what <- if (dir.exists(file)) "is a folder" else "is in a folder that does not exist"
    abort_gpukeras(
      sprintf("The file `%s` %s.", basename(file), what),
      code = "data", hint = "Give the path of a file in a folder that is there.",
      arg = "file", path = file, call = call
    )
  }
}

# Writes a file under another name and renames it, so that a failure keeps the older one.
write_beside <- function(lines, file) {
  beside <- tempfile(basename(file), dirname(file))
  on.exit(unlink(beside))
  writeLines(enc2utf8(lines), beside, useBytes = TRUE)
  file.rename(beside, file)
}

# Parts --------------------------------------------------------------------------------------------

# The classes that a page can show, with their default headings.
report_titles <- c(
  gpu_profile = "Where the time goes", gpu_history = "Training", gpu_histories = "Trainings",
  gpu_monitor = "While it ran", gpu_cost = "What the model costs", gpu_check = "Is the GPU used?",
  gpu_dataset = "Data", gpu_batch_size = "Batch size", gpu_learning_rate = "Learning rate",
  gpu_setup = "Setup", gpu_devices = "Devices", gpu_memory = "Memory"
)

# Results with headings. The monitored result comes before its monitor.
report_parts <- function(x, call = caller_env()) {
  results <- if (is.list(x) && !is.object(x)) x else list(x)
  known <- vapply(results, inherits, logical(1), names(report_titles))
  if (length(results) == 0 || !all(known)) {
    wrong <- c(results[!known], list(x))[[1]]
    abort_spec(wrong, "x", "NULL, a result of this package such as a gpu_profile, or a list", call)
  }
  parts <- Map(report_part, results, rlang::names2(results))
  unlist(unname(parts), recursive = FALSE)
}

report_part <- function(x, name) {
  class <- intersect(class(x), names(report_titles))[1]
  title <- if (nzchar(name)) name else report_titles[[class]]
  monitored <- if (class == "gpu_monitor") x$value
  monitor <- if (class == "gpu_history") x$monitor
  c(
    if (inherits(monitored, names(report_titles))) report_part(monitored, ""),
    list(list(class = class, title = title, value = x)),
    if (inherits(monitor, "gpu_monitor")) report_part(monitor, paste0(title, ": monitor"))
  )
}
