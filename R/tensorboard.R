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
  folder <- absolute_paths(as_log_dir(log_dir))
  check_port(port)
  check_flag(open)
  board <- find_board(folder, port) %||% start_board(folder, port)
  the$boards[[board$url]] <- board
  board$notes <- board_notes(folder)
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
  if (file.exists(log_dir) && !dir.exists(log_dir)) {
    abort_gpukeras(
      "`log_dir` must be a folder, and this is a file.", code = "data",
      hint = "Give the folder that it is in.", arg = "log_dir", path = log_dir, call = call
    )
  }
  log_dir
}

check_port <- function(port, call = caller_env()) {
  whole <- rlang::is_integerish(port, n = 1, finite = TRUE) && port >= 1 && port <= 65535
  if (!is.null(port) && !whole) abort_spec(port, "port", "a whole number from 1 to 65535", call)
}

# The server that runs for a folder, of this session.
find_board <- function(folder, port) {
  the$boards <- Filter(function(board) board$running(), the$boards)
  known <- Filter(function(board) {
    board$log_dir == folder && (is.null(port) || board$port == port)
  }, the$boards)
  if (length(known) > 0) known[[1]]
}

# With the stand-in for a module of its own, TensorBoard reads files without importing TensorFlow,
# which takes 3 s and 400 MB (TensorBoard 2.21).
board_code <- paste(
  "import sys, types; sys.argv[0] = 'tensorboard';",
  "sys.modules['tensorboard.compat.notf'] = types.ModuleType('tensorboard.compat.notf');",
  "from tensorboard.main import run_main; run_main()"
)

# The supervisor of processx ends the server however this session ends.
start_board <- function(folder, port, seconds = 60, call = caller_env()) {
  start_python(call) # which chooses it
  python <- python_path()
  said <- tempfile("gpukeras-tensorboard-")
  process <- processx::process$new(
    # Without the data server, a second process that listens on another port.
    python, c(
      "-c", board_code, "--logdir", folder, "--host", "127.0.0.1", "--load_fast", "false",
      "--reload_multifile", "true", if (!is.null(port)) c("--port", format(port))
    ),
    stdout = said, stderr = said, supervise = TRUE, env = board_environment(python)
  )
  url <- NULL
  on.exit(if (is.null(url)) process$kill())
  url <- await_board(process, said, port, seconds, call)
  new_gpu_tensorboard(process, url, folder)
}

# The training has the card to itself.
board_environment <- function(python) {
  hidden <- c("current", CUDA_VISIBLE_DEVICES = "-1", TF_CPP_MIN_LOG_LEVEL = "2")
  c(hidden, own_libraries(python))
}

# The address that TensorBoard prints once it listens.
await_board <- function(process, said, port, seconds, call) {
  deadline <- Sys.time() + seconds
  repeat {
    running <- process$is_alive()
    lines <- readLines(said, warn = FALSE)
    url <- regmatches(lines, regexpr("http://127[.]0[.]0[.]1:[0-9]+/", lines))
    if (length(url) > 0) {
      return(url[[1]])
    }
    if (!running) abort_board(utils::tail(c("it says nothing", lines), 1), port, call)
    if (Sys.time() > deadline) {
      abort_gpukeras(
        sprintf("TensorBoard did not answer within %s.", count_of(seconds, "seconds")),
        code = "runtime_missing", call = call
      )
    }
    Sys.sleep(0.1)
  }
}

abort_board <- function(why, port, call) {
  why <- sub("[.]$", "", sub("^ERROR: ", "", why))
  if (grepl("No module named .tensorboard.$", why)) {
    abort_gpukeras(
      "TensorBoard is not installed for the Python in use.", code = "runtime_missing",
      hint = paste("Install it:", pip_command("tensorboard")), call = call
    )
  }
  if (!is.null(port) && grepl(" bind to ", why)) {
    abort_gpukeras(
      sprintf("`port` %d cannot be used: %s.", port, why), code = "spec", arg = "port",
      hint = "Leave it out to get one that is free.", call = call
    )
  }
  abort_gpukeras(
    sprintf("TensorBoard could not be started: %s.", why), code = "runtime_missing",
    hint = paste("Mend it:", pip_command("--upgrade tensorboard")), call = call
  )
}

# What TensorBoard cannot show: a missing folder, traces without xprof.
board_notes <- function(folder) {
  if (!dir.exists(folder)) {
    return("The folder is not there yet: TensorBoard shows what is written there later.")
  }
  traces <- list.files(folder, "[.]xplane[.]pb$", recursive = TRUE)
  if (length(traces) > 0 && !has_modules(python_path(), "xprof")) {
    paste("xprof, which shows the traces that are there, is not installed:", pip_command("xprof"))
  }
}

pip_command <- function(packages, python = python_path(), managed = is_managed()) {
  if (managed) { # the operating system's Python, into which pip installs nothing
    return(paste("call install_gpukeras(), and install it there: pip install", packages))
  }
  paste(shQuote(python), "-m pip install", packages)
}

new_gpu_tensorboard <- function(process, url, folder) {
  new_result(
    list(
      url = url, port = as.integer(gsub("^.*:|/$", "", url)), log_dir = folder, notes = NULL,
      running = function() process$is_alive(),
      stop = function() {
        process$signal(tools::SIGTERM) # TensorBoard removes its file on the process
        process$wait(5000)
        process$kill()
        invisible()
      }
    ),
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
