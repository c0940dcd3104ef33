# Models in files: saved with recipe, history and masks, or exported for other programs.

#' Save a model, with the recipe of its data, its history and its masks
#'
#' Writes a `.keras` file, which plain Keras can open too. In addition to Keras' own members, the
#' file contains what [gpu_load()] restores: the recipe of the training data, so that
#' [gpu_predict()] takes a data frame again; the history of the training, which [read_history()]
#' reads from the file; what [gpu_calibrate()] learned, so that intervals stay the same; and the
#' masks of [gpu_prune()], so that weights that are 0 stay 0 in further training. The file also
#' contains the optimizer's state, so training continues without a break.
#'
#' The file is written atomically: under a hidden name in the same folder, then renamed.
#' @param model A Keras 3 model; it need not be compiled or trained.
#' @param path Path of the file, which must end with `.keras`. Its folder must exist.
#' @param overwrite Whether to replace an existing file. A folder is never replaced.
#' @param history A [gpu_history] to save; `NULL` is that of the model's last [gpu_fit()].
#' @param verbose Whether to print what was saved, and what [gpu_load()] will need: the names of
#'   custom layers, losses and functions, which are not in the file, and the location of lambdas.
#' @return `path`, invisibly.
#' @section Errors:
#' `gpukeras_error_data` if the path exists or cannot be written; `gpukeras_error_model` for a model
#' that Keras cannot save, or one with a layer that loads another program; `gpukeras_error_spec` if
#' the path does not end with `.keras`.
#' @seealso [gpu_load()]; [gpu_export()] for other programs.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' path <- gpu_save(model, tempfile("cars-", fileext = ".keras"))
#' head(gpu_predict(gpu_load(path), mtcars))
#' read_history(path)
#' @export
gpu_save <- function(model, path, overwrite = FALSE, history = NULL, verbose = TRUE) {
  model <- check_model(model)
  check_string(path)
  check_local_path(path)
  check_flag(overwrite)
  check_flag(verbose)
  record <- suspendInterrupts(call_core("save_archive", list(
    model = model, path = absolute_paths(path), overwrite = overwrite,
    history = history_text(history)
  )))
  if (verbose) {
    cat_lines(c(format_archive(record), format_needs(record$needs)))
  }
  warn_shared_names(record$needs$shared)
  invisible(path)
}

# A history as JSON, without what new_gpu_history() adds and what the monitor sampled.
history_text <- function(history, call = caller_env()) {
  if (is.null(history)) {
    return(NULL)
  }
  if (!inherits(history, "gpu_history")) {
    abort_spec(history, "history", "a gpu_history", call)
  }
  record <- unclass(history)
  record[c("where", "throughput", "input_wait", "peak_memory", "monitor", "tracking")] <- NULL
  record$reasons <- as.list(record$reasons)
  record$history <- lapply(record$history, I) # vectors stay such, also those of one epoch
  as.character(jsonlite::toJSON(record, auto_unbox = TRUE, digits = NA, null = "null", na = "null"))
}

format_archive <- function(record) {
  parts <- c(
    count_of(record$parameters, "weights"),
    if (record$recipe) "the recipe" else "no recipe",
    if (record$epochs > 0) paste("a history of", count_of(record$epochs, "epochs")),
    if (record$masks > 0) sprintf("%s masks", format_count(record$masks)),
    if (!record$compiled) "not compiled"
  )
  sprintf(
    "saved %s \"%s\" with %s (%s)", record$kind, record$name, paste(parts, collapse = ", "),
    format_bytes(record$bytes)
  )
}

# The arguments that gpu_load() will need for this file.
format_needs <- function(needs) {
  objects <- c(unlist(needs$objects), unlist(needs$compiled))
  short <- sub("^.*>", "", objects)
  given <- paste(sprintf("%s = ", short), collapse = ", ")
  lambdas <- paste(unlist(needs$lambdas), collapse = ", ")
  c(
    if (length(objects) > 0) sprintf("gpu_load() needs custom_objects = list(%s)", given),
    if (length(needs$lambdas) > 0) {
      sprintf("gpu_load() needs safe_mode = FALSE: there is a Python lambda in %s", lambdas)
    }
  )
}

# Keras writes the names of functions, and those of R are all called alike.
warn_shared_names <- function(names) {
  if (length(names) == 0) {
    return(invisible())
  }
  warn_gpukeras(c(
    sprintf(
      "Functions of the model share a name with others, %s: loading gives one of them to all.",
      paste0("`", unlist(names), "`", collapse = ", ")
    ),
    i = "Name each before the model is made: attr(f, \"py_function_name\") <- \"f\"."
  ), "shared_names")
}

# Exporting ----------------------------------------------------------------------------------------

#' Export a model for other programs, and check the file
#'
#' Writes the model's forward pass as a SavedModel (TensorFlow, TensorFlow Serving), ONNX (ONNX
#' Runtime, and most others), LiteRT (phones and small devices; TensorFlow Lite until 2024) or
#' StableHLO (JAX, without Keras).
#' Another process, which has neither Keras' classes nor the session's, then runs the file on some
#' rows, and its predictions are compared with the model's. If they differ, an error is raised and
#' nothing is written.
#'
#' The exported model takes rows as the Keras model does: as encoded numbers. The recipe, which
#' encodes a data frame and names the classes, stays in R ([gpu_recipe()]). So does what
#' [gpu_predict()] makes of the outputs: the mean of a [gpu_family()] from its parameters, and the
#' probabilities of [gpu_calibrate()]. `$notes` say so where it changes values.
#'
#' @section What is needed:
#' - `"savedmodel"`, `"litert"`: only TensorFlow. `ai-edge-litert` runs LiteRT files if it is
#'   installed.
#' - `"onnx"`: `pip install tf2onnx onnx onnxruntime` in the Python that gpukeras uses (tested:
#'   tf2onnx 1.17, onnx 1.23, onnxruntime 1.31 with TensorFlow 2.21 and NumPy 1.26).
#' - `"stablehlo"`: Keras on JAX (`gpu_setup(backend = "jax")`), and `pip install flatbuffers`. The
#'   file holds the weights, takes any number of rows, and is made for CPUs and NVIDIA GPUs; it was
#'   run on CPUs only.
#'
#' The first three need Keras on TensorFlow.
#'
#' If LiteRT cannot run a model with any batch size, such as a model with an LSTM, the model is
#' exported for one row at a time, and `$notes` says so. Half precision cannot be exported to
#' LiteRT, and layers of [gpu_quantize()] may not.
#' @param model A Keras 3 model with weights; it need not be compiled.
#' @param path Path of the file, or for `"savedmodel"` of the folder.
#' @param format `"savedmodel"`, `"onnx"`, `"litert"` or `"stablehlo"`; by default the path's suffix
#'   determines it: `.onnx`, `.tflite`, `.stablehlo`, or a folder.
#' @param overwrite Whether to replace a file, or the folder of an earlier SavedModel. A folder that
#'   holds anything else is never deleted.
#' @param data A [gpu_dataset()] on whose first 16 rows both models are compared. `NULL` draws
#'   random rows: normal numbers, or 0 and 1 if the model takes integers.
#' @param tolerance The largest allowed difference: absolute for predictions of at most 1 in size,
#'   relative for larger ones. `NULL` is 0.0001 for float32 on the CPU, 0.02 for half precision or a
#'   model on a GPU.
#' @return A `gpu_export`, which `print()` shows: `$path`, `$format`, `$bytes`, `$inputs` and
#'   `$outputs` (data frames: `name`, `shape` of a row, `dtype`), `$rows` compared,
#'   `$max_difference`, `$allowed`, `$tolerance`, `$tolerance_reason`, `$runner` (the program that
#'   ran the file), `$code` (lines of Python that run it), `$notes`, `$seconds`.
#' @section Errors:
#' `gpukeras_error_backend` if the format needs Keras on another backend;
#' `gpukeras_error_runtime_missing` if the format needs Python packages that are not installed;
#' `gpukeras_error_model` if the model cannot be exported, or the file cannot be run or predicts
#' something else (with `$max_difference` and `$allowed`); `gpukeras_error_data` if the path exists
#' or cannot be written; `gpukeras_error_spec` for an invalid option, or if rows cannot be drawn.
#' @seealso [gpu_save()] for R.
#' @examplesIf gpukeras:::can_run_examples(processes = TRUE)
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train)
#' # Other processes start TensorFlow, to convert the model and to check the file: some 10 seconds.
#' gpu_export(model, tempfile("cars-", fileext = ".tflite"), data = train)
#' @export
gpu_export <- function(model, path, format = c("savedmodel", "onnx", "litert", "stablehlo"),
                       overwrite = FALSE, data = NULL, tolerance = NULL) {
  model <- check_model(model)
  check_string(path)
  check_local_path(path)
  if (missing(format)) format <- "auto"
  check_no_na_options(list(format = format, overwrite = overwrite, tolerance = tolerance))
  data <- if (!is.null(data)) check_dataset(data)$handle
  new_gpu_export(call_core("export_model", list(
    model = model, path = absolute_paths(path), data = data, format = format,
    overwrite = overwrite, tolerance = tolerance
  )))
}

new_gpu_export <- function(record) {
  record$inputs <- as_tensors(record$inputs, c("name", "shape", "dtype"))
  record$outputs <- as_tensors(record$outputs, c("shape", "dtype"))
  record$code <- as_chr(record$code)
  new_result(record, "gpu_export")
}

as_tensors <- function(tensors, columns) {
  records_frame(lapply(tensors, function(tensor) {
    tensor$shape <- format_shape(tensor$shape)
    tensor
  }), columns)
}

#' @rdname gpu_export
#' @param x A `gpu_export`.
#' @param ... Not used.
#' @export
format.gpu_export <- function(x, ...) {
  format_fields(
    sprintf("<gpu_export> %s of \"%s\", %s", x$title, x$model, format_bytes(x$bytes)),
    path = x$path,
    inputs = paste0(
      format_tensors(x$inputs), if (x$encoded) ", encoded as gpu_recipe() tells"
    ),
    outputs = format_tensors(x$outputs),
    checked = sprintf(
      "%s ran it on %s: predictions differ by at most %s",
      x$runner, count_of(x$rows, if (x$drawn) "random rows" else "rows"),
      format_number(x$max_difference, 2)
    ),
    sprintf("          (%s is allowed: %s)", format_number(x$allowed, 2), x$tolerance_reason),
    wrap_lines(x$notes, "note:     "),
    "run it:", paste0("  ", x$code)
  )
}

format_tensors <- function(tensors) {
  names <- if (is.null(tensors$name)) "" else paste0(tensors$name, ": ")
  shapes <- ifelse(nzchar(tensors$shape), tensors$shape, "1")
  paste(paste0(names, shapes, " ", tensors$dtype), collapse = ", ")
}
