# Datasets on disk, saved and opened again; TFRecord files of others.

saved_path <- function(frame = parent.frame()) {
  withr::local_tempfile(.local_envir = frame)
}

# What Python holds of a dataset: features, labels, weights.
rows_of <- function(data) {
  lapply(as_r(data$handle$arrays), as_r)
}

write_examples <- function(rows, path) {
  tf <- runtime()$tensorflow()
  feature <- function(value) {
    if (is.character(value)) {
      value <- list(reticulate::import_builtins(convert = FALSE)$bytes(value, "utf-8"))
      return(tf$train$Feature(bytes_list = tf$train$BytesList(value = value)))
    }
    if (is.integer(value)) {
      return(tf$train$Feature(int64_list = tf$train$Int64List(value = as.list(value))))
    }
    tf$train$Feature(float_list = tf$train$FloatList(value = as.list(value)))
  }
  writer <- tf$io$TFRecordWriter(path)
  for (row in rows) {
    features <- tf$train$Features(feature = lapply(row, feature))
    writer$write(tf$train$Example(features = features)$SerializeToString())
  }
  writer$close()
  path
}

# Saving -------------------------------------------------------------------------------------------

test_that("a saved dataset is opened as it was", {
  skip_without_tensorflow()
  path <- saved_path()
  data <- gpu_dataset(y ~ ., mixed_frame(), validation = 0.25, weights = 1:40, seed = 3)
  expect_identical(gpu_dataset_save(data, path, verbose = FALSE), path)
  expect_invisible(gpu_dataset_save(data, path, overwrite = TRUE, verbose = FALSE))
  again <- gpu_dataset(path)
  expect_s3_class(again, "gpu_dataset")
  expect_identical(rows_of(again), rows_of(data))
  expect_identical(as_r(again$handle$validation_rows), as_r(data$handle$validation_rows))
  expect_identical(as_r(again$handle$order(2L)), as_r(data$handle$order(2L)))
  expect_identical(again[c("shape", "columns", "label")], data[c("shape", "columns", "label")])
})

test_that("NumPy reads what was saved", {
  skip_without_tensorflow()
  path <- saved_path()
  data <- gpu_dataset(y ~ ., mixed_frame(), validation = 0.25, weights = 1:40, seed = 3)
  gpu_dataset_save(data, path, verbose = FALSE)
  numpy <- reticulate::import("numpy")
  read <- function(name) numpy$load(file.path(path, name), mmap_mode = "r", allow_pickle = FALSE)
  expect_setequal(
    list.files(path),
    c("gpukeras-dataset.json", "x.npy", "y.npy", "weights.npy", "validation.npy")
  )
  expect_identical(lapply(c("x.npy", "y.npy", "weights.npy"), read), rows_of(data))
  held <- as.vector(as_r(data$handle$validation_rows))
  expect_identical(which(read("validation.npy") == 1) - 1L, held)
})

test_that("a model of saved rows predicts data frames", {
  skip_without_tensorflow()
  path <- saved_path()
  data <- gpu_dataset(y ~ ., mixed_frame(), seed = 3)
  gpu_dataset_save(data, path, verbose = FALSE)
  models <- lapply(list(data, gpu_dataset(path)), trained)
  predictions <- lapply(models, gpu_predict, newdata = mixed_frame(7))
  expect_identical(predictions[[1]], predictions[[2]])
  expect_length(predictions[[1]], 7)
})

test_that("saving says what it did, or nothing", {
  skip_without_tensorflow()
  path <- saved_path()
  data <- gpu_dataset(a_matrix(), seed = 1)
  expect_output(gpu_dataset_save(data, path), "^saved 60 rows, [0-9.]+ B, in [0-9.]+ s$")
  expect_silent(gpu_dataset_save(data, path, overwrite = TRUE, verbose = FALSE))
})

test_that("an interrupt leaves what was there", {
  skip_without_tensorflow()
  path <- saved_path()
  gpu_dataset_save(gpu_dataset(a_matrix(10), seed = 1), path, verbose = FALSE)
  listener <- call_listener(FALSE)
  expect_false(listener(list(step = 1, steps = 2, bytes = 3)))
  record <- call_core("save_dataset", list(
    data = gpu_dataset(a_matrix(20), seed = 1)$handle, path = path, overwrite = TRUE,
    on_event = function(event) TRUE
  ))
  expect_identical(record$stopped, "interrupted")
  expect_identical(gpu_dataset(path)$plan$rows, 10L)
  expect_length(list.files(dirname(path), basename(path), all.files = TRUE), 1)
})

test_that("errors of saving are classed and name the argument", {
  skip_without_tensorflow()
  path <- saved_path()
  data <- gpu_dataset(a_matrix(), seed = 1)
  gpu_dataset_save(data, path, verbose = FALSE)
  expect_arg <- function(code, class, arg) {
    expect_identical(expect_error(code, class = class)$arg, arg)
  }
  expect_arg(gpu_dataset_save(data, path), "gpukeras_error_data", "path")
  expect_arg(gpu_dataset_save(data, 3), "gpukeras_error_spec", "path")
  expect_arg(gpu_dataset_save(data, path, overwrite = 1), "gpukeras_error_spec", "overwrite")
  expect_arg(gpu_dataset_save(data, path, overwrite = NA), "gpukeras_error_spec", "overwrite")
  expect_arg(gpu_dataset_save(data, path, verbose = 2), "gpukeras_error_spec", "verbose")
  expect_arg(gpu_dataset_save(iris, path), "gpukeras_error_spec", "data")
})

test_that("what was settled cannot be chosen anew", {
  skip_without_tensorflow()
  path <- saved_path()
  gpu_dataset_save(gpu_dataset(mpg ~ ., mtcars, seed = 1), path, verbose = FALSE)
  expect_error(gpu_dataset(path, y = "mpg"), class = "gpukeras_error_spec", "`y` was settled")
  expect_error(gpu_dataset(path, scale = TRUE), class = "gpukeras_error_spec", "`scale` was")
  expect_error(gpu_dataset(path, na = "drop"), class = "gpukeras_error_spec", "`na` was settled")
  expect_error(
    gpu_dataset(path, recipe = gpu_dataset(mpg ~ ., mtcars)),
    class = "gpukeras_error_spec", "`recipe` was settled"
  )
  expect_snapshot(gpu_dataset(path, na = "drop"), error = TRUE)
  expect_identical(gpu_dataset(path, batch_size = 5)$plan$batch_size, 5L)
})

test_that("a file that is missing or damaged is named; damaged rows are skipped and counted", {
  skip_without_tensorflow()
  path <- saved_path()
  data <- gpu_dataset(matrix(sin(1:1600000), 40000, 40), seed = 1) # two blocks of 4 MiB
  gpu_dataset_save(data, path, verbose = FALSE)
  file <- file.path(path, "x.npy")
  bytes <- readBin(file, "raw", file.size(file))
  bytes[length(bytes)] <- xor(bytes[length(bytes)], as.raw(1))
  writeBin(bytes, file)
  condition <- expect_error(gpu_dataset(path), class = "gpukeras_error_data")
  expect_match(one_line(condition), "the file x.npy of .* is damaged")
  skipping <- gpu_dataset(path, on_error = "skip")
  left <- floor(4 * 2^20 / (40 * 4))
  expect_equal(skipping$plan$rows, left)
  expect_match(skipping$plan$skipped, "rows left out: x.npy is damaged")
  expect_identical(rows_of(skipping)[[1]], rows_of(data)[[1]][seq_len(left), ])
  file.remove(file)
  for (on_error in c("stop", "skip")) {
    condition <- expect_error(gpu_dataset(path, on_error = on_error), class = "gpukeras_error_data")
    expect_match(one_line(condition), "the file x.npy of .* is missing")
  }
})

# TFRecord files -----------------------------------------------------------------------------------

test_that("scalars of TFRecord files are columns", {
  skip_without_tensorflow()
  path <- withr::local_tempfile(fileext = ".tfrecord")
  rows <- lapply(1:20, function(i) {
    list(age = i + 0.5, city = if (i %% 2 == 0) "\u00e9" else "b", n = i, label = i %% 3L)
  })
  write_examples(rows, path)
  note <- expect_warning(
    data <- gpu_dataset(path, y = "label", scale = FALSE, seed = 1),
    class = "gpukeras_warning_data"
  )
  expect_match(one_line(note), "age (float32), city (string)", fixed = TRUE)
  expect_identical(vapply(data$columns, `[[`, "", "name"), c("age", "city", "n"))
  expect_identical(rows_of(data)[[1]][4, ], c(4.5, 0, 1, 4))
  expect_identical(as.vector(rows_of(data)[[2]]), as.double(1:20 %% 3))
})

test_that("what records hold can be described", {
  skip_without_tensorflow()
  path <- withr::local_tempfile(fileext = ".tfrecord")
  pixels <- array(as.double(1:48), c(4, 2, 6))
  rows <- lapply(1:4, function(i) list(pixels = as.vector(t(pixels[i, , ])), class = i))
  write_examples(rows, path)
  data <- gpu_dataset(
    path, y = "class", description = list(pixels = c("float32", 2, 6), class = "factor"), seed = 1
  )
  expect_identical(rows_of(data)[[1]], pixels)
  expect_identical(unlist(data$label$levels), as.character(1:4))
  listed <- list(pixels = list(dtype = "float32", shape = c(2, 6)))
  expect_identical(rows_of(gpu_dataset(path, description = listed, seed = 1))[[1]], pixels)
  expect_identical(rows_of(gpu_dataset(path, description = c(class = "int64"), seed = 1))[[1]][, 1],
    as.vector(scale(1:4) * sqrt(4 / 3)),
    tolerance = 1e-6
  )
})

test_that("descriptions that are none, and damaged files, are errors", {
  skip_without_tensorflow()
  path <- withr::local_tempfile(fileext = ".tfrecord")
  write_examples(list(list(a = 1), list(a = 2)), path)
  expect_error(gpu_dataset(path, description = "a"), class = "gpukeras_error_spec", "must name each")
  expect_error(gpu_dataset(path, description = list(a = "real")), class = "gpukeras_error_spec")
  expect_error(gpu_dataset(path, y = "b"), class = "gpukeras_error_data", "no feature `b`")
  bytes <- readBin(path, "raw", 1000)
  writeBin(utils::head(bytes, -3), path)
  condition <- expect_error(
    gpu_dataset(path, description = list(a = "float32")),
    class = "gpukeras_error_data"
  )
  expect_identical(condition$record, 2L)
})

test_that("TFRecord files without a description are predicted by the model's recipe", {
  skip_without_tensorflow(slow = TRUE)
  path <- withr::local_tempfile(fileext = ".tfrecord")
  rows <- lapply(1:20, function(i) list(pixels = sin(i + 1:6), class = i %% 2L))
  write_examples(rows, path)
  described <- list(pixels = c("float32", 2, 3))
  data <- gpu_dataset(path, y = "class", description = described, seed = 1) |> suppressWarnings()
  model <- trained(data)
  expect_identical(gpu_predict(model, path), gpu_predict(model, data))
})
