# A small data frame as files, by Arrow on the Python side.
write_table <- function(frame, path) {
  pyarrow <- reticulate::import("pyarrow", convert = FALSE)
  table <- pyarrow$table(reticulate::dict(lapply(frame, function(column) {
    pyarrow$array(as.list(if (is.factor(column)) as.character(column) else column))
  })))
  if (grepl("csv$", path)) {
    utils::write.csv(frame, path, row.names = FALSE, fileEncoding = "UTF-8")
  } else if (grepl("parquet$", path)) {
    reticulate::import("pyarrow.parquet")$write_table(table, path)
  } else {
    reticulate::import("pyarrow.feather")$write_feather(table, path)
  }
  path
}

flights <- function(rows = 60) {
  i <- seq_len(rows)
  data.frame(
    arr_delay = sin(i) * 3, dep_delay = cos(i), distance = as.double(i %% 11),
    carrier = c("AA", "UA", "DL")[i %% 3 + 1], check.names = FALSE
  )
}

in_folder <- function() withr::local_tempdir(.local_envir = parent.frame())

test_that("a table's columns become features, and one its label", {
  skip_without_tensorflow()
  folder <- in_folder()
  for (suffix in c("csv", "parquet", "feather")) {
    path <- write_table(flights(), file.path(folder, paste0("f.", suffix)))
    data <- gpu_dataset(path, y = "arr_delay")
    expect_equal(data$plan$rows, 60)
    expect_equal(unlist(data$shape), 5)
    kinds <- vapply(data$columns, `[[`, "", "kind")
    expect_equal(kinds, c("number", "number", "category"))
    expect_equal(data$label$kind, "number")
  }
})

test_that("columns are selected, by argument and by formula", {
  skip_without_tensorflow()
  folder <- in_folder()
  path <- write_table(flights(), file.path(folder, "f.csv"))
  chosen <- gpu_dataset(path, y = "arr_delay", columns = c("distance", "dep_delay"))
  formula <- gpu_dataset(arr_delay ~ distance + dep_delay, data = path)
  names <- function(data) vapply(data$columns, `[[`, "", "name")
  expect_equal(names(chosen), c("distance", "dep_delay"))
  expect_equal(names(formula), names(chosen))
  expect_length(names(gpu_dataset(arr_delay ~ ., data = path)), 3)
  expect_error(
    gpu_dataset(log(arr_delay) ~ distance, data = path), "can only name columns",
    class = "gpukeras_error_data"
  )
  expect_error(
    gpu_dataset(path, y = "delay"), "has no column `delay`",
    class = "gpukeras_error_data"
  )
})

test_that("several files are one table, wherever R is by then", {
  skip_without_tensorflow()
  skip_if_not(l10n_info()[["UTF-8"]], "this locale has folders of other names")
  folder <- in_folder()
  dir.create(file.path(folder, "\u00e5r"))
  write_table(flights(30), file.path(folder, "\u00e5r", "a.parquet"))
  write_table(flights(40), file.path(folder, "\u00e5r", "b.parquet"))
  withr::local_dir(folder)
  rows <- function(x) gpu_dataset(x, y = "arr_delay")$plan$rows
  expect_equal(rows("\u00e5r/*.parquet"), 70)
  expect_equal(rows("\u00e5r"), 70)
  expect_equal(rows(c("\u00e5r/b.parquet", "\u00e5r/a.parquet")), 70)
})

test_that("the model's recipe encodes new files, and data frames too", {
  skip_without_tensorflow()
  folder <- in_folder()
  frame <- flights()
  path <- write_table(frame, file.path(folder, "train.csv"))
  new <- write_table(frame[1:7, ], file.path(folder, "new.parquet"))
  data <- gpu_dataset(path, y = "arr_delay", seed = 1)
  model <- gpu_mlp(data, units = 4)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  predicted <- gpu_predict(model, new)
  expect_length(predicted, 7)
  expect_equal(predicted, gpu_predict(model, frame[1:7, ]), tolerance = 1e-5)
  expect_equal(predicted, gpu_predict(model, frame[1:7, -1]), tolerance = 1e-5)
  expect_equal(
    gpu_evaluate(model, new), gpu_evaluate(model, frame[1:7, ]),
    tolerance = 1e-5
  )
})

test_that("a file trains to the weights that the same data frame trains to", {
  skip_without_tensorflow()
  folder <- in_folder()
  frame <- flights()
  trained <- function(data) {
    model <- gpu_mlp(data, units = 4, seed = 1)
    gpu_fit(model, data, epochs = 2, engine = "graph_loop", verbose = FALSE)
    gpu_evaluate(model, data)
  }
  expected <- trained(gpu_dataset(arr_delay ~ ., data = frame, seed = 1, batch_size = 16))
  for (suffix in c("csv", "parquet")) {
    path <- write_table(frame, file.path(folder, paste0("f.", suffix)))
    data <- gpu_dataset(path, y = "arr_delay", seed = 1, batch_size = 16)
    expect_equal(trained(data), expected, tolerance = 1e-5)
  }
})

test_that("missing values are dropped, also in new files", {
  skip_without_tensorflow()
  folder <- in_folder()
  frame <- flights()
  frame$distance[c(2, 5)] <- NA
  path <- write_table(frame, file.path(folder, "f.csv"))
  expect_error(gpu_dataset(path, y = "arr_delay"), "2 missing values")
  data <- gpu_dataset(path, y = "arr_delay", na = "drop")
  expect_equal(data$plan$dropped_rows, 2)
  model <- gpu_mlp(data, units = 4)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  expect_equal(which(is.na(gpu_predict(model, path))), c(2, 5))
})

test_that("a column of weights is none of the features", {
  skip_without_tensorflow()
  folder <- in_folder()
  frame <- cbind(flights(), w = 1)
  path <- write_table(frame, file.path(folder, "f.csv"))
  data <- gpu_dataset(path, y = "arr_delay", weights = "w")
  expect_true(data$weighted)
  expect_length(data$columns, 3)
})

test_that("what a path is goes by suffix, format and content", {
  folder <- in_folder()
  dir.create(file.path(folder, "images", "cat"), recursive = TRUE)
  dir.create(file.path(folder, "saved"))
  dir.create(file.path(folder, "tables"))
  file.create(file.path(folder, "saved", "gpukeras-dataset.json"))
  file.create(file.path(folder, "tables", "a.csv"))
  inside <- function(name) file.path(folder, name)
  expect_equal(file_kind("x.npy"), "npy")
  expect_equal(file_kind(c("a.csv", "b.CSV.gz")), "table")
  expect_equal(file_kind("dir/*.parquet"), "table")
  expect_equal(file_kind("a.tfrecords"), "records")
  expect_equal(file_kind(inside("images")), "images")
  expect_equal(file_kind(inside("saved")), "saved")
  expect_equal(file_kind(inside("tables")), "table")
  expect_equal(file_kind("data", format = "csv"), "table")
  expect_null(file_kind("some text"))
  expect_null(file_kind(c("a", "b")))
})

test_that("what does not apply to a kind of files is refused", {
  skip_without_tensorflow()
  expect_error(
    gpu_dataset("a.csv", y = "y", image_size = c(8, 8)), class = "gpukeras_error_spec"
  )
  expect_snapshot(gpu_dataset("a.csv", y = "y", image_size = c(8, 8)), error = TRUE)
  expect_error(gpu_dataset("some text"), "paths of files", class = "gpukeras_error_data")
  expect_error(gpu_dataset("none.csv", y = "y"), "does not exist", class = "gpukeras_error_data")
})

test_that("sums are split into their terms", {
  sum <- formula_columns(y ~ a + `b c` + d, NULL)
  expect_equal(sum, list(label = "y", features = c("a", "b c", "d")))
  expect_equal(formula_columns(~ a, NULL), list(label = NULL, features = "a"))
  expect_equal(formula_columns(y ~ ., NULL), list(label = "y", features = NULL))
  expect_error(formula_columns(y ~ a:b, NULL), "can only name columns")
  expect_error(formula_columns(y ~ a + offset(b), NULL), "can only name columns")
  expect_error(formula_columns(y ~ . - a, NULL), "can only name columns")
  expect_snapshot(gpu_dataset(y ~ a:b, data = "a.csv"), error = TRUE)
})

test_that("objects of an S3 server are read as files are, and credentials are shown nowhere", {
  skip_without_tensorflow(slow = TRUE)
  folder <- in_folder()
  url <- local_s3()
  frame <- flights()
  parts <- list(frame[1:40, ], frame[41:60, ])
  paths <- vapply(1:2, function(i) write_table(parts[[i]], file.path(folder, paste0(i, ".parquet"))), "")
  put_objects(url, "bucket", paths)
  made <- function(x) gpu_dataset(x, y = "arr_delay", seed = 1, batch_size = 16)
  trained <- function(data) {
    model <- gpu_mlp(data, units = 4, seed = 1)
    gpu_fit(model, data, epochs = 2, engine = "keras", verbose = FALSE)
    gpu_predict(model, "s3://bucket/2.parquet")
  }
  expect_equal(trained(made("s3://bucket/*.parquet")), trained(made(paths)))
  expect_equal(gpu_dataset(arr_delay ~ distance, data = "s3://bucket")$plan$rows, 60)

  withr::local_envvar(AWS_ENDPOINT_URL = NA, AWS_ACCESS_KEY_ID = NA, AWS_SECRET_ACCESS_KEY = NA)
  address <- sprintf("s3://key-of-tests:open-sesame@bucket/%%s?endpoint_override=%s", url)
  data <- made(sprintf(address, "1.parquet"))
  said <- c(capture.output(print(data)), capture.output(print(unclass(data))))
  missing <- expect_error(
    made(sprintf(address, "3.parquet")), "the file 3.parquet does not exist",
    class = "gpukeras_error_data"
  )
  expect_equal(missing$path, "s3://bucket/3.parquet")
  said <- c(said, conditionMessage(missing), rawToChar(serialize(missing$path, NULL, ascii = TRUE)))
  expect_false(any(grepl("sesame", said)))
  expect_false(grepl("sesame", rawToChar(serialize(unclass(data), NULL, ascii = TRUE))))
})

test_that("addresses are told from paths, and keep what they are", {
  signed <- "https://host/rows.csv.gz?X-Amz-Signature=a/b.png"
  addresses <- c("s3://bucket/*.parquet", "abfs://c@a.dfs.core.windows.net/rows.csv", signed)
  expect_equal(absolute_paths(addresses), addresses)
  expect_equal(is_url(c(addresses, "C:/rows.csv", "rows.csv")), c(TRUE, TRUE, TRUE, FALSE, FALSE))
  expect_false(expect_no_warning(is_url("bad\xff")))
  expect_equal(file_kind(addresses), "table")
  expect_equal(file_kind("gs://bucket/folder"), "table")
  expect_equal(file_kind("s3://bucket/x.npy?region=eu-north-1"), "npy")
  expect_equal(file_kind("https://host/cat.png"), "images")
})

test_that("images of stores are refused, and so are other schemes, without the address", {
  skip_without_tensorflow()
  refused <- function(x) {
    error <- expect_error(gpu_dataset(x, y = "y"), class = "gpukeras_error")
    expect_false(grepl("sesame", conditionMessage(error)))
    conditionMessage(error)
  }
  expect_match(refused("ftp://me:open-sesame@host/rows.csv"), "ftp:// is not read")
  expect_match(refused("http://me:open-sesame@gpukeras.invalid/rows.csv"), "does not protect")
  expect_match(refused("s3://me:open/sesame@host/rows.csv"), "names no bucket")
  expect_false(grepl("sesame", format(conditionCall(
    expect_error(gpu_dataset("ftp://me:open-sesame@host/rows.csv", y = "y"))
  ))))
  loading <- rlang::catch_cnd(gpu_load("s3://me:open-sesame@host/m.keras"))
  expect_snapshot(gpu_load("s3://bucket/m.keras"), error = TRUE)
  expect_false(grepl("sesame", paste(conditionMessage(loading), format(conditionCall(loading)))))
  pictures <- "https://me:open-sesame@host/cat.png"
  error <- expect_error(gpu_dataset(pictures, y = 1), class = "gpukeras_error_data")
  expect_match(conditionMessage(error), "images are read from this computer only")
})

# Data sets as Python writes them: rows first.
write_hdf5 <- function(path, ...) {
  file <- reticulate::import("h5py")$File(path, "w")
  on.exit(file$close())
  sets <- list(...)
  for (name in names(sets)) file$create_dataset(name, data = sets[[name]])
  path
}

test_that("an HDF5 file is a table, and its matrices are columns", {
  skip_without_tensorflow()
  folder <- in_folder()
  frame <- flights()
  x <- unname(as.matrix(frame[, c("dep_delay", "distance")]))
  path <- write_hdf5(file.path(folder, "f.h5"), x = x, y = as.array(frame$arr_delay))
  data <- gpu_dataset(path, y = "y", scale = FALSE)
  expect_equal(vapply(data$columns, `[[`, "", "name"), c("x.1", "x.2"))
  expect_equal(unname(data[]$x), x, tolerance = 1e-6)
  expect_equal(as.numeric(data[]$y), frame$arr_delay, tolerance = 1e-6)
  transposed <- write_hdf5(file.path(folder, "t.h5"), x = t(x), y = as.array(frame$arr_delay))
  expect_error(
    gpu_dataset(transposed, y = "y"), "has 2 rows in `x` and 60 in `y`",
    class = "gpukeras_error_data"
  )
  expect_error(
    gpu_dataset(write_hdf5(file.path(folder, "i.h5"), x = array(0, c(5, 2, 2)))),
    "nested column `x`",
    class = "gpukeras_error_data"
  )
})
