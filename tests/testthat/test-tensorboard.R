# The servers of gpu_tensorboard(): a small stand-in for TensorBoard, and the real one where it is.

# A package tensorboard for child processes, with a main of its own.
local_tensorboard <- function(main = stand_in, frame = parent.frame()) {
  folder <- withr::local_tempdir(.local_envir = frame)
  dir.create(file.path(folder, "tensorboard"))
  file.create(file.path(folder, "tensorboard", "__init__.py"))
  writeLines(main, file.path(folder, "tensorboard", "main.py"))
  withr::local_envvar(PYTHONPATH = folder, .local_envir = frame)
  withr::defer(for (board in the$boards) board$stop(), frame)
}

stand_in <- c(
  "import argparse, http.server, json, os, sys",
  "class Handler(http.server.BaseHTTPRequestHandler):",
  "    def do_GET(self):",
  "        self.send_response(200)",
  "        self.end_headers()",
  "        self.wfile.write(json.dumps({'gpus': os.environ['CUDA_VISIBLE_DEVICES']}).encode())",
  "    def log_message(self, *args):",
  "        pass",
  "def run_main():",
  "    given = dict(zip(sys.argv[1::2], sys.argv[2::2]))",
  "    address = given['--host'], int(given.get('--port', 0))",
  "    try:",
  "        server = http.server.ThreadingHTTPServer(address, Handler)",
  "    except OSError:",
  "        sys.exit('ERROR: TensorBoard could not bind to port, it was already in use')",
  "    port = server.server_address[1]",
  "    print(f'TensorBoard at http://127.0.0.1:{port}/ (Press CTRL+C)', file=sys.stderr, flush=True)",
  "    server.serve_forever()"
)

open_board <- function(...) suppressMessages(gpu_tensorboard(..., open = FALSE))

is_open <- function(port, host = "127.0.0.1") {
  connection <- tryCatch(
    suppressWarnings(socketConnection(host, port, timeout = 2)), error = function(condition) NULL
  )
  if (!is.null(connection)) close(connection)
  !is.null(connection)
}

test_that("a server prints its address as long as it runs", {
  skip_without_tensorflow()
  local_tensorboard()
  logs <- withr::local_tempdir()
  board <- open_board(logs)
  expect_s3_class(board, c("gpu_tensorboard", "gpu_result"), exact = TRUE)
  expect_true(is_open(board$port))
  expect_snapshot(
    {
      board
      board$running()
      board$stop()
      board
      board$running()
    },
    transform = function(lines) {
      sub("127.0.0.1:[0-9]+", "127.0.0.1:6006", sub("log_dir: .*", "log_dir: LOGS", lines))
    }
  )
  expect_false(is_open(board$port))
  expect_invisible(board$stop())
})

test_that("a folder's server is found again, and another folder gets its own", {
  skip_without_tensorflow()
  local_tensorboard()
  folder <- withr::local_tempdir()
  logs <- file.path(folder, c("one", "two"))
  lapply(logs, dir.create)
  withr::local_dir(folder)
  one <- open_board("one")
  expect_identical(one$log_dir, normalizePath(logs[1], winslash = "/"))
  expect_identical(open_board(logs[1])$url, one$url)
  expect_identical(open_board("one", port = one$port)$url, one$url)
  two <- open_board("two")
  expect_false(two$port == one$port)
  one$stop()
  expect_true(two$running())
  again <- open_board("one", port = one$port)
  expect_true(again$running())
  expect_identical(again$port, one$port)
})

test_that("a port in use is refused by name", {
  skip_without_tensorflow()
  local_tensorboard()
  board <- open_board(withr::local_tempdir())
  condition <- expect_error(
    open_board(withr::local_tempdir(), port = board$port),
    "cannot be used: TensorBoard could not bind to port", class = "gpukeras_error_spec"
  )
  expect_identical(condition$arg, "port")
})

test_that("it sees no GPU", {
  skip_without_tensorflow()
  local_tensorboard()
  board <- open_board(withr::local_tempdir())
  expect_identical(jsonlite::fromJSON(readLines(board$url, warn = FALSE))$gpus, "-1")
})

test_that("it ends with an R session that is killed", {
  skip_without_tensorflow()
  skip_on_os("windows")
  local_tensorboard()
  session <- callr::r_session$new()
  withr::defer(session$close())
  port <- session$run(function(logs) {
    gpukeras::gpu_tensorboard(logs, open = FALSE)$port
  }, list(withr::local_tempdir()))
  expect_true(is_open(port))
  session$signal(tools::SIGKILL)
  expect_true(wait_until(function() !is_open(port)))
})

test_that("it is opened in the browser when that is wanted", {
  skip_without_tensorflow()
  local_tensorboard()
  opened <- character()
  withr::local_options(browser = function(url) opened <<- c(opened, url))
  logs <- withr::local_tempdir()
  board <- gpu_tensorboard(logs, open = FALSE)
  expect_identical(opened, character())
  gpu_tensorboard(logs, open = TRUE)
  expect_identical(opened, board$url)
})

test_that("what is not to be seen is a message, with braces as they are", {
  skip_without_tensorflow()
  local_tensorboard()
  folder <- file.path(withr::local_tempdir(), "{logs}")
  expect_message(
    board <- gpu_tensorboard(folder, open = FALSE), "The folder is not there yet: TensorBoard shows",
    fixed = TRUE, class = "gpukeras_message"
  )
  dir.create(file.path(folder, "run-1", "plugins", "profile", "now"), recursive = TRUE)
  expect_null(board_notes(folder))
  file.create(file.path(folder, "run-1", "plugins", "profile", "now", "host.xplane.pb"))
  installed <- has_modules(python_path(), "xprof")
  expect_identical(is.null(board_notes(folder)), installed)
  if (!installed) {
    expect_match(board_notes(folder), "xprof, which shows the traces .* -m pip install xprof$")
  }
})

test_that("the history of a training says where its files are", {
  skip_without_tensorflow()
  local_tensorboard()
  logs <- withr::local_tempdir()
  board <- open_board(new_gpu_history(a_report(tensorboard = logs)))
  expect_identical(board$log_dir, normalizePath(logs, winslash = "/"))
})

test_that("arguments are checked before anything is started", {
  skip_outside_lane()
  local_core(function(name, args) stop("nothing is asked"))
  expect_snapshot(error = TRUE, gpu_tensorboard(3))
  expect_snapshot(error = TRUE, gpu_tensorboard(c("a", "b")))
  expect_snapshot(error = TRUE, gpu_tensorboard("logs", port = NA))
  expect_snapshot(error = TRUE, gpu_tensorboard("logs", port = 65536))
  expect_snapshot(error = TRUE, gpu_tensorboard("logs", open = "yes"))
  expect_snapshot(error = TRUE, gpu_tensorboard(new_gpu_history(a_report())))
  file <- withr::local_tempfile()
  file.create(file)
  expect_snapshot(error = TRUE, gpu_tensorboard(file), transform = function(lines) {
    gsub(file, "FILE", lines, fixed = TRUE)
  })
})

test_that("a server of another session has ended", {
  skip_without_tensorflow()
  local_tensorboard()
  board <- open_board(withr::local_tempdir())
  elsewhere <- unserialize(serialize(board, NULL))
  expect_false(elsewhere$running())
  expect_match(format(elsewhere)[1], "has ended")
  expect_true(board$running())
})

test_that("a TensorBoard that does not start says why, and none is left", {
  skip_without_tensorflow()
  hide_python <- function(lines) gsub("'[^']*' -m pip", "PYTHON -m pip", lines)
  expect_refused <- function(main, ...) {
    local_tensorboard(main)
    expect_snapshot(error = TRUE, start_board(tempdir(), ...), transform = hide_python)
  }
  expect_refused("raise ImportError('No module named pkg_resources')", NULL)
  expect_refused("import sys; sys.exit(1)", NULL)
  expect_refused("raise ModuleNotFoundError(\"No module named 'tensorboard'\")", NULL)
  expect_refused("import sys; sys.exit('ERROR: it could not bind to port 80')", 80)
  expect_refused(
    c("def run_main():", "    import time", "    time.sleep(3600)"), NULL, seconds = 0.5
  )
  expect_length(Filter(function(board) board$running(), the$boards), 0)
})

# TensorBoard itself -------------------------------------------------------------------------------

has_tensorboard <- function() reticulate::py_module_available("tensorboard")

test_that("without TensorBoard the error has the command that installs it", {
  skip_without_tensorflow()
  skip_if(has_tensorboard(), "TensorBoard is installed")
  condition <- expect_error(
    gpu_tensorboard(tempdir(), open = FALSE), class = "gpukeras_error_runtime_missing"
  )
  expect_match(condition$hint, paste("^Install it: .*", "-m pip install tensorboard$"))
})

test_that("a training is shown by TensorBoard on the loopback address", {
  skip_without_tensorflow()
  skip_if_not(has_tensorboard(), "TensorBoard is not installed: pip install tensorboard")
  folder <- withr::local_tempdir()
  data <- gpu_dataset(mixed_frame(), "y", validation = 0.25)
  history <- gpu_fit(
    gpu_mlp(data, units = 4, seed = 1), data,
    epochs = 2, engine = "keras", verbose = 0,
    tensorboard = list(folder = file.path(folder, "run-1"), histograms = TRUE)
  )
  expect_identical(history$tensorboard, file.path(folder, "run-1"))
  board <- gpu_tensorboard(folder, open = FALSE)
  withr::defer(board$stop())
  expect_match(board$url, "^http://127[.]0[.]0[.]1:[0-9]+/$")
  expect_identical(gpu_tensorboard(folder, open = FALSE)$url, board$url)
  runs <- function() readLines(paste0(board$url, "data/runs"), warn = FALSE)
  expect_true(wait_until(function() grepl("run-1/validation", runs(), fixed = TRUE)))
  shown <- readLines(
    paste0(board$url, "data/plugin/scalars/scalars?run=run-1%2Ftrain&tag=epoch_loss"),
    warn = FALSE
  )
  points <- jsonlite::fromJSON(shown)
  expect_equal(points[, 3], history$history$loss, tolerance = 1e-6)
  board$stop()
  expect_false(board$running())
})

test_that("options of gpu_fit(tensorboard = ) are checked by name", {
  skip_without_tensorflow()
  data <- gpu_dataset(mixed_frame(), "y")
  model <- gpu_mlp(data, units = 4)
  fit <- function(tensorboard) gpu_fit(model, data, tensorboard = tensorboard, verbose = 0)
  expect_snapshot(error = TRUE, fit(3))
  expect_snapshot(error = TRUE, fit(list(histograms = 1)))
  expect_snapshot(error = TRUE, fit(list(folder = "logs", histograms = -1)))
  expect_snapshot(error = TRUE, fit(list(folder = "logs", graph = TRUE)))
  expect_false(file.exists("logs"))
})
