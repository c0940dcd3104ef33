# Datasets of Arrow's record batches: of the packages arrow and nanoarrow, and of Python objects.
# The rows cross to pyarrow through the Arrow C stream, without a copy in R.

arrow_classes <- c(
  "ArrowTabular", "RecordBatchReader", "Dataset", "arrow_dplyr_query", "nanoarrow_array_stream"
)

#' @export
gpu_dataset.ArrowTabular <- function(x, y = NULL, ...) { # nolint: object_name_linter.
  arrow_dataset(x, y, ...)
}

#' @export
gpu_dataset.RecordBatchReader <- gpu_dataset.ArrowTabular # nolint: object_name_linter.

#' @export
gpu_dataset.Dataset <- gpu_dataset.ArrowTabular # nolint: object_name_linter.

#' @export
gpu_dataset.arrow_dplyr_query <- gpu_dataset.ArrowTabular # nolint: object_name_linter.

# arrow's reader becomes one of pyarrow by arrow's own conversion. A reader may call R functions, so
# its rows are read on R's main thread.
arrow_dataset <- function(x, y = NULL, ...) {
  # arrow is named as a text because gpukeras does without it.
  reader <- getExportedValue("arrow", "as_record_batch_reader")(x)
  stream_dataset(list(source = as_python(reader), here = TRUE), y, ...)
}

#' @export
gpu_dataset.nanoarrow_array_stream <- function(x, y = NULL, ...) { # nolint
  address <- getExportedValue("nanoarrow", "nanoarrow_pointer_addr_chr")(x)
  stream_dataset(list(address = address), y, ...)
}

#' @export
gpu_dataset.python.builtin.object <- function(x, y = NULL, ..., query = NULL) { # nolint
  if (!is.null(query)) {
    if (rlang::is_string(query)) check_columns_of(query)
    return(stream_dataset(list(connection = x, query = query), y, ...))
  }
  if (has_python(x, "cursor")) {
    abort_no_query("A connection of Python needs `query`.")
  }
  if (!is_python_stream(x)) {
    return(gpu_dataset.default(x, y, ...))
  }
  stream_dataset(list(source = x), y, ...)
}

# Whether a Python object gives record batches, or is a connection that does.
is_python_stream <- function(x) {
  is_python(x) && (
    inherits(x, "pyarrow._dataset.Dataset") ||
      has_python(x, c("__arrow_c_stream__", "to_arrow_reader", "cursor"))
  )
}
