# read_history(): histories from files, which are not trusted.

#' Read a history that was saved beside a checkpoint
#'
#' With `checkpoint`, [gpu_fit()] writes its history to the file `history.json` in the same folder
#' after each epoch. So the history is available even if the process has died.
#'
#' @param path The checkpoint's folder, or the file.
#' @return A [gpu_history]. Numbers that were NaN or infinite are NaN.
#' @section Errors:
#' `gpukeras_error_data` if there is no history, or the file contains something else; the error
#' names a field that should be a number and is not.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' folder <- tempfile("checkpoint-")
#' fit <- gpu_fit(gpu_mlp(train), train, epochs = 5, checkpoint = folder, verbose = FALSE)
#' read_history(folder)
#' @export
read_history <- function(path) {
  check_string(path)
  file <- if (dir.exists(path)) file.path(path, "history.json") else path
  if (!file.exists(file)) {
    abort_history(file, "There is no history `%s`.", "Give a folder that was a `checkpoint`.")
  }
  if (grepl("[.]keras$", file)) {
    return(archive_history(file))
  }
  new_gpu_history(check_report(parse_report(read_text(file), file), file))
}

# The text of a file. A pipe, from which reading would block, has no size.
read_text <- function(file, call = caller_env()) {
  if (!isTRUE(file.size(file) > 0)) {
    abort_history(file, "The file `%s` is not JSON.", call = call)
  }
  paste(readLines(file, warn = FALSE, encoding = "UTF-8", skipNul = TRUE), collapse = "\n")
}

parse_report <- function(text, file, call = caller_env()) {
  tryCatch(jsonlite::parse_json(text, simplifyVector = FALSE), error = function(condition) {
    abort_history(file, "The file `%s` is not JSON.", call = call)
  })
}

# The history in a file of gpu_save(): its text is read without starting Python.
archive_history <- function(path, call = caller_env()) {
  text <- read_member(path, "gpukeras.json", call)
  if (is.null(text)) {
    abort_history(path, "The file `%s` is not of gpu_save(): it has no history.", call = call)
  }
  about <- parse_report(text, path, call)
  if (!is.list(about) || is.null(about$history)) {
    abort_history(
      path, "The model in `%s` was saved without a history.",
      "gpu_fit() leaves one with a model.", call = call
    )
  }
  new_gpu_history(check_report(about$history, path, call))
}

# The text of an archive's member, or NULL. The archive's own entry for its length is not trusted.
read_member <- function(path, name, call = caller_env()) {
  listed <- tryCatch(utils::unzip(path, list = TRUE), error = function(condition) NULL)
  if (!name %in% listed$Name) {
    return(NULL)
  }
  connection <- unz(path, name, open = "rb") # text mode would lose a last line without an end
  on.exit(close(connection))
  content <- tryCatch(readBin(connection, "raw", 2^28), error = function(condition) raw())
  if (any(content == 0)) {
    abort_history(path, "The file `%s` is not JSON.", call = call)
  }
  rawToChar(content)
}

abort_history <- function(file, message, hint = "", call = caller_env()) {
  abort_gpukeras(
    sprintf(message, basename(file)),
    code = "data", hint = hint, arg = "path", path = file, call = call
  )
}

# Checking -----------------------------------------------------------------------------------------

needed_fields <- c("history", "epochs", "elapsed_s", "epoch_s", "stopped", "plan", "engine")

is_count <- function(x) is_finite_number(x) && x >= 0 && x <= .Machine$integer.max && x %% 1 == 0

is_finite_number <- function(x) rlang::is_bare_numeric(x, n = 1) && is.finite(x)

is_text <- function(x) rlang::is_bare_character(x, n = 1) && !is.na(x)

# In JSON that R wrote, a vector of length 1 is a scalar.
is_list_of <- function(x, holds, named = FALSE) {
  if (!named && is.atomic(x) && length(x) == 1) {
    return(holds(x))
  }
  has_names <- !named || length(x) == 0 || rlang::is_named(x)
  rlang::is_bare_list(x) && has_names && all(vapply(x, holds, NA))
}

# A metric's value: a number, NULL, or an array of these.
is_metric <- function(x, depth = 0) {
  rlang::is_bare_numeric(x, n = 1) || is.null(x) ||
    (depth < 8 && rlang::is_bare_list(x) && is.null(names(x)) &&
      all(vapply(x, is_metric, NA, depth + 1)))
}

is_series <- function(x) {
  is_list_of(x, function(one) is.null(one) || rlang::is_bare_numeric(one, n = 1))
}

is_texts_of <- function(x) is_list_of(x, is_text)

# A predicate for each field of a training's report.
report_fields <- list(
  history = function(x) {
    is_list_of(x, function(values) is_list_of(values, is_metric), named = TRUE)
  },
  learning_rate = is_series, epoch_s = is_series, epoch_rows = is_series,
  epochs = is_count, resumed_epochs = is_count, best_epoch = is_count, rows = is_finite_number,
  validation_freq = function(x) is_count(x) || is_list_of(x, is_count),
  elapsed_s = is_finite_number, samples_per_s = is_finite_number, input_share = is_finite_number,
  peak_bytes = is_finite_number, micro_batch = is_count, replicas = is_count, workers = is_count,
  skipped_steps = is_count, device = is_text, precision = is_text, stopped = is_text,
  checkpoint = is_text, unsaved = is_text, tensorboard = is_text, devices = is_texts_of,
  notes = is_texts_of,
  reasons = function(x) is_list_of(x, is_text, named = TRUE),
  variables = function(x) is_list_of(x, is_count, named = TRUE),
  engine = function(x) is_record(x, engine = is_text, reason = is_text, trials = is_trials),
  plan = function(x) {
    is_record(
      x,
      batch_size = is_count, mode = is_text, reason = is_text, batch_reason = is_text,
      na_reason = is_text, dropped_rows = is_count
    )
  }
)

is_trials <- function(x) {
  is_list_of(x, function(one) {
    is_record(
      one,
      engine = is_text, refused = is_text, batch_s = is_finite_number, start_s = is_finite_number
    )
  })
}

# A named list whose fields, where present, satisfy these predicates; other fields are ignored.
is_record <- function(x, ...) {
  kinds <- list(...)
  rlang::is_bare_list(x) && rlang::is_named(x) &&
    all(vapply(names(kinds), function(name) is.null(x[[name]]) || kinds[[name]](x[[name]]), NA))
}

# Checks that each field is of the type that the core writes, or absent.
check_report <- function(report, file, call = caller_env()) {
  if (!rlang::is_bare_list(report) || !all(needed_fields %in% names(report))) {
    abort_history(file, "The file `%s` is not the history of a training.", call = call)
  }
  for (name in intersect(names(report_fields), names(report))) {
    value <- report[[name]]
    if (!(is.null(value) && !name %in% needed_fields) && !report_fields[[name]](value)) {
      abort_gpukeras(
        sprintf("The history in `%s` is damaged: its field `%s`.", basename(file), name),
        code = "data", arg = "path", path = file, field = name, call = call
      )
    }
  }
  report
}
