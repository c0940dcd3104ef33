# gpu_dataset_save(): datasets on disk.

#' Save a dataset, so that later runs start at full speed
#'
#' Writes the prepared rows of a [gpu_dataset()]: encoded, with labels, weights, the validation
#' split, and the recipe. `gpu_dataset(path)` opens the folder again, with the same rows and the
#' same split; it need not parse or learn anything again. A model trained on it gets the original
#' recipe.
#'
#' @section The folder:
#' The folder holds one NumPy file for each field, a row of which is a row of the dataset: `x.npy`
#' and, if there are any, `y.npy`, `weights.npy` and `validation.npy` (1 for validation rows, else
#' 0). `gpukeras-dataset.json` describes them, with the recipe and checksums. The values are as the
#' model gets them: 32-bit floats, bytes of images, or 32-bit integers. Any program that reads
#' `.npy` files can read them, Python with NumPy alone:
#' ```
#' import numpy
#' x = numpy.load("cars/x.npy", mmap_mode = "r")
#' ```
#'
#' The folder is written atomically: under a hidden name beside its path, then renamed. An error, an
#' interrupt, a full disk or a killed process leaves an earlier folder unchanged. The next call for
#' the same path removes files that a killed process left behind.
#'
#' Opening the folder verifies all checksums. Few rows are then copied to memory; for more, blocks
#' are mapped from the files when they are needed. A file that is missing, shortened or changed is
#' an error that names it; `on_error = "skip"` leaves out and counts the rows of a damaged block,
#' of some 4 MiB. Options that were applied when the rows were saved (`y`, `scale`, `encode`, `na`,
#' `validation`, `recipe` and so on) cannot be changed.
#' @param data A [gpu_dataset()]. Streamed rows, from a function or a `tf.data.Dataset`, are saved
#'   for one epoch, which must end: set `steps` if it has no end.
#' @param path Path of the folder to write. Its parent folder must exist.
#' @param overwrite Whether to replace a folder that an earlier call wrote. A folder that holds
#'   anything else is never deleted.
#' @param verbose Whether to show progress.
#' @return `path`, invisibly.
#' @section Errors:
#' `gpukeras_error_data` if the path exists, cannot be written, or the disk is full;
#' `gpukeras_error_spec` for an invalid option.
#' @examplesIf gpukeras:::can_run_examples()
#' path <- tempfile("cars-")
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' gpu_dataset_save(train, path, verbose = FALSE)
#' gpu_dataset(path)
#' @export
gpu_dataset_save <- function(data, path, overwrite = FALSE, verbose = TRUE) {
  data <- check_dataset(data)
  check_string(path)
  check_local_path(path)
  check_no_na_options(list(overwrite = overwrite))
  check_flag(verbose)
  # The listener handles interrupts between two blocks, where no file is half written.
  record <- suspendInterrupts(call_core("save_dataset", list(
    data = data$handle, path = path.expand(path), overwrite = overwrite,
    on_event = call_listener(verbose, "saving", "rows")
  )))
  if (record$stopped == "interrupted") {
    rlang::interrupt()
  }
  if (verbose) {
    cat_lines(format_saved(record))
  }
  invisible(path)
}

format_saved <- function(record) {
  sprintf(
    "saved %s, %s, in %.1f s", count_of(record$rows, "rows"), format_bytes(record$bytes),
    record$elapsed_s
  )
}

# Opening ------------------------------------------------------------------------------------------

# Refuses options of gpu_dataset() that were applied when the rows were saved.
check_saved_options <- function(options, call) {
  given <- setdiff(names(options), "format")
  if (length(given) > 0) {
    name <- if (given[1] == "label") "y" else given[1]
    abort_gpukeras(
      sprintf("`%s` was settled when the rows were saved.", name),
      code = "spec", hint = "Leave it out, or save the dataset again with other options.",
      arg = name, call = call
    )
  }
}

# Whether numbers of files are standardised by default: not saved rows and arrays, nor images, which
# pretrained models take from 0 to 255.
scaled_by_default <- function(features, call = caller_env()) {
  switch(features$kind,
    saved = FALSE,
    images = FALSE,
    records = call_core("describe_records", list(features = features), call)$kind != "array",
    TRUE
  )
}

# Opens a saved folder; anything else as it is.
open_saved <- function(x) {
  x <- resolve_saved(x)
  if (rlang::is_string(x) && file.exists(file.path(x, saved_manifest))) gpu_dataset(x) else x
}
