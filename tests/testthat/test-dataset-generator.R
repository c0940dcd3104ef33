x <- a_matrix(60, 3)
y <- factor(c("a", "b", "c")[seq_len(60) %% 3 + 1])

# A function that gives the rows in batches of `size`, ends, and starts again.
batches <- function(size = 20, ends = TRUE, features = x) {
  at <- 0
  function() {
    if (at >= length(y)) {
      at <<- 0
      if (ends) {
        return(NULL)
      }
    }
    rows <- at + seq_len(min(size, length(y) - at))
    at <<- at + length(rows)
    list(features[rows, , drop = FALSE], y[rows])
  }
}

# Gives each of `...` in turn, then an end.
in_turn <- function(...) {
  values <- list(...)
  called <- 0
  function() {
    called <<- called + 1
    if (called <= length(values)) values[[called]]
  }
}

a_batch <- function(...) list(x[1:20, ], y[1:20], ...)

fit_quietly <- function(data, epochs = 2, ...) {
  silence_tensorflow()
  model <- gpu_mlp(data, units = 4, seed = 1)
  fit <- gpu_fit(model, data, epochs = epochs, engine = "graph_loop", verbose = 0, ...)
  list(model = model, fit = fit)
}

weights_of <- function(trained) unlist(lapply(trained$model$get_weights(), as.vector))

test_that("a function's rows train as those of a matrix", {
  skip_without_tensorflow()
  expected <- weights_of(fit_quietly(gpu_dataset(x, y, shuffle = FALSE, batch_size = 20, seed = 1)))
  for (data in list(
    gpu_dataset(batches(), shuffle = FALSE),
    gpu_dataset(batches(ends = FALSE), steps = 3),
    gpu_dataset(batches(7), batch_size = 20),
    gpu_dataset(batches(7), batch_size = 20, shuffle = FALSE, cache = TRUE, seed = 1)
  )) {
    trained <- fit_quietly(data)
    expect_equal(weights_of(trained), expected, tolerance = 1e-5)
    expect_equal(trained$fit$rows, 120)
    expect_equal(trained$fit$plan$rows, 60)
  }
})

test_that("batches may be data frames, which are scaled and keep their columns' types", {
  skip_without_tensorflow()
  frame <- mixed_frame(40)
  features <- frame[names(frame) != "y"]
  features$time <- as.POSIXct("2024-01-01", tz = "Europe/Rome") + 3600 * seq_len(40)
  called <- 0
  give <- function() {
    called <<- called + 1
    rows <- if (called %% 2 == 1) 1:20 else 21:40
    list(features[rows, ], frame$y[rows])
  }
  data <- gpu_dataset(give, steps = 2, cache = TRUE, batch_size = 10)
  whole <- gpu_dataset(features, frame$y, batch_size = 10)
  expect_equal(data$columns, whole$columns)
  expect_equal(as_r(data$handle$arrays), as_r(whole$handle$arrays))
  streamed <- gpu_dataset(give, steps = 2)
  expect_false(streamed$columns[[1]]$scale == 1)
  expect_match(format(streamed), "those of the first 20 rows", all = FALSE)
  expect_equal(nrow(as.matrix(gpu_predict(trained(streamed), streamed))), 40)
})

test_that("arrays of a higher rank, sparse matrices, logicals and matrices of labels work too", {
  skip_without_tensorflow()
  images <- array(runif(8 * 4 * 4 * 3), c(8, 4, 4, 3))
  expect_equal(unlist(gpu_dataset(in_turn(list(images, 1:8 > 4)))$shape), c(4, 4, 3))
  expect_equal(gpu_dataset(in_turn(list(x, x[, 1:2])))$label$kind, "matrix")
  sparse <- a_sparse_matrix(60, 3)
  for (cache in list("auto", TRUE)) {
    data <- gpu_dataset(in_turn(list(sparse, y)), cache = cache, batch_size = 60)
    expect_equal(as_r(data$handle$batch(60L))[[1]], unname(as.matrix(sparse)), tolerance = 1e-6)
  }
})

test_that("weights come with the batches", {
  skip_without_tensorflow(slow = TRUE)
  weights <- seq(0, 2, length.out = 20)
  expected <- weights_of(fit_quietly(
    gpu_dataset(x[1:20, ], y[1:20], weights = weights, shuffle = FALSE, batch_size = 20), 1
  ))
  expect_equal(
    weights_of(fit_quietly(gpu_dataset(in_turn(a_batch(weights))), 1)), expected,
    tolerance = 1e-5
  )
})

test_that("the plan is shown", {
  skip_without_tensorflow()
  expect_match(format(gpu_dataset(batches())), "not counted yet", all = FALSE)
  lines <- format(gpu_dataset(batches(ends = FALSE), steps = 3))
  expect_match(lines, "60 training", all = FALSE)
  expect_match(lines, "`cache = TRUE` would shuffle", all = FALSE)
  expect_match(lines, "streamed (a batch at a time from a function)", all = FALSE, fixed = TRUE)
})

test_that("a cached function is called for one epoch only", {
  skip_without_tensorflow(slow = TRUE)
  called <- 0
  give <- batches()
  data <- gpu_dataset(function() {
    called <<- called + 1
    give()
  }, cache = TRUE, validation = 0.2)
  expect_equal(called, 4)
  trained <- fit_quietly(data, epochs = 3)
  expect_equal(called, 4)
  expect_equal(trained$fit$plan$mode, "resident")
  expect_true("val_loss" %in% names(trained$fit$history))
})

test_that("an exhausted coro generator ends an epoch", {
  skip_without_tensorflow()
  data <- gpu_dataset(in_turn(a_batch(), a_batch(), quote(.__exhausted__.)))
  expect_equal(fit_quietly(data, epochs = 1)$fit$rows, 40)
})

test_that("validation, evaluation and prediction take functions", {
  skip_without_tensorflow()
  data <- gpu_dataset(batches())
  trained <- fit_quietly(data, validation = gpu_dataset(batches(ends = FALSE), steps = 3))
  expect_length(trained$fit$history$val_loss, 2)
  expect_named(gpu_evaluate(trained$model, data), c("loss", "accuracy"))
  expect_equal(
    gpu_predict(trained$model, data, type = "class"), gpu_predict(trained$model, x, type = "class")
  )
})

# Errors ------------------------------------------------------------------------------------------

test_that("an error in the function arrives as itself", {
  skip_without_tensorflow()
  own <- function() rlang::abort("my own", class = "my_error", value = 7)
  plain <- function() log("a")
  for (cache in list("auto", TRUE)) {
    for (stop_by in list(own, plain)) {
      called <- 0
      give <- function() {
        called <<- called + 1
        if (called == 3) stop_by()
        a_batch()
      }
      expected <- rlang::catch_cnd(stop_by(), "error")
      found <- rlang::catch_cnd(fit_quietly(gpu_dataset(give, steps = 5, cache = cache)), "error")
      expect_equal(conditionMessage(found), conditionMessage(expected))
      expect_equal(conditionCall(found), conditionCall(expected))
      expect_equal(class(found), class(expected))
      expect_s3_class(found$trace, "rlang_trace")
    }
  }
  expect_equal(found$value, NULL)
  first <- rlang::catch_cnd(gpu_dataset(own), "error")
  expect_equal(first$value, 7)
})

test_that("an error in gpu_evaluate() and gpu_predict() arrives as itself too", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(x, y))
  for (verb in list(gpu_evaluate, gpu_predict)) {
    give <- in_turn(a_batch(), a_batch())
    broken <- gpu_dataset(function() give() %||% stop("broken"))
    expect_error(verb(model, broken), "^broken$", class = "simpleError")
  }
  expect_equal(nrow(gpu_predict(model, x)), 60) # and all goes on
})

test_that("a batch that cannot be used is named", {
  skip_without_tensorflow()
  holes <- x[1:20, ]
  holes[3, 2] <- NA
  other <- iris[1:20, 1:3]
  bad <- list(
    list(list(x[1:20, 1:2], y[1:20]), "must have shape"),
    list(list(other, y[1:20]), "matrix or array"),
    list(list(x[1:20, ], as.integer(y[1:20])), "`y` holds numbers"),
    list(list(x[1:20, ], y[1:19]), "`y` has 19 rows where `x` has 20"),
    list(list(x[0, ], y[0]), "has no rows"),
    list(list(holes, y[1:20]), "Column `2` of `x` has 1 missing value"),
    list(list(x[1:20, ]), "There are no labels"),
    list(list(x[1:20, ], factor(rep(c("a", "d"), 10))), "levels that training did not see: d"),
    list(list("text", y[1:20]), "`x` must be numeric"),
    list(list(x[1:20, ], list(1)), "`y` cannot be labels"),
    list(iris, "The function must give list"),
    list(5, "The function must give list")
  )
  for (case in bad) {
    data <- gpu_dataset(in_turn(a_batch(), case[[1]]))
    error <- rlang::catch_cnd(fit_quietly(data), "error")
    expect_s3_class(error, "gpukeras_error_data")
    expect_match(one_line(error), "Batch 2 of epoch 1: ", fixed = TRUE)
    expect_match(one_line(error), case[[2]], fixed = TRUE)
    expect_equal(error$batch, 2)
  }
  expect_snapshot(gpu_dataset(function() 5), error = TRUE)
})

test_that("a new level has a hint, and all levels are there when they are cached", {
  skip_without_tensorflow()
  texts <- function(values) list(data.frame(a = values, b = seq_along(values)), seq_along(values))
  data <- gpu_dataset(in_turn(texts(c("u", "v")), texts(c("v", "w"))))
  error <- expect_error(fit_quietly(data), class = "gpukeras_error_data")
  expect_match(one_line(error), "Column `a` of `x` has levels that training did not see: w")
  data <- gpu_dataset(in_turn(texts(c("u", "v")), texts(c("v", "w"))), cache = TRUE)
  expect_equal(unlist(data$columns[[1]]$levels), c("u", "v", "w"))
})

test_that("an epoch that ends too early is shorter; an end without a start is named", {
  skip_without_tensorflow()
  short <- fit_quietly(gpu_dataset(in_turn(a_batch(), a_batch()), steps = 5), epochs = 1)
  expect_equal(short$fit$rows, 40)
  error <- expect_error(
    fit_quietly(gpu_dataset(in_turn(a_batch(), a_batch()))), class = "gpukeras_error_data"
  )
  expect_match(one_line(error), "The function gave no batch in epoch 2.*cache = TRUE")
  expect_error(gpu_dataset(function() NULL), class = "gpukeras_error_data")
})

test_that("options that need all rows say so", {
  skip_without_tensorflow()
  weigh <- list(class_weight = "balanced")
  for (options in list(list(validation = 0.2), list(na = "impute"), list(shard = 1:2), weigh)) {
    error <- expect_error(
      rlang::exec(gpu_dataset, batches(), !!!options), class = "gpukeras_error_spec"
    )
    expect_match(one_line(error), "cache = TRUE", fixed = TRUE)
    expect_equal(error$arg, names(options))
  }
  expect_equal(gpu_dataset(batches(), cache = TRUE, validation = 0.2)$plan$validation_rows, 12)
  expect_error(gpu_dataset(batches(), y), class = "gpukeras_error_spec")
  expect_snapshot(gpu_dataset(batches(), y), error = TRUE)
  expect_error(gpu_dataset(batches(), steps = 0), class = "gpukeras_error_spec")
  expect_error(gpu_dataset(batches(), step = 1), class = "gpukeras_error_spec")
})

test_that("rows that lack values are dropped from each batch, and counted", {
  skip_without_tensorflow()
  holes <- x
  holes[c(3, 50), 1] <- NA
  data <- gpu_dataset(batches(features = holes), na = "drop")
  fit <- fit_quietly(data, epochs = 1)$fit
  expect_equal(fit$rows, 58)
  expect_match(format(fit), "dropped: 2 of 60 rows", all = FALSE)
})

test_that("an interrupt in the function keeps the history, and nothing hangs", {
  skip_without_tensorflow()
  skip_on_os("windows")
  found <- in_second_session(function() {
    called <- 0
    stop_at <- 0
    give <- function() {
      called <<- called + 1
      if (called == stop_at) {
        tools::pskill(Sys.getpid(), tools::SIGINT)
        Sys.sleep(60)
      }
      list(matrix(sin(1:60), 20), rep(c("a", "b"), 10))
    }
    data <- gpu_dataset(give, steps = 5)
    model <- gpu_mlp(data, units = 4)
    stop_at <- called + 12
    fit <- gpu_fit(model, data, epochs = 50, verbose = 0)
    answer <- function(code) tryCatch(code, interrupt = function(condition) "interrupted")
    stop_at <- called + 3
    first <- answer(gpu_evaluate(model, data))
    stop_at <- called + 3
    second <- answer(gpu_dataset(give, steps = 5, cache = TRUE))
    list(fit$stopped, fit$epochs, first, second)
  })
  expect_identical(found, list("interrupted", 2L, "interrupted", "interrupted"))
})

# tf.data -----------------------------------------------------------------------------------------

tf_slices <- function(...) {
  runtime()$tensorflow()$data$Dataset$from_tensor_slices(reticulate::tuple(...))
}

test_that("a tf.data dataset trains as the rows of a matrix", {
  skip_without_tensorflow()
  expected <- weights_of(fit_quietly(
    gpu_dataset(x, x[, 1], shuffle = FALSE, batch_size = 20), 2
  ))
  slices <- tf_slices(x, x[, 1])
  for (data in list(
    gpu_dataset(slices$batch(20L)), gpu_dataset(slices, batch_size = 20),
    gpu_dataset(slices$batch(20L)$`repeat`(), steps = 3),
    gpu_dataset(slices$batch(20L), cache = TRUE, shuffle = FALSE, batch_size = 20)
  )) {
    # The output layer's mean and deviation are those of the labels that were seen.
    trained <- fit_quietly(data)
    expect_equal(trained$fit$rows, 120)
    if (data$plan$mode == "resident") {
      expect_equal(weights_of(trained), expected, tolerance = 1e-4)
    }
  }
  expect_match(format(data), "resident", all = FALSE)
})

test_that("what a tf.data dataset cannot give is named", {
  skip_without_tensorflow()
  slices <- tf_slices(x, x[, 1])
  expect_error(gpu_dataset(slices$`repeat`()), class = "gpukeras_error_spec", "`steps`")
  expect_error(gpu_dataset(slices$batch(20L), steps = 4), class = "gpukeras_error_spec", "`steps`")
  texts <- tf_slices(x, rep("a", 60))
  expect_error(gpu_dataset(texts), class = "gpukeras_error_data", "must be numeric")
  listed <- runtime()$tensorflow()$data$Dataset$from_tensor_slices(
    reticulate::tuple(reticulate::tuple(reticulate::tuple(x, x), x), x[, 1])
  )
  expect_error(gpu_dataset(listed), class = "gpukeras_error_data", "several tensors")
  alone <- runtime()$tensorflow()$data$Dataset$from_tensor_slices(array(0, c(6, 4, 4)))
  expect_error(gpu_dataset(alone), class = "gpukeras_error_spec", "batched")
  expect_equal(unlist(gpu_dataset(alone, batched = FALSE)$shape), c(4, 4))
})

test_that("an R function inside a tf.data pipeline does not wait for ever", {
  skip_without_tensorflow()
  skip_if(
    utils::packageVersion("reticulate") < "1.40",
    "This reticulate ends the process when TensorFlow's threads call R functions"
  )
  rows <- in_second_session(function() {
    tf <- reticulate::import("tensorflow")
    x <- matrix(sin(1:180), 60)
    twice <- function(row, y) {
      made <- tf$py_function(function(row) row * 2, list(row), tf$float64)
      reticulate::tuple(tf$ensure_shape(made, list(3L)), y)
    }
    slices <- tf$data$Dataset$from_tensor_slices(reticulate::tuple(x, x[, 1]))
    data <- gpu_dataset(slices$map(twice)$batch(20L))
    gpu_fit(gpu_mlp(data, units = 4), data, epochs = 2, verbose = 0)$rows
  })
  expect_equal(rows, 120)
})

test_that("what tfdatasets makes is a tf.data dataset", {
  skip_without_tensorflow()
  skip_if_not(
    nzchar(system.file(package = "tfdatasets")), "The R package tfdatasets is not installed"
  )
  data <- tfdatasets::tensor_slices_dataset(list(x, x[, 1])) |>
    tfdatasets::dataset_shuffle(60) |>
    tfdatasets::dataset_batch(20) |>
    gpu_dataset()
  expect_equal(data$plan$rows, 60)
  expect_equal(fit_quietly(data)$fit$rows, 120)
})
