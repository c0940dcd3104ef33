# gpu_tensorboard(): TensorBoard in another process.

#' View trainings in TensorBoard
#'
#' Starts TensorBoard in the background, on this computer's loopback address (127.0.0.1) only, and
#' opens it in the browser. It shows the files of `gpu_fit(tensorboard = )`: loss and metrics of
#' training and validation after each epoch, the learning rate, rows per second, the share of time
#' spent waiting for rows; and, if you request them, histograms of the weights and a trace. To watch
#' a training, start TensorBoard before it: TensorBoard looks for new values every 5 seconds, and R
#' is not blocked.
#'
#' TensorBoard and xprof, which shows the traces in its profile tab, are optional Python packages:
#' if one is missing, an error or a message says how to install it.
#'
#' @section The server:
#' TensorBoard asks for no password, so gpukeras does not expose it to the network. To view
#' TensorBoard on another computer, forward its port: `ssh -L 6006:127.0.0.1:6006 computer`.
#' TensorBoard sees no GPU, so the training has the card to itself. It ends with `$stop()`, and with
#' this R session, however that ends. Another call of `gpu_tensorboard()` for the same folder
#' returns the running server.
#'
#' @section The files:
#' The files have the layout of Keras' own `TensorBoard` callback, with epochs counted from 0, so
#' you can compare trainings of both. Give each training its own folder within one folder, such as
#' `"logs/run-1"` and `"logs/run-2"`: `gpu_tensorboard("logs")` shows them side by side. Files of an
#' earlier training in the same folder stay, and its points are shown with the new ones. A resumed
#' training continues in its folder.
#'
#' @param log_dir The folder of a training, or one that contains such folders; it may be created
#'   later. Or the [gpu_history] of a training with `tensorboard`.
#' @param port A port from 1 to 65535; `NULL` takes the first free one from 6006.
#' @param open Whether to open TensorBoard in the browser.
#' @return A `gpu_tensorboard`: a list with `$url`, `$port`, `$log_dir`, `$notes`, and the functions
#'   `$stop()` and `$running()`.
#' @section Errors:
#' `gpukeras_error_runtime_missing` if TensorBoard is not installed or does not start,
#' `gpukeras_error_spec` for a port in use, `gpukeras_error_data` if `log_dir` is a file.
#' @seealso [gpu_fit()].
#' @examplesIf gpukeras:::can_run_examples(c("tensorflow", "tensorboard"), processes = TRUE)
#' logs <- tempfile("logs-")
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' for (rate in c(0.1, 0.01)) {
#'   gpu_fit(
#'     gpu_mlp(train, learning_rate = rate), train, epochs = 5, verbose = FALSE,
#'     tensorboard = list(folder = file.path(logs, paste("rate", rate)))
#'   )
#' }
#' board <- gpu_tensorboard(logs)
#' board
#' board$stop()
#' @export
gpu_tensorboard <- function(log_dir, port = NULL, open = interactive()) {
  folder <- as_log_dir(log_dir)
  check_no_na_options(list(port = port))
  check_flag(open)
  record <- call_core("start_board", list(
    folder = path.expand(folder), port = port, python = python_path()
  ))
  board <- new_gpu_tensorboard(record)
  for (note in board$notes) {
    inform_gpukeras(i = note)
  }
  if (open) utils::browseURL(board$url)
  board
}

# The path of a log folder, given or from a history.
as_log_dir <- function(log_dir, call = caller_env()) {
  if (inherits(log_dir, "gpu_history")) {
    folder <- log_dir$tensorboard %||% ""
    if (!nzchar(folder)) {
      abort_gpukeras(
        "`log_dir` is the history of a training that wrote nothing for TensorBoard.",
        code = "spec", hint = "Train with gpu_fit(tensorboard = \"logs/run-1\").",
        arg = "log_dir", call = call
      )
    }
    return(folder)
  }
  check_string(log_dir, call = call)
  log_dir
}

# What is asked of a server by its handle.
server_verbs <- function(handle) {
  force(handle)
  list(
    running = function() !is_dead(handle) && call_core("server_runs", list(handle = handle)),
    stop = function() {
      if (!is_dead(handle)) call_core("stop_server", list(handle = handle))
      invisible()
    }
  )
}

new_gpu_tensorboard <- function(record) {
  facts <- list(
    url = record$url, port = record$port, log_dir = record$folder, notes = record$notes
  )
  new_result(
    c(facts, server_verbs(record$handle)),
    "gpu_tensorboard"
  )
}

#' @export
format.gpu_tensorboard <- function(x, ...) {
  running <- x$running()
  c(
    paste("<gpu_tensorboard>", if (running) x$url else "has ended"),
    paste("log_dir:", x$log_dir),
    if (running) "ends with $stop() or with this R session"
  )
}
