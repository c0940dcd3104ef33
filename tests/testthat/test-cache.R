# gpu_cache(): what gpu_dataset(cache = "disk") keeps between sessions.

a_cache <- function(...) {
  entry <- function(kind, source, rows, bytes, in_use) {
    list(
      kind = kind, source = source, rows = rows, bytes = bytes, used = 1.8e9, in_use = in_use,
      key = strrep("a", 32)
    )
  }
  record <- list(
    folder = "/home/me/.cache/R/gpukeras/data", limit_bytes = 2 * 2^30, reason = "",
    program_bytes = 12345678,
    entries = list(
      entry("table", "flights-*.csv", 500000L, 80123456, TRUE),
      entry("images", "pets", 2000L, 24576000, FALSE)
    )
  )
  changes <- list(...)
  record[names(changes)] <- changes
  new_gpu_cache(record)
}

test_that("a cache prints its entries, its folder and its bound", {
  withr::local_envvar(TZ = "UTC")
  expect_snapshot({
    print(a_cache())
    print(a_cache(entries = list(), program_bytes = 0))
    print(a_cache(entries = list(), folder = "", reason = "GPUKERAS_DATA_CACHE is off"))
    print(a_cache()[1, ])
    print(a_cache()[c("kind", "source")])
  })
})

test_that("a cache is a data frame", {
  expect_s3_class(a_cache(), c("gpu_cache", "gpu_result", "data.frame"), exact = TRUE)
  expect_named(a_cache(), c("kind", "source", "rows", "bytes", "used", "in_use"))
  expect_s3_class(a_cache(entries = list())$used, "POSIXct")
  expect_identical(attr(a_cache(), "limit_bytes"), 2 * 2^30)
})

test_that("rows of a file are kept until they are removed", {
  skip_without_tensorflow()
  folder <- withr::local_tempfile()
  withr::local_envvar(GPUKERAS_DATA_CACHE = folder)
  path <- withr::local_tempfile(fileext = ".csv")
  write.csv(mtcars, path, row.names = FALSE)
  expect_identical(nrow(gpu_cache()), 0L)
  expect_false(dir.exists(folder))
  make <- function(...) gpu_dataset(path, y = "mpg", cache = "disk", seed = 1, ...)
  expect_output(print(make()), "a block at a time from the cache, [0-9.]+ (bytes|KiB), kept for later sessions")
  again <- make()
  expect_output(print(again), "from the cache, [0-9.]+ (bytes|KiB), as an earlier call kept them")
  listed <- gpu_cache()
  expect_identical(listed$source, basename(path))
  expect_identical(listed$rows, 32)
  expect_identical(attr(listed, "folder"), file.path(normalizePath(folder), "data"))
  rm(again)
  gc()
  reticulate::py_run_string("import gc; gc.collect()")
  expect_identical(nrow(gpu_cache(clean = TRUE)), 0L)
})

test_that("wrong arguments and settings are named", {
  skip_without_tensorflow()
  expect_arg <- function(code, class, arg) {
    expect_identical(expect_error(code, class = class)$arg, arg)
  }
  expect_arg(gpu_cache(clean = "yes"), "gpukeras_error_spec", "clean")
  withr::local_envvar(GPUKERAS_DATA_CACHE_GIB = "much")
  expect_arg(gpu_cache(), "gpukeras_error_spec", "GPUKERAS_DATA_CACHE_GIB")
})
