# The server itself is tested in Python; here is what R makes of it, and the real one where it is.

a_board <- function(...) {
  record <- list(
    handle = "a handle", url = "http://127.0.0.1:6006/", port = 6006L, folder = "/logs",
    notes = list()
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

# A core whose server runs until it is stopped.
local_server <- function(record = a_board(), frame = parent.frame()) {
  asked <- new.env()
  asked$running <- TRUE
  local_core(frame = frame, function(name, args) {
    if (name == "stop_server") asked$running <- FALSE
    asked$names <- c(asked$names, name)
    asked$args[[name]] <- args
    answer(switch(name, start_board = record, server_runs = asked$running))
  })
  asked
}

# The record's handle counts as one to a Python object that is there.
local_live_handle <- function(frame = parent.frame()) {
  numpy <- reticulate::import("builtins", convert = FALSE)
  a_board(handle = numpy$object())
}

test_that("a server prints its address as long as it runs", {
  skip_without_tensorflow()
  asked <- local_server(local_live_handle())
  board <- gpu_tensorboard("logs", open = FALSE)
  expect_s3_class(board, c("gpu_tensorboard", "gpu_result"), exact = TRUE)
  expect_snapshot({
    board
    board$running()
    board$stop()
    board
    board$running()
  })
})

test_that("the core gets the folder, the port and the Python", {
  asked <- local_server()
  board <- gpu_tensorboard("~/logs", port = 7000, open = FALSE)
  args <- asked$args$start_board
  expect_identical(args$folder, path.expand("~/logs"))
  expect_identical(args$port, 7000)
  expect_identical(args$python, python_path())
  gpu_tensorboard("logs", open = FALSE)
  expect_null(asked$args$start_board$port)
})

test_that("it is opened in the browser when that is wanted", {
  local_server()
  opened <- character()
  withr::local_options(browser = function(url) opened <<- c(opened, url))
  gpu_tensorboard("logs", open = FALSE)
  expect_identical(opened, character())
  gpu_tensorboard("logs", open = TRUE)
  expect_identical(opened, "http://127.0.0.1:6006/")
})

test_that("what is not to be seen is a message, with braces as they are", {
  local_server(a_board(notes = list("The folder {logs} is not there yet.")))
  expect_message(
    board <- gpu_tensorboard("{logs}", open = FALSE), "The folder {logs} is not there yet.",
    fixed = TRUE, class = "gpukeras_message"
  )
  expect_identical(board$notes, "The folder {logs} is not there yet.")
})

test_that("the history of a training says where its files are", {
  asked <- local_server()
  gpu_tensorboard(new_gpu_history(a_report(tensorboard = "logs/run-1")), open = FALSE)
  expect_identical(asked$args$start_board$folder, "logs/run-1")
})

test_that("arguments are checked before anything is started", {
  asked <- local_server()
  expect_snapshot(error = TRUE, gpu_tensorboard(3))
  expect_snapshot(error = TRUE, gpu_tensorboard(c("a", "b")))
  expect_snapshot(error = TRUE, gpu_tensorboard("logs", port = NA))
  expect_snapshot(error = TRUE, gpu_tensorboard("logs", open = "yes"))
  expect_snapshot(error = TRUE, gpu_tensorboard(new_gpu_history(a_report())))
  expect_null(asked$names)
})

test_that("a server of another session has ended", {
  local_server()
  board <- gpu_tensorboard("logs", open = FALSE)
  expect_false(board$running())
  expect_invisible(board$stop())
  expect_match(format(board)[1], "has ended")
})

# The real core ------------------------------------------------------------------------------------

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
