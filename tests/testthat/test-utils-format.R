test_that("bytes are shown in human units", {
  expect_identical(
    format_bytes(c(0, 40, 2048, 2^20, 3.2 * 2^20, 300 * 2^20, 2^30, 25274793984, NA)),
    c("0 B", "40 B", "2 KiB", "1 MiB", "3.2 MiB", "300 MiB", "1.0 GiB", "23.5 GiB", "?")
  )
  expect_identical(format_bytes(NULL), "?")
})

test_that("values of settings are shown as text", {
  expect_identical(format_value(NULL), "none")
  expect_identical(format_value(list()), "none")
  expect_identical(format_value(c("GPU:0", "GPU:1")), "GPU:0, GPU:1")
  expect_identical(format_value(TRUE), "TRUE")
  expect_identical(format_value(4096), "4096")
})

test_that("a count has its noun in the singular or plural", {
  expect_identical(count_of(1, "epochs"), "1 epoch")
  expect_identical(count_of(12345, "batches"), "12,345 batches")
  expect_identical(count_of(1, "categories"), "1 category")
})

test_that("numbers have significant digits of their own", {
  expect_identical(format_number(c(0.123456, 12345.6)), c("0.1235", "12350"))
  expect_identical(format_number(10000, mark = ","), "10,000")
  expect_identical(
    format_si(c(0, 999, 1000, 21307392, 1e12, NA)), c("0", "999", "1 k", "21.3 M", "1 T", "?")
  )
  expect_identical(format_si(2e6, "FLOPs"), "2 MFLOPs")
})

test_that("times and shares have three digits and their units", {
  expect_identical(
    format_time(c(9.4e-7, 0.000234, 0.00234, 0.0999, 0.5, 12.34, 3600, 0, NA)),
    c(
      "0.940 us", "234 us", "2.34 ms", "99.9 ms", "500 ms", "12.3 s", "3,600 s", "0 us", "-"
    )
  )
  expect_identical(format_percent(c(0, 0.001, 0.5, 1, NA)), c("0 %", "<1 %", "50 %", "100 %", "-"))
  expect_identical(format_factor(c(1.26, 12.4)), c("1.3 times", "12 times"))
})

test_that("long texts are shortened", {
  expect_identical(nchar(shorten_middle(strrep("x", 200))), 48L)
  expect_identical(shorten(letters[1:6], 2), "a, b, ...")
})

test_that("columns are aligned below their names", {
  cells <- list(layer = c("a", "long"), rows = c("1", "20"), c("", "<- best"))
  expect_identical(format_columns(cells, c("left", "right", "left")), c(
    "   layer  rows", "   a         1", "   long     20  <- best"
  ))
})
