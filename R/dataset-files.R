# Datasets of files. The suffix determines the kind of a file; its files determine that of a folder.

table_suffix <- "[.](csv|tsv|txt)([.](gz|bz2))?$|[.](parquet|feather|arrow|ipc|h5|hdf5)$"
records_suffix <- "[.]tfrecords?([.]gz)?$"
image_suffix <- "[.](jpe?g|png|gif|bmp|tiff?)$"
saved_manifest <- "gpukeras-dataset.json" # written by gpu_dataset_save()
url_scheme <- "^[A-Za-z][A-Za-z0-9+.-]+://" # two letters at least: "C:/" is a drive
url_query <- "[?][^?*=/]+=.*$"

#' @param format Format of the files: `"csv"`, `"parquet"`, `"feather"` (also called Arrow),
#'   `"hdf5"`, or `"auto"`: by their suffixes.
#' @param image_size Height and width to resize images to, 224 x 224 by default.
#' @param color What to decode images to: `"rgb"`, `"rgba"` or `"grayscale"`.
#' @param interpolation How to resize images: `"bilinear"` (the default), `"nearest"`, `"bicubic"`,
#'   `"area"` or another interpolation of Keras.
#' @param crop_to_aspect_ratio Whether to crop images to the target aspect ratio before resizing,
#'   instead of distorting them.
#' @param description For TFRecord files from another program: a named list with the type of each
#'   feature.
#' @section Tables in files:
#' `x` may be the path of a CSV (also `.gz` or `.bz2`), Parquet, Feather or HDF5 file, several
#' paths, a glob such as `"flights/*.parquet"`, or a folder. `y` is then the name of the label
#' column, and `weights` can name a column too. The files may be larger than memory: they are read
#' once, in batches. The encoded rows stay in memory up to 256 MiB; beyond that they go to a scratch
#' file in R's temporary folder, which is removed with the dataset. `cache = "host"` keeps them in
#' memory and `cache = "disk"` on disk, whatever their size; [gpu_dataset_save()] keeps them for
#' later sessions. Both shuffle all rows, and neither needs the files after the dataset is made.
#' Rows of tables are always kept: `cache = FALSE` means `"auto"` for them. Reading Parquet takes
#' some 2 MiB for each selected column.
#'
#' Columns are encoded like those of a data frame, and `na`, `encode`, `scale` and `validation` have
#' the same meaning. Memory grows by some 20 bytes per row (labels and row orders), and with
#' `na = "impute"` also by a code of 1 to 4 bytes for each category. All distinct texts of a
#' character column are kept while it is learned.
#'
#' Factors of several files are combined: their levels are in the order in which the files have
#' them. Columns that `columns` leaves out are not read, and may have any type. `on_error = "skip"`
#' leaves out broken rows and files, and `print()` shows how many.
#'
#' Of an HDF5 file (`.h5`, `.hdf5`) each data set of one axis is a column, named by its path in the
#' file. One of two axes is a column for each place of the second: `x.1`, `x.2`, as
#' `data.frame(x = matrix)` calls them. A data frame that R's packages wrote has its own columns.
#' Rows are the first axis, as in Python: R's packages write a matrix transposed, so write `t(x)`.
#' The smallest whole number is R's `NA`. Data sets with more axes, such as images, are no columns,
#' and what another file holds is not read. HDF5 checks values only where it was told to when they
#' were written, and its own library may hang on texts in a damaged file.
#'
#' A formula takes paths as `data` if it only names columns: `arr_delay ~ dep_delay + distance`, or
#' `arr_delay ~ .`. [gpu_predict()] and [gpu_evaluate()] take paths as well.
#' @section Object stores:
#' Tables may lie in a bucket: `"s3://bucket/flights/*.parquet"`, and so with `gs://` (Google Cloud
#' Storage) and `abfs://` (Azure: `"abfs://container@account.dfs.core.windows.net/flights"`), with
#' globs and folders. A file of a web server is read by its address, `"https://host/flights.csv"`,
#' if the server gives ranges; `http://` is for servers of this computer only. Everything on tables
#' in files holds for them too.
#'
#' Each object is read once, by ranges: of Parquet and Feather files the footer and the selected
#' columns. Reading Parquet takes up to 128 MiB more than from a disk, for the columns of a row
#' group. CSV is read as a stream. A `.npy` array is copied to R's temporary folder, and the copy is
#' removed with the dataset. Images and TFRecord files are read from this computer only.
#'
#' Credentials, region and endpoint come from the environment: `AWS_ACCESS_KEY_ID`,
#' `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_PROFILE`, `AWS_REGION` and `AWS_ENDPOINT_URL`
#' (for servers other than Amazon's), or Amazon's configuration files;
#' `GOOGLE_APPLICATION_CREDENTIALS`; `AZURE_STORAGE_ACCOUNT` with `AZURE_STORAGE_KEY` or
#' `AZURE_STORAGE_SAS_TOKEN`, or what Azure finds by itself. An address may say them instead:
#' `"s3://key:secret@bucket/..."` (percent-encoded), `"https://user:password@host/..."`, a signed
#' address, and the options `?region=`, `?endpoint_override=` and `?anonymous=true` (for public
#' buckets). Messages, plans and recipes show addresses without user, password and options; R's own
#' `traceback()` shows calls as you wrote them.
#'
#' What is transient, such as an answer with status 500 or 503, a connection that is lost or a body
#' that breaks off, is asked for again after growing pauses. What lasts is an error of class
#' `gpukeras_error_data` that names the object. So is an object that is gone, or whose size or ETag
#' has changed since it was opened. Nothing of a dataset that failed is left.
#' @section Workers that read their own files:
#' The workers of a [gpu_cluster()] all read the whole data by default, and train their part of each
#' batch. With `shard = "workers"`, each reads only a part of the files: tables in CSV, Feather and
#' HDF5 files are divided file by file, Parquet files by row groups, so that one large file serves
#' all workers. The parts are about equal and have no row in common, and `print()` shows this
#' worker's. All workers call `gpu_dataset()` with the same paths, and a `recipe`, which was learned
#' from one of the files, for example: otherwise each worker would learn its own means and levels.
#' Each batch takes equally many rows of each worker, in an order that is new in each epoch. An
#' epoch ends when the smallest part does; a short last batch is left out. `validation` and
#' `class_weight` do not apply: give files of their own to `gpu_fit(validation = )`.
#' @section Images:
#' `x` may be a folder with one subfolder per class. The names of the subfolders become the levels,
#' in alphabetical order. JPEG, PNG, GIF (the first frame), BMP and TIFF files are read; other and
#' hidden files are ignored. For [gpu_predict()], `x` may also be paths of image files. All cores
#' decode and resize the images once. The images are kept as bytes: in memory up to 256 MiB, in a
#' scratch file beyond. With `cache = FALSE` they are decoded again in each epoch.
#' [gpu_dataset_save()] keeps them for later sessions. Values are 0 to 255, as in Keras, or 0 to 1
#' with `scale = TRUE`; the device converts them to floats.
#'
#' `augment` runs on the device too, with separate random numbers for each row and new ones in each
#' epoch: crop, flip, rotation, zoom and translation in one resampling, then brightness and contrast
#' (arrays need a `value_range` for these two). Validation, evaluation and prediction take the
#' centre of a `crop`. With `mixup`, each class becomes one column: compile the model with
#' `"categorical_crossentropy"`.
#' @rdname gpu_dataset
#' @export
gpu_dataset.character <- function(x, y = NULL, ..., columns = NULL, format = "auto", # nolint
                                  weights = NULL, image_size = NULL, color = NULL,
                                  interpolation = NULL, crop_to_aspect_ratio = NULL,
                                  description = NULL) {
  if (!is.null(dim(x)) || is_npy(x)) {
    return(gpu_dataset.default(x, y, ..., weights = weights))
  }
  is_named <- function(value) rlang::is_string(value) && !is_npy(value)
  columned <- is_named(y) || is.character(y) && identical(file_kind(x, format), "table")
  options <- list(
    format = format, columns = as_names(columns), color = color,
    image_size = as_placed(image_size, c("height", "width")),
    interpolation = interpolation, crop_to_aspect_ratio = crop_to_aspect_ratio,
    description = named_list(description), label = if (columned) y,
    weights = if (is_named(weights)) weights
  )
  features <- as_file(x, "x", environment(), drop_null(options))
  labels <- if (!is.null(y) && !columned) as_labels(y, "y")
  source <- new_source(features, labels, scale = scaled_by_default(features))
  gpu_dataset.default(source, ..., weights = if (!is_named(weights)) weights)
}

# The dataset of a formula whose data are files.
formula_files <- function(formula, data, ..., call = caller_env()) {
  columns <- formula_columns(formula, call)
  gpu_dataset.character(data, columns$label, ..., columns = columns$features)
}

# Paths of files as features; absolute, so that they stay valid after setwd().
as_file <- function(path, arg, call, options = list()) {
  kind <- file_kind(path, options$format %||% "auto")
  if (is.null(kind)) {
    abort_gpukeras(
      sprintf("`%s` must be numeric, a data frame or paths of files, not %s.", arg, describe(path)),
      code = "data",
      hint = "Files are known by their suffixes: .csv, .parquet, .feather, .h5, .tfrecord, .npy.",
      arg = arg, call = call
    )
  }
  paths <- absolute_paths(path)
  # Threads of Arrow's S3 client would crash R when it ends.
  if (any(is_url(paths))) at_session_end("stores", function() call_core("close_stores"))
  if (kind == "saved") {
    check_saved_options(options, call)
  }
  if (kind %in% c("npy", "saved")) {
    return(list(kind = kind, path = paths))
  }
  taken <- switch(kind,
    table = c("format", "columns", "label", "weights"),
    images = c("image_size", "color", "interpolation", "crop_to_aspect_ratio"),
    records = c("description", "label", "weights", "image_size", "color")
  )
  check_file_options(options, taken, kind, call)
  c(list(kind = kind, paths = as.list(paths)), options[intersect(names(options), taken)])
}

# Whether strings are paths. A single string always is one: if not, as_file() raises the error.
is_path <- function(x) {
  is.character(x) && is.null(dim(x)) && (length(x) == 1 || !is.null(file_kind(x)))
}

file_kind <- function(path, format = "auto") {
  remote <- is_url(path)
  path[remote] <- sub(url_query, "", path[remote])
  has <- function(pattern) all(grepl(pattern, path, ignore.case = TRUE))
  if (length(path) == 0 || anyNA(path)) {
    NULL
  } else if (format != "auto") {
    "table"
  } else if (is_npy(path)) {
    "npy"
  } else if (has(records_suffix)) {
    "records"
  } else if (has(image_suffix)) {
    "images"
  } else if (rlang::is_string(path) && dir.exists(path)) {
    folder_kind(path)
  } else if (all(is_table(path))) {
    "table"
  }
}

# Whether each path is the address of an object, such as "s3://bucket/rows.csv"; by bytes, as any
# text of a call is looked at, also text of a damaged encoding.
is_url <- function(path) grepl(url_scheme, path, useBytes = TRUE)

# Models and saved datasets are files of this computer.
check_local_path <- function(path, arg = caller_arg(path), call = caller_env()) {
  if (any(is_url(path))) {
    abort_gpukeras(
      sprintf("`%s` must be a path of this computer, not an address.", arg),
      code = "spec", hint = "Copy the file from there, or to there, by another program.",
      arg = arg, call = call
    )
  }
}

# Whether each path is a table, an address, a folder, an existing file or a glob.
is_table <- function(path) {
  is_url(path) | grepl(table_suffix, path, ignore.case = TRUE) | dir.exists(path) |
    file.exists(path) | grepl("[*?[]", path)
}

folder_kind <- function(path) {
  if (file.exists(file.path(path, saved_manifest))) {
    return("saved")
  }
  inside <- list.files(path)
  if (any(grepl(records_suffix, inside, ignore.case = TRUE))) {
    return("records")
  }
  tables <- grepl(table_suffix, inside, ignore.case = TRUE)
  folders <- length(list.dirs(path, recursive = FALSE)) > 0
  if (!any(tables) && (folders || length(inside) == 0)) "images" else "table"
}

is_npy <- function(path) {
  rlang::is_string(path) &&
    grepl("[.]npy$", if (is_url(path)) sub(url_query, "", path) else path, ignore.case = TRUE)
}

# Works for missing files and globs too, which normalizePath() leaves as they are. Addresses stay.
absolute_paths <- function(path) {
  remote <- is_url(path)
  path[!remote] <- absolute_local(path[!remote])
  enc2utf8(path)
}

absolute_local <- function(path) {
  path <- path.expand(path)
  relative <- !grepl("^(/|\\\\|[A-Za-z]:)", path)
  path[relative] <- file.path(getwd(), path[relative])
  normalizePath(path, winslash = "/", mustWork = FALSE)
}

# The label and the features of a formula for files and databases, whose columns R does not know.
formula_columns <- function(formula, call) {
  parts <- formula_parts(formula)
  named <- all(vapply(c(parts$labels, parts$features, parts$weights), is.name, NA))
  if (!named || length(c(parts$offsets, parts$strata)) > 0) {
    abort_gpukeras(
      "A formula for files and databases can only name columns, or all of them by `.`.",
      code = "data", hint = "Compute other terms first, and save them as columns.",
      arg = "formula", call = call
    )
  }
  features <- vapply(parts$features, as.character, "")
  found <- list(
    label = if (!is.null(parts$labels)) vapply(unname(parts$labels), as.character, ""),
    features = if (!"." %in% features) features
  )
  if (!is.null(parts$weights)) found$weights <- as.character(parts$weights)
  found
}

# The columns of new files that hold the labels and the weights, by the formula of the model's
# recipe; given ones come first.
file_labels <- function(formula, label, weights, call) {
  parts <- if (nzchar(formula)) formula_columns(parse_formula(formula, call), call)
  list(label %||% parts$label, if (is.null(weights)) parts$weights)
}

check_file_options <- function(options, taken, kind, call) {
  left <- setdiff(names(options)[!names(options) %in% "format"], taken)
  if (length(left) > 0) {
    what <- c(table = "tables", images = "images", records = "TFRecord files")[[kind]]
    arg <- if (left[1] == "label") "y" else left[1]
    abort_gpukeras(
      sprintf("`%s` does not apply to %s.", arg, what),
      code = "spec", arg = arg, call = call
    )
  }
}

drop_null <- function(x) x[!vapply(x, is.null, NA)]

# Names as a list, which stays one if it has one element.
as_names <- function(names) {
  if (!is.null(names)) as_listed(if (is.atomic(names)) as.character(names) else names)
}

# Values as a list without names. The core refuses what has none, such as a function.
as_listed <- function(x) if (rlang::is_vector(x) || is.null(x)) as.list(unname(x)) else x
