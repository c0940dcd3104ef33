# gpu_fit(track = ): trainings recorded in a folder or in MLflow.

#' Record trainings in a folder or in MLflow
#'
#' `gpu_fit(track = gpu_track(...))` records a training: its parameters when it starts, the metrics
#' of each epoch when it ends, and at the end its results, a plot of the history and the trained
#' model. `gpu_fit(track = "folder")` is `gpu_track("csv", "folder")`.
#'
#' A tracker never stops or slows a training: it works in a thread of its own, and if it fails, the
#' training goes on, and one warning of class `gpukeras_warning_tracking` says so at the end. After
#' the training it is waited for, two minutes at most. In a [gpu_cluster()], the first worker alone
#' records.
#'
#' @section A folder:
#' `"csv"` makes a folder `run` in `path`, with `parameters.json`, `metrics.csv` (a row for each
#' epoch, empty where it has no such metric), `result.json`, `history.png` and `model.keras`, which
#' [gpu_load()] loads. In the result `rows` is the number of rows of an epoch, `trained_rows` that
#' of all epochs together, and `best_epoch` is null unless early stopping kept one.
#'
#' @section MLflow:
#' `"mlflow"` needs `pip install mlflow-skinny` in the Python that gpukeras uses. It creates a run,
#' with parameters, metrics (the epoch is their step), the plot, and the model as the artifact
#' `model`: `mlflow.keras.load_model("runs:/RUN/model")` loads it in Python; `gpu_load()` loads the
#' file `data/model.keras` in it, with recipe and history. Keras loads layers of
#' [gpu_tabular()] and losses of [gpu_family()] where the Python package gpukeras was imported.
#'
#' Where they are not set, gpukeras sets the environment variables
#' `MLFLOW_HTTP_REQUEST_MAX_RETRIES` (2), `MLFLOW_HTTP_REQUEST_TIMEOUT` (20 s) and
#' `MLFLOW_DISABLE_TELEMETRY` (true). Passwords belong in `MLFLOW_TRACKING_USERNAME` and
#' `MLFLOW_TRACKING_PASSWORD`.
#' @param kind `"csv"` or `"mlflow"`.
#' @param path For `"csv"`: the folder; it is made if it is missing.
#' @param uri For `"mlflow"`: the address of the server, such as `"http://127.0.0.1:5000"`, or
#'   another tracking URI. `NULL` is that of the environment variable `MLFLOW_TRACKING_URI`.
#' @param experiment For `"mlflow"`: the name of the experiment, which is made if it is missing.
#'   `NULL` is that of `MLFLOW_EXPERIMENT_NAME`, or `"Default"`.
#' @param run The name of the training. `NULL` makes one.
#' @param model Whether to keep the trained model.
#' @return A `gpu_track`, for [gpu_fit()]. The history of the training has the place of the record
#'   in `$tracking$where`, and what ended it too early in `$tracking$fault`.
#' @section Errors:
#' [gpu_fit()] raises, before the training: `gpukeras_error_spec` for a wrong option,
#' `gpukeras_error_data` if the folder of the run exists or cannot be made,
#' `gpukeras_error_runtime_missing` if MLflow is not installed.
#' @seealso `gpu_fit(tensorboard = )` for curves while a training runs.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' folder <- tempfile("runs-")
#' fit <- gpu_fit(gpu_mlp(train), train, epochs = 5, track = folder, verbose = FALSE)
#' read.csv(file.path(fit$tracking$where, "metrics.csv"))
#'
#' gpu_track("mlflow", uri = "http://127.0.0.1:5000", experiment = "cars")
#' @export
gpu_track <- function(kind = c("csv", "mlflow"), path = NULL, uri = NULL, experiment = NULL,
                      run = NULL, model = TRUE) {
  if (missing(kind)) kind <- "csv"
  options <- list(
    kind = kind, path = if (rlang::is_string(path)) absolute_paths(path) else path, uri = uri,
    experiment = experiment, run = run, model = model
  )
  check_no_na_options(options)
  new_result(Filter(Negate(is.null), options), "gpu_track")
}

#' @export
format.gpu_track <- function(x, ...) {
  place <- x$path %||% x$uri %||% "at the address of MLFLOW_TRACKING_URI"
  format_fields(
    sprintf("<gpu_track> %s: %s", x$kind, place),
    experiment = x$experiment,
    run = x$run,
    model = if (isFALSE(x$model)) "not kept",
    width = 12
  )
}

# The tracking of a training: its Keras callback and its handle, or nothing.
open_tracking <- function(track, model, options, call = caller_env()) {
  if (is.null(track)) {
    return(list())
  }
  if (rlang::is_string(track)) track <- gpu_track("csv", track)
  if (!inherits(track, "gpu_track")) {
    abort_spec(track, "track", "a folder, or gpu_track()", call)
  }
  handle <- call_core("open_tracking", list(
    options = unclass(track), model = model, parameters = as_parameters(options)
  ), call)
  if (is.null(handle)) {
    return(list())
  }
  list(handle = handle, callback = list(handle$callback), model = model)
}

# Values of options by name, with the version of gpukeras. A list, such as a schedule, is taken
# apart, and a vector is a text.
as_parameters <- function(options) {
  flat <- unlist(unname(Map(as_parameter, options, names(options))), recursive = FALSE)
  c(flat, gpukeras = as.character(utils::packageVersion("gpukeras")))
}

as_parameter <- function(value, name) {
  if (is.list(value)) {
    names <- paste(name, rlang::names2(value), sep = ".")
    return(unlist(unname(Map(as_parameter, value, names)), recursive = FALSE))
  }
  value <- plain_number(value, name)
  if (!is.atomic(value) || length(value) == 0) {
    return(NULL)
  }
  if (length(value) > 1) value <- paste(value, collapse = ", ")
  rlang::set_names(list(if (is.numeric(value)) as.double(value) else value), name)
}

# The history of a training, with the place of its record. `history`, the training, is evaluated
# here.
fit_with_tracking <- function(tracking, history) {
  if (length(tracking) == 0) {
    return(history)
  }
  ended <- FALSE
  on.exit(if (!ended) close_tracking(tracking, "failed"))
  force(history)
  ended <- TRUE
  plot <- plot_to_file(history)
  on.exit(unlink(plot))
  history$tracking <- close_tracking(
    tracking, history$stopped, as_results(history), as.list(plot)
  )
  if (nzchar(history$tracking$fault)) {
    warn_gpukeras(
      c(
        paste0("The training was not tracked to its end: ", history$tracking$fault, "."),
        i = "The training itself is complete, and the model is here."
      ),
      "tracking"
    )
  }
  history
}

close_tracking <- function(tracking, status, results = list(), files = list()) {
  call_core("close_tracking", list(
    tracking = tracking$handle, model = tracking$model, status = status, results = results,
    files = files
  ))
}

as_results <- function(history) {
  names <- c("epochs", "elapsed_s", "device", "precision", "replicas")
  c(
    history[names],
    list(
      rows = if (length(history$epoch_rows) > 0) max(history$epoch_rows),
      trained_rows = history$rows,
      best_epoch = if (history$best_epoch > 0) history$best_epoch,
      chosen_engine = history$engine$engine, trained_batch_size = history$plan$batch_size
    )
  )
}

# A plot of the history as a PNG file; no file where none can be drawn.
plot_to_file <- function(history) {
  folder <- tempfile("plot-")
  dir.create(folder)
  path <- file.path(folder, "history.png")
  before <- grDevices::dev.cur()
  drawn <- tryCatch(
    {
      grDevices::png(path, width = 900, height = 600)
      plot(history)
      TRUE
    },
    error = function(condition) FALSE
  )
  if (grDevices::dev.cur() != before) grDevices::dev.off()
  if (drawn && file.exists(path)) path else character()
}
