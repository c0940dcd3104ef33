arrow_rows <- function() {
  i <- seq_len(200)
  data.frame(price = sin(i), weight = cos(i), kind = c("a", "b")[i %% 2 + 1])
}

# A table of pyarrow, as Python gives it.
arrow_table <- function(frame = arrow_rows()) {
  pyarrow <- reticulate::import("pyarrow", convert = FALSE)
  pyarrow$table(reticulate::r_to_py(lapply(frame, as.list)))
}

test_that("Python objects with an Arrow stream are rows", {
  skip_without_tensorflow()
  table <- arrow_table()
  same <- gpu_dataset(price ~ ., data = arrow_rows(), seed = 1)[1:200]
  reader <- table$to_reader(max_chunksize = 64L)
  dataset <- reticulate::import("pyarrow.dataset", convert = FALSE)$dataset(table)
  for (object in list(table, reader, dataset)) {
    expect_equal(gpu_dataset(object, y = "price", seed = 1)[1:200], same)
  }
  expect_equal(gpu_dataset(price ~ ., data = table, seed = 1)[1:200], same)
  expect_equal(gpu_dataset(table, y = "price", columns = "weight")$shape, 1)
})

test_that("a connection of DuckDB or ADBC takes a query", {
  skip_without_tensorflow()
  skip_if_not(reticulate::py_module_available("duckdb"), "DuckDB is not installed for Python")
  con <- reticulate::import("duckdb", convert = FALSE)$connect()
  query <- "SELECT range AS a, range % 2 = 0 AS b, range * 0.5::DOUBLE AS y FROM range(1000)"
  data <- gpu_dataset(con, query = query, y = "y", scale = FALSE, shuffle = FALSE)
  expect_equal(as.vector(data[1:3]$y), c(0, 0.5, 1))
  expect_equal(unname(data[1:3]$x), cbind(0:2, c(1, 0, 1)))
  expect_error(
    gpu_dataset(con, query = "SELEC 1", y = "y"), "cannot be read",
    class = "gpukeras_error_data"
  )
  expect_equal(gpu_dataset(y ~ a, data = con, query = query)$plan$rows, 1000)
  expect_snapshot(gpu_dataset(con, y = "y"), error = TRUE)
  skip_if_not(reticulate::py_module_available("adbc_driver_sqlite"), "ADBC is not installed")
  adbc <- reticulate::import("adbc_driver_sqlite.dbapi", convert = FALSE)$connect()
  data <- gpu_dataset(y ~ a, data = adbc, query = "SELECT 1.5 AS a, 2.5 AS y UNION SELECT 3.5, 4")
  expect_equal(data$plan$rows, 2)
  adbc$close()
})

test_that("a stream in memory is moved by its address, as nanoarrow gives it", {
  skip_without_tensorflow()
  ctypes <- reticulate::import("ctypes", convert = FALSE)
  memory <- ctypes$create_string_buffer(64L) # more than a struct ArrowArrayStream
  arrow_table()$to_reader()$`_export_to_c`(ctypes$addressof(memory))
  address <- reticulate::py_str(ctypes$addressof(memory))
  data <- stream_dataset(list(address = address), "price", seed = 1)
  expect_equal(data[1:200], gpu_dataset(price ~ ., data = arrow_rows(), seed = 1)[1:200])
})

test_that("objects of arrow and nanoarrow cross without a copy in R", {
  skip_without_tensorflow()
  skip_if_not_installed("arrow")
  skip_if_not_installed("nanoarrow")
  same <- gpu_dataset(price ~ ., data = arrow_rows(), seed = 1)[1:200]
  table <- getExportedValue("arrow", "arrow_table")(arrow_rows())
  stream <- getExportedValue("nanoarrow", "as_nanoarrow_array_stream")(arrow_rows())
  for (object in list(table, getExportedValue("arrow", "as_record_batch_reader")(table), stream)) {
    expect_equal(gpu_dataset(object, y = "price", seed = 1)[1:200], same)
  }
})

test_that("other Python objects are refused as before", {
  skip_without_tensorflow()
  expect_error(gpu_dataset(reticulate::import("json"), y = 1), class = "gpukeras_error_data")
  expect_false(is_python_stream(1))
  array <- reticulate::np_array(matrix(1:4, 2), "float32")
  expect_equal(gpu_dataset(array, c(1, 2))$plan$rows, 2)
})
