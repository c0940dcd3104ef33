# What gpu_dataset() tells the core ----------------------------------------------------------------

# The arguments of the only call to the core.
asked <- function(code) {
  seen <- NULL
  local_core(function(name, args) {
    seen <<- c(list(entry = name), args)
    answer(a_dataset_record())
  })
  force(code)
  seen
}

test_that("a matrix and its labels cross in one call", {
  seen <- asked(gpu_dataset(a_matrix(4), c(1, 2, 3, 4), batch_size = 2, seed = 7))
  expect_identical(seen$entry, "dataset")
  expect_identical(seen$features$kind, "array")
  expect_identical(seen$labels$kind, "numeric")
  expect_identical(seen$options$batch_size, 2)
  expect_identical(seen$options$seed, 7)
})

test_that("data frames are standardised by default, arrays are not", {
  expect_false(asked(gpu_dataset(a_matrix(4)))$options$scale)
  expect_true(asked(gpu_dataset(mtcars))$options$scale)
  expect_true(asked(gpu_dataset(mpg ~ ., mtcars))$options$scale)
  expect_true(asked(gpu_dataset(a_matrix(4), scale = TRUE))$options$scale)
  expect_false(asked(gpu_dataset(mtcars, scale = FALSE))$options$scale)
  expect_false(asked(gpu_dataset(mpg ~ ., mtcars, scale = FALSE))$options$scale)
})

test_that("every option reaches the core under its name, from each kind of input", {
  options <- list(
    batch_size = 8, shuffle = FALSE, cache = "host", validation = 0.25, encode = "codes",
    scale = FALSE, na = "drop", seed = 3
  )
  for (input in list(list(a_matrix(32)), list(mtcars, "mpg"), list(mpg ~ ., data = mtcars))) {
    seen <- asked(do.call(gpu_dataset, c(input, options)))
    expect_identical(seen$options[names(options)], options)
  }
})

test_that("a label column by name and a formula are the same", {
  named <- asked(gpu_dataset(mtcars, "mpg", seed = 1))
  formula <- asked(gpu_dataset(mpg ~ ., mtcars, seed = 1))
  expect_identical(named$features, formula$features)
  expect_identical(named$labels, formula$labels)
  expect_length(named$features$columns, 10)
})

test_that("weights and class weights cross so that Python can read them", {
  seen <- asked(gpu_dataset(a_matrix(2), 0:1, weights = 1:2, class_weight = c("0" = 1, "1" = 2)))
  expect_identical(seen$weights, as.array(c(1, 2)))
  expect_identical(seen$class_weight, list("0" = 1, "1" = 2))
  balanced <- asked(gpu_dataset(a_matrix(2), 0:1, class_weight = "balanced"))
  expect_identical(balanced$class_weight, "balanced")
})

test_that("the recipe of another dataset crosses as its handle", {
  skip_without_tensorflow()
  recipe <- gpu_dataset(a_matrix(2))
  expect_identical(asked(gpu_dataset(a_matrix(2), recipe = recipe))$recipe_of, recipe$handle)
})

test_that("set.seed() fixes the seed, and each dataset draws its own", {
  seeds <- function() {
    c(asked(gpu_dataset(a_matrix(2)))$options$seed, asked(gpu_dataset(a_matrix(2)))$options$seed)
  }
  set.seed(1)
  first <- seeds()
  set.seed(1)
  expect_identical(seeds(), first)
  expect_false(first[1] == first[2])
})

# Printing -----------------------------------------------------------------------------------------

test_that("a dataset prints its plan and why", {
  expect_snapshot(print(new_result(a_dataset_record(), "gpu_dataset")))
})

test_that("a dataset of a data frame prints its columns, levels and weights", {
  columns <- lapply(c("number", "number", "category"), function(kind) list(kind = kind))
  label <- list(kind = "class", units = 7L, levels = as.list(c("{a}", letters[2:7])))
  plan <- a_dataset_record()$plan
  plan[c("mode", "reason", "shuffle_reason", "ahead", "drop_last", "skipped")] <- list(
    "staged", "39,062.5 MiB do not fit in half of 22,000 MiB free on GPU:0", "in the order given",
    1L, TRUE, "3 rows, the first in line 7 of part-57.csv"
  )
  plan$shard <- list(2L, 4L)
  shown <- a_dataset_record(columns = columns, label = label, weighted = TRUE, plan = plan)
  expect_snapshot(print(new_result(shown, "gpu_dataset")))
})

test_that("what is done on the device prints", {
  data <- new_result(a_dataset_record(augment = "flip horizontal"), "gpu_dataset")
  expect_snapshot(cat(format(data), sep = "\n"))
  expect_snapshot(print(data, cost = 1), error = TRUE)
})

test_that("rows in sequence print without numbers that nobody knows", {
  plan <- utils::modifyList(a_dataset_record()$plan, list(
    mode = "streamed", reason = "batches of a function", rows = 0L, validation_rows = 0L,
    steps_per_epoch = 0L, batch_size = 32L, batch_reason = "as the function gives them"
  ))
  expect_snapshot(print(new_result(a_dataset_record(plan = plan), "gpu_dataset")))
})

test_that("the shape of rows prints", {
  shown <- list(
    a_dataset_record(shape = list(28L, 28L, 1L)), a_dataset_record(shape = 5L, scaled = TRUE)
  )
  expect_snapshot(for (record in shown) cat(format_features(record), "\n"))
})

test_that("what happened to missing values prints, and dates and times do", {
  plan <- a_dataset_record()$plan
  plan[c("na", "dropped_rows", "na_reason")] <- list(
    "drop", 12L, "dropped: 12 of 1,000 rows with missing values"
  )
  kinds <- c("number", "duration", "category", "date", "time")
  columns <- lapply(kinds, function(kind) list(kind = kind))
  expect_snapshot(print(new_result(a_dataset_record(plan = plan, columns = columns), "gpu_dataset")))
})

test_that("values that are divided but not centred print so", {
  shown <- a_dataset_record(shape = 5L, scaled = TRUE, centred = FALSE)
  expect_snapshot(cat(format_features(shown), "\n"))
})

# The real core ------------------------------------------------------------------------------------

test_that("a dataset knows its rows, batches and encoding", {
  skip_without_tensorflow()
  frame <- mixed_frame(50)
  data <- gpu_dataset(y ~ ., frame, validation = 0.2, batch_size = 16)
  expect_identical(data$plan$rows, 40L)
  expect_identical(data$plan$validation_rows, 10L)
  expect_identical(data$plan$steps_per_epoch, 3L)
  expect_identical(data$plan$last_batch, 8L)
  expect_identical(unlist(data$shape), 12L) # 5 numbers, 3 + 2 + 2 levels
  expect_identical(vapply(data$columns, `[[`, "", "name"), setdiff(names(frame), "y"))
  expect_identical(unlist(gpu_dataset(y ~ ., frame, encode = "codes")$shape), 8L)
})

test_that("what prints is what the core planned", {
  skip_without_tensorflow()
  skip_if(has_gpu(), "The plan of a GPU is another")
  expect_snapshot(gpu_dataset(Species ~ ., iris, validation = 0.2, batch_size = 32))
})

test_that("numbers are standardised by the training rows only", {
  skip_without_tensorflow()
  frame <- data.frame(a = c(1, 2, 3, 4, 100, 200), y = 1:6)
  data <- gpu_dataset(frame, "y", validation = 0.5, seed = 1)
  center <- data$columns[[1]]$center
  subsets <- utils::combn(frame$a, 3, mean)
  expect_true(any(abs(center - subsets) < 1e-9))
  expect_false(isTRUE(all.equal(center, mean(frame$a))))
})

test_that("levels that no row uses are kept", {
  skip_without_tensorflow()
  frame <- data.frame(f = factor(c("a", "b"), levels = c("a", "unused", "b")), y = 1:2)
  data <- gpu_dataset(frame, "y")
  expect_identical(unlist(data$columns[[1]]$levels), c("a", "unused", "b"))
})

test_that("rows with a missing feature or label are dropped and counted, in each kind of input", {
  skip_without_tensorflow()
  frame <- data.frame(a = c(1, NA, 3, 4), f = factor(c("u", "v", NA, "u")), y = c(1, 2, 3, 4.5))
  frame$y[4] <- NA
  for (data in list(
    gpu_dataset(y ~ ., frame, na = "drop"), gpu_dataset(frame, "y", na = "drop"),
    gpu_dataset(frame[1:2], frame$y, na = "drop"),
    gpu_dataset(cbind(frame$a, c(1, 1, NA, 1)), frame$y, na = "drop")
  )) {
    expect_identical(data$plan$rows, 1L)
    expect_identical(data$plan$dropped_rows, 3L)
  }
  integers <- matrix(c(1:3, NA), 2)
  expect_identical(gpu_dataset(integers, na = "drop")$plan$dropped_rows, 1L)
  expect_identical(gpu_dataset(integers > 1, na = "drop")$plan$dropped_rows, 1L)
})

test_that("what is done about missing values prints", {
  skip_without_tensorflow()
  skip_if(has_gpu(), "The plan of a GPU is another")
  expect_snapshot(gpu_dataset(Ozone ~ ., airquality, na = "drop", batch_size = 32))
  heard <- airquality[!is.na(airquality$Ozone), ]
  expect_snapshot(gpu_dataset(Ozone ~ ., heard, na = "impute", batch_size = 32))
})

test_that("what is learned about missing values is in the recipe", {
  skip_without_tensorflow()
  frame <- data.frame(
    n = c(1, NA, 3, 10), i = c(2L, 2L, NA, 7L), l = c(NA, TRUE, TRUE, FALSE),
    f = factor(c("b", "a", "b", NA)), whole = 1:4
  )
  columns <- gpu_dataset(frame, na = "impute")$columns
  expect_identical(lapply(columns, `[[`, "fill"), list(3, 2, 1, "b", 2.5))
  expect_identical(vapply(columns, `[[`, NA, "indicator"), c(TRUE, TRUE, TRUE, TRUE, FALSE))
})

test_that("a dataset is saved without its rows, and says so when used", {
  skip_without_tensorflow()
  file <- withr::local_tempfile()
  saveRDS(gpu_dataset(a_matrix(4), 1:4), file)
  dead <- readRDS(file)
  expect_error(check_dataset(dead), "another R session", class = "gpukeras_error_data")
  expect_match(format(dead)[1], "4 training")
})

test_that("a sparse matrix prints how its rows are made", {
  skip_without_tensorflow()
  data <- gpu_dataset(a_sparse_matrix(), factor(rep(c("a", "b"), 30)), scale = TRUE)
  expect_identical(data$plan$mode, "streamed")
  expect_snapshot(data)
  dense <- gpu_dataset(a_sparse_matrix(), cache = "device")
  expect_false(dense$plan$mode == "streamed")
})

test_that("a file prints where its rows come from", {
  skip_without_tensorflow()
  folder <- withr::local_tempdir()
  x <- save_npy(a_matrix(), file.path(folder, "features.npy"))
  y <- save_npy(as.array(sin(1:60)), file.path(folder, "labels.npy"))
  expect_snapshot(gpu_dataset(x, y, validation = 0.2))
  slow <- save_npy(a_matrix(), file.path(folder, "columns.npy"), order = "F")
  expect_match(gpu_dataset(slow, y)$plan$reason, "Fortran order, which reads slowly")
})

test_that("a sparse matrix of more cells than an integer counts is a dataset", {
  skip_without_tensorflow()
  skip_if_not_installed("Matrix")
  x <- Matrix::sparseMatrix(i = c(1, 100000), j = c(100000, 1), x = 1, dims = c(100000, 100000))
  data <- gpu_dataset(x, batch_size = 8)
  expect_identical(data$plan$rows, 100000L)
  expect_lt(data$plan$staged_bytes, 2^20)
})

# Shares -------------------------------------------------------------------------------------------

test_that("a worker's share of the rows prints, in a scratch file too", {
  skip_without_tensorflow()
  data <- gpu_dataset(a_matrix(), a_matrix()[, 1],
    batch_size = 8, drop_last = TRUE, shard = c(2, 3), cache = "disk"
  )
  expect_snapshot(print(data))
})

test_that("workers that read their own files need a cluster, and the plan shows their part", {
  skip_without_tensorflow()
  expect_error(
    gpu_dataset(y ~ ., mixed_frame(), shard = "workers"),
    "is for the workers of a cluster",
    class = "gpukeras_error_spec"
  )
  data <- gpu_dataset(a_matrix(), seed = 1)
  data$plan$share <- "worker 1 of 2 reads file 1 of 2, 500 rows"
  expect_output(print(data), "shard:    worker 1 of 2 reads file 1 of 2, 500 rows", fixed = TRUE)
})

# On the device ------------------------------------------------------------------------------------

test_that("images vary and features are mapped, in R's own words", {
  skip_without_tensorflow()
  keras <- import_keras()
  x <- array(runif(20 * 8 * 8), c(20, 8, 8, 1))
  data <- gpu_dataset(
    x, rep(c("a", "b"), 10),
    batch_size = 4, seed = 1, augment = c(rotation = 0.1, mixup = 0.2),
    map = keras$layers$Rescaling(2)
  )
  expect_snapshot(print(data))
  expect_error(
    gpu_dataset(x, augment = list(turn = 1)), "turn", class = "gpukeras_error_spec"
  )
  # reticulate since 1.29 gives R's own error, which is raised again as it was.
  expect_error(gpu_dataset(x, map = function(rows) stop("not this one")), "not this one")
})

test_that("a function of tensors maps, and is traced once", {
  skip_without_tensorflow()
  tensorflow <- runtime()$tensorflow()
  calls <- 0
  double <- function(rows) {
    calls <<- calls + 1
    tensorflow$multiply(rows, 2)
  }
  data <- gpu_dataset(a_matrix(), a_matrix()[, 1], batch_size = 8, map = double)
  expect_equal(trained(data, epochs = 2)$count_params(), 4 * 3 + 4 + 4 + 1)
  expect_identical(calls, 1)
})

test_that("mixed classes want a loss of one column a class", {
  skip_without_tensorflow()
  data <- gpu_dataset(as.matrix(iris[1:4]), iris$Species, augment = list(mixup = 0.2), seed = 1)
  model <- gpu_mlp(data, units = 4, seed = 1)
  gpu_fit(model, data, epochs = 1, engine = "graph_loop", verbose = 0)
  expect_identical(levels(gpu_predict(model, as.matrix(iris[1:4]), type = "class")),
    levels(iris$Species))
  expect_snapshot(gpu_fit(a_model(4), data), error = TRUE)
})
