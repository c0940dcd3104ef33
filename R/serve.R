# gpu_serve(): predictions over HTTP, by another process.

#' Serve predictions over HTTP
#'
#' Starts a server in the background that answers requests with predictions as JSON. It applies the
#' recipe of the training rows as [gpu_predict()] does: columns are found by name, and values are
#' checked by type. Requests that arrive together are predicted together. The server listens on this
#' computer's loopback address only, unless `host` says otherwise, which needs a `token`.
#'
#' The server is a process of its own without R. It loads the model from a file in Keras' safe mode,
#' so R is not blocked, and training goes on while it runs. It needs the Python packages uvicorn and
#' starlette; an error says how to install them if they are missing. Without R, the same server
#' starts by `python -m gpukeras serve model.keras`; `system.file("places", "Dockerfile.serve",
#' package = "gpukeras")` is a container of it.
#'
#' @section Requests:
#' `POST /predict` with the header `Content-Type: application/json` and one of these bodies:
#' - `{"rows": [{"wt": 2.6, "cyl": "4"}, ...]}`, a data frame by rows;
#' - `{"columns": {"wt": [2.6, ...], "cyl": ["4", ...]}}`, the same by columns;
#' - `{"x": [[1, 2], ...]}` for a model of a matrix or array, or one that gpukeras did not train.
#'
#' Beside it may stand `"type"`, `"response"` or `"class"`, and `"interval"`, such as 0.9, for a
#' model of [gpu_calibrate()]. Factors are texts, logicals `true` and `false`, a missing value is
#' `null`, a date is `"2026-11-24"`, and a time is `"2026-11-24T12:00:00Z"` or, with decimals and
#' another offset from UTC, `"2026-11-24T14:00:00.250+02:00"`; no other forms are read. Other
#' columns are ignored. Terms that R computes, such as `log(wt)` in a formula, are columns of that
#' name: clients compute them, and `$terms` lists them.
#'
#' The answer is `{"predictions": [...]}` with a value for each row: a number, a class, or an object
#' for several (by class, by output, or `.pred`, `.pred_lower` and `.pred_upper`). `null` stands for
#' a row that training would have left out (`na = "drop"`), and for numbers that are not finite.
#'
#' `GET /model` describes the inputs by name and type, the label and its levels; `GET /health` says
#' that the server runs, and asks for no token.
#'
#' An error is `{"error": {"code", "message", "hint", "column"}}` with the code of the R error that
#' [gpu_predict()] would raise: status 422 for rows that do not fit; 400 for a body that is not
#' JSON, 401 without the token, 403 for another `Host` than this computer, 404, 405, 408 for a body
#' that takes more than 20 seconds, 413 and 415 as HTTP defines them; 503 with `Retry-After` if too
#' many rows wait. A body whose `Content-Length` is too large gets its 413 before it is read.
#' Messages show no value of a row.
#'
#' @section Access:
#' Without a token anybody who can log in to this computer can ask for predictions. Web pages
#' cannot: a request of a page lacks the right `Content-Type` or `Host`. The token is passed to the
#' server by its environment, is compared in constant time, and is neither printed nor logged. HTTP
#' does not encrypt: for other computers use a tunnel (`ssh -L 8000:127.0.0.1:8000 computer`) or a
#' proxy with TLS.
#'
#' @section Load:
#' The model is compiled for 1, 4, 16, 64, ... and `max_batch` rows when the server starts, and
#' batches are padded to these. If what the model gives for a row may depend on the other rows of
#' its batch (see the section Losses of [gpu_fit()]), each request is predicted alone and unpadded,
#' so that no client's answer depends on another's rows. A single request may have more rows than
#' `max_batch`. At most 16 batches wait, at most 512 connections are open, and connections that
#' bring no request within 10 to 20 seconds are closed. `$stop()` lets the server finish what is in
#' flight, for 20 seconds at most.
#' @param model A Keras model, or the path of a `.keras` file, such as one of [gpu_save()].
#' @param port A port from 1 to 65535; `NULL` takes the first free one from 8000.
#' @param host The address to listen on. Another than a loopback address needs a token;
#'   `"0.0.0.0"` is all addresses of this computer.
#' @param token What clients send as the header `Authorization: Bearer TOKEN`, at least 16
#'   characters; `NULL` uses the environment variable `GPUKERAS_TOKEN`, and without it asks for
#'   none.
#' @param max_batch The number of rows that are predicted together at most.
#' @param max_wait For how many milliseconds a request waits for others at most.
#' @param max_body The size of a request in bytes at most.
#' @return A `gpu_server`: a list with `$url`, `$port`, `$host`, `$token` (whether there is one),
#'   `$terms`, `$max_batch`, `$max_wait`, `$max_body`, and the functions `$stop()` and `$running()`.
#'   The server ends with `$stop()`, and with this R session, however that ends.
#' @section Errors:
#' `gpukeras_error_runtime_missing` if uvicorn or starlette is not installed, `gpukeras_error_spec`
#' for a wrong option, a port in use, or a host that others can reach without a token;
#' `gpukeras_error_model` for a file that is refused or a model that takes images, texts, windows,
#' several inputs or rows that a recipe of the package recipes prepares, or keeps a state between
#' batches; `gpukeras_error_service` if the server does not
#' start.
#' @seealso [gpu_predict()], [gpu_save()].
#' @examplesIf gpukeras:::can_run_examples(c("uvicorn", "starlette"), processes = TRUE)
#' train <- gpu_dataset(mpg ~ wt + hp, data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' server <- gpu_serve(model, max_batch = 16)
#' server
#' jsonlite::fromJSON(paste0(server$url, "model"))$inputs
#' server$stop()
#' @export
gpu_serve <- function(model, port = NULL, host = "127.0.0.1", token = NULL, max_batch = 256,
                      max_wait = 2, max_body = 4 * 2^20) {
  options <- list(
    port = port, host = host, token = token, max_batch = max_batch, max_wait = max_wait,
    max_body = max_body
  )
  check_no_na_options(options)
  from_file <- rlang::is_string(model)
  if (from_file) check_local_path(model) else model <- check_model(model)
  record <- call_core("start_server", list(
    model = if (!from_file) model, path = if (from_file) absolute_paths(model),
    options = options, python = python_path()
  ))
  new_gpu_server(record)
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

new_gpu_server <- function(record) {
  record$terms <- as_chr(record$terms)
  facts <- record[names(record) != "handle"]
  new_result(c(facts, server_verbs(record$handle)), "gpu_server")
}

#' @export
format.gpu_server <- function(x, ...) {
  if (!x$running()) {
    return(c("<gpu_server> has ended", "gpu_serve() starts another"))
  }
  asked <- if (x$token) "with the token" else "from this computer, without a token"
  format_fields(
    paste("<gpu_server>", x$url),
    requests = paste("POST", paste0(x$url, "predict,"), asked),
    batches = sprintf(
      "of at most %s, after %s ms", count_of(x$max_batch, "rows"), format_number(x$max_wait, 3)
    ),
    terms = if (length(x$terms) > 0) {
      paste(paste(x$terms, collapse = ", "), "(clients send their values)")
    },
    "ends with $stop() or with this R session"
  )
}
