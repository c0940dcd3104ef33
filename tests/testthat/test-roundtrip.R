# Every type down to Python and up again, through the real core.

# A model that answers with its own input.
identity_model <- function(shape) {
  keras <- import_keras()
  keras$Sequential(list(
    keras$layers$Input(as.list(as.integer(shape))), keras$layers$Activation("linear")
  ))
}

# Down ---------------------------------------------------------------------------------------------

test_that("matrices of each type are staged as their values", {
  skip_without_tensorflow()
  whole <- matrix(c(-3:7, 1e6), 4)
  for (x in list(whole + 0.5, matrix(as.integer(whole), 4), whole > 2)) {
    expect_identical(staged(gpu_dataset(x))[[1]], x + 0)
  }
})

test_that("arrays of three to five dimensions keep their order", {
  skip_without_tensorflow()
  for (shape in list(c(6, 4, 3), c(5, 4, 3, 2), c(4, 2, 3, 2, 3))) {
    x <- array(seq_len(prod(shape)), shape)
    expect_identical(staged(gpu_dataset(x))[[1]], x + 0)
  }
})

test_that("a vector is one column", {
  skip_without_tensorflow()
  expect_identical(staged(gpu_dataset(c(1, 2, 3)))[[1]], matrix(c(1, 2, 3)))
})

test_that("each kind of column is encoded as R would", {
  skip_without_tensorflow()
  frame <- mixed_frame(12)
  frame$unused <- factor(rep("u", 12), levels = c("never", "u"))
  expected <- cbind(
    frame$double, frame$integer, frame$logical,
    outer(as.character(frame$factor), c("c", "a", "b"), "=="),
    outer(as.character(frame$ordered), c("low", "high"), "=="),
    outer(frame$character, c("x", "y"), "=="),
    frame[["a b"]], frame[["{braces}"]], 0, 1
  )
  data <- gpu_dataset(y ~ ., frame, scale = FALSE)
  expect_equal(staged(data)[[1]], expected, tolerance = 1e-6)
  expect_equal(staged(data)[[2]], as.array(frame$y), tolerance = 1e-6)
  codes <- gpu_dataset(y ~ factor + unused, frame, encode = "codes")
  expect_identical(staged(codes)[[1]], cbind(as.integer(frame$factor) - 1, 1))
})

test_that("standardised numbers have mean 0 and deviation 1", {
  skip_without_tensorflow()
  frame <- data.frame(a = c(1e6, 1e6 + 1, 1e6 + 2), constant = 7, logical = c(TRUE, FALSE, TRUE))
  rows <- staged(gpu_dataset(frame))[[1]]
  expect_equal(rows[, 1], c(-1, 0, 1) * sqrt(1.5), tolerance = 1e-6)
  expect_identical(rows[, 2], c(0, 0, 0))
  expect_identical(rows[, 3], c(1, 0, 1))
  scaled <- staged(gpu_dataset(cbind(c(1, 2, 3), c(10, 30, 50)), scale = TRUE))[[1]]
  expect_equal(scaled[, 2], c(-1, 0, 1) * sqrt(1.5), tolerance = 1e-6)
})

test_that("labels of each type are staged as their values or codes from 0", {
  skip_without_tensorflow()
  x <- a_matrix(4)
  labels <- function(y) as.vector(staged(gpu_dataset(x, y))[[2]])
  levelled <- factor(c("b", "a", "b", "b"), levels = c("b", "z", "a"))
  expect_identical(labels(levelled), c(0L, 2L, 0L, 0L))
  expect_identical(labels(c("b", "a", "b", "b")), c(1L, 0L, 1L, 1L))
  expect_identical(labels(c(TRUE, FALSE, TRUE, TRUE)), c(1, 0, 1, 1))
  expect_identical(labels(c(0, 1, 1, 0)), c(0, 1, 1, 0))
  expect_identical(labels(c(5L, -2L, 0L, 1L)), c(5, -2, 0, 1))
  expect_identical(labels(c(0.5, -2, 0, 1e6)), c(0.5, -2, 0, 1e6))
  columns <- matrix(1:8, 4)
  expect_identical(staged(gpu_dataset(x, columns))[[2]], columns + 0)
})

test_that("weights are staged for each row", {
  skip_without_tensorflow()
  y <- c(0, 1, 1, 1)
  weighted <- gpu_dataset(a_matrix(4), y, weights = 1:4, class_weight = c("0" = 2, "1" = 3))
  expect_identical(as.vector(staged(weighted)[[3]]), c(2, 6, 9, 12))
})

# Up -----------------------------------------------------------------------------------------------

test_that("a model's output comes up in its own shape", {
  skip_without_tensorflow()
  x <- a_matrix(7)
  expect_equal(gpu_predict(identity_model(3), x), x, tolerance = 1e-6)
  for (shape in list(c(6, 4, 3), c(5, 4, 3, 2), c(4, 2, 3, 2, 3))) {
    x <- array(seq_len(prod(shape)), shape)
    expect_identical(gpu_predict(identity_model(shape[-1]), x), x + 0)
  }
})

test_that("many rows come up in the order they were given", {
  skip_without_tensorflow()
  x <- matrix(as.double(1:20000), ncol = 1)
  expect_identical(gpu_predict(identity_model(1), x), as.vector(x))
  data <- gpu_dataset(x, shuffle = TRUE, validation = 0.5)
  expect_identical(gpu_predict(identity_model(1), data), as.vector(x))
})

test_that("a number is a plain vector, in the labels' own unit", {
  skip_without_tensorflow()
  x <- a_matrix(100)
  y <- 5000 + 1000 * x[, 1]
  data <- gpu_dataset(x, y, batch_size = 10, seed = 1)
  model <- gpu_mlp(data, units = 8, learning_rate = 0.02, seed = 1)
  gpu_fit(model, data, epochs = 20, engine = "graph_loop", verbose = 0)
  predicted <- gpu_predict(model, x)
  expect_type(predicted, "double")
  expect_null(attributes(predicted))
  expect_gt(stats::cor(predicted, y), 0.99)
  expect_lt(mean(abs(predicted - y)), 150)
})

test_that("a factor's levels come back, those that no row has too", {
  skip_without_tensorflow()
  y <- factor(rep(c("v", "u", "w"), 20), levels = c("w", "never seen", "v", "u"))
  fit <- learned(y)
  class <- gpu_predict(fit$model, fit$x, type = "class")
  expect_identical(class, y)
  response <- gpu_predict(fit$model, fit$x)
  expect_identical(dim(response), c(60L, 4L))
  expect_identical(colnames(response), levels(y))
  expect_equal(rowSums(response), rep(1, 60), tolerance = 1e-5)
  expect_identical(colnames(response)[max.col(response)], as.character(y))
})

test_that("two levels are a factor too, with the probability of the second", {
  skip_without_tensorflow()
  y <- factor(rep(c("yes", "no", "no"), 20), levels = c("yes", "no"))
  fit <- learned(y)
  expect_identical(gpu_predict(fit$model, fit$x, type = "class"), y)
  response <- gpu_predict(fit$model, fit$x)
  expect_null(dim(response))
  expect_identical(response > 0.5, y == "no")
})

test_that("texts come back as a factor of the texts", {
  skip_without_tensorflow()
  y <- rep(c("b c", "{a}", "`d`"), 20)
  fit <- learned(y)
  class <- gpu_predict(fit$model, fit$x, type = "class")
  expect_identical(as.character(class), y)
  expect_setequal(levels(class), y)
})

test_that("logicals come back as logicals, 0 and 1 as 0 and 1", {
  skip_without_tensorflow()
  y <- rep(c(TRUE, FALSE, FALSE), 20)
  fit <- learned(y)
  expect_identical(gpu_predict(fit$model, fit$x, type = "class"), y)
  expect_type(gpu_predict(fit$model, fit$x), "double")
  numbers <- learned(y + 0)
  class <- gpu_predict(numbers$model, numbers$x, type = "class")
  expect_true(is.numeric(class))
  expect_equal(class, y + 0)
  expect_null(attributes(class))
})

test_that("several outputs are a matrix with the labels' column names", {
  skip_without_tensorflow()
  x <- a_matrix(30)
  y <- cbind("first one" = x[, 1], "{second}" = x[, 2])
  predicted <- gpu_predict(trained(gpu_dataset(x, y)), x[1:5, ])
  expect_identical(dim(predicted), c(5L, 2L))
  expect_identical(colnames(predicted), colnames(y))
  unnamed <- gpu_predict(trained(gpu_dataset(x, unname(y))), x[1:5, ])
  expect_null(dimnames(unnamed))
})

# Repeating ----------------------------------------------------------------------------------------

test_that("set.seed() makes a whole training repeat exactly", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  run <- function() {
    set.seed(42)
    data <- gpu_dataset(y ~ ., frame, validation = 0.25, batch_size = 8)
    model <- gpu_mlp(data, units = 8, dropout = 0.25)
    fit <- gpu_fit(model, data, epochs = 3, engine = "graph_loop", verbose = 0)
    list(fit$history, gpu_predict(model, frame))
  }
  first <- run()
  expect_identical(run(), first)
  expect_false(first[[1]]$loss[1] == first[[1]]$loss[2])
})

# Beyond what float32 or R itself can hold ---------------------------------------------------------

test_that("whole numbers beyond 2^24 are warned of, unless they are standardised", {
  skip_without_tensorflow()
  frame <- data.frame(id = 2^24 + 0:3, y = c(1, 2, 4, 8))
  expect_warning(
    data <- gpu_dataset(frame, "y", scale = FALSE), "`id`.*2\\^24",
    class = "gpukeras_warning_data"
  )
  expect_equal(staged(data)[[1]][, 1], c(2^24, 2^24, 2^24 + 2, 2^24 + 4))
  expect_warning(gpu_dataset(frame, "y"), NA)
  expect_warning(gpu_dataset(cbind(2^24 + 1), 1), class = "gpukeras_warning_data")
  expect_warning(gpu_dataset(cbind(1), 2^24 + 1), class = "gpukeras_warning_data")
})

test_that("64-bit integers are staged as their values", {
  skip_without_tensorflow()
  skip_if_not_installed("bit64")
  whole <- bit64::as.integer64(c(1, -5, 2^20, 7))
  frame <- data.frame(y = c(1, 2, 3, 5))
  frame$x <- whole
  expected <- c(1, -5, 2^20, 7)
  expect_identical(staged(gpu_dataset(frame, "y", scale = FALSE))[[1]][, 1], expected)
  wide <- structure(whole, dim = c(2, 2)) # matrix() would drop the class
  expect_identical(staged(gpu_dataset(wide, 1:2))[[1]], matrix(expected, 2))
  expect_identical(as.vector(staged(gpu_dataset(cbind(1:4), whole))[[2]]), expected)
  frame$x[2] <- NA
  expect_error(gpu_dataset(frame, "y"), "missing", class = "gpukeras_error_data")
  expect_warning(gpu_dataset(cbind(1), bit64::as.integer64("9007199254740993")), "precision")
  withr::local_options("rlang:::is_installed_hook" = function(pkg, ver, cmp) pkg != "bit64")
  expect_snapshot(gpu_dataset(cbind(1:4), whole), error = TRUE)
})

# Files and memory ---------------------------------------------------------------------------------

# A data frame as a Parquet file, with all of its types; a CSV has no factors.
save_parquet <- function(frame, path) {
  skip_if(is.null(tryCatch(reticulate::import("pyarrow"), error = function(e) NULL)), "no pyarrow")
  arrow <- reticulate::import("pyarrow", convert = FALSE)
  columns <- lapply(frame, function(x) {
    if (is.factor(x)) {
      codes <- arrow$array(as.list(as.integer(x) - 1L), arrow$int32())
      arrow$DictionaryArray$from_arrays(codes, arrow$array(as.list(levels(x))))
    } else if (inherits(x, "POSIXct")) {
      arrow$array(as.list(as.double(x)), arrow$float64())$cast(arrow$int64())$cast(
        arrow$timestamp("s", "Europe/Berlin")
      )
    } else if (inherits(x, "Date")) {
      arrow$array(as.list(as.integer(x)), arrow$int32())$cast(arrow$date32())
    } else {
      arrow$array(as.list(x))
    }
  })
  table <- arrow$Table$from_arrays(unname(columns), names = as.list(names(frame)))
  reticulate::import("pyarrow.parquet")$write_table(table, path)
  path
}

test_that("a Parquet file's columns are staged as those of the data frame", {
  skip_without_tensorflow()
  frame <- mixed_frame(30)
  frame$unused <- factor(rep("u", 30), levels = c("never", "u"))
  a_name <- if (l10n_info()[["UTF-8"]]) "gr\u00f6\u00dfe" else "size"
  frame[[a_name]] <- seq_len(30) / 7
  frame$day <- as.Date("2024-02-28") + seq_len(30)
  frame$time <- as.POSIXct("2024-03-30 22:30:00", tz = "Europe/Berlin") + 3600 * seq_len(30)
  frame$ordered <- factor(frame$ordered, ordered = FALSE)
  path <- save_parquet(frame, withr::local_tempfile(fileext = ".parquet"))
  ours <- gpu_dataset(frame, "y", seed = 1)
  theirs <- gpu_dataset(path, "y", seed = 1)
  rules <- function(data) vapply(data$columns, `[[`, "", "name")
  expect_setequal(rules(theirs), rules(ours))
  expect_identical(staged(theirs)[[2]], staged(ours)[[2]])
  expect_equal(staged(theirs)[[1]], staged(ours)[[1]], tolerance = 1e-6)
})

test_that("one row, one column and five dimensions stay what they are", {
  skip_without_tensorflow()
  path <- withr::local_tempfile(fileext = ".csv")
  writeLines(c("a,y", "1.5,2"), path)
  rows <- staged(gpu_dataset(path, "y", scale = FALSE))
  expect_identical(rows, list(matrix(1.5), as.array(2)))
  writeLines("a,y", path)
  expect_error(gpu_dataset(path, "y"), class = "gpukeras_error_data")
  x <- array(as.numeric(1:48), c(2, 2, 3, 2, 2))
  saved <- withr::local_tempfile()
  gpu_dataset_save(gpu_dataset(x, c("b", "a")), saved, verbose = FALSE)
  back <- gpu_dataset(saved)
  expect_identical(staged(back)[[1]], x)
  expect_identical(unlist(back$label$levels), c("a", "b"))
})
