test_that("many predictions are those of few rows, and later ones leave them alone", {
  skip_without_tensorflow()
  x <- a_matrix(1000)[rep(1:1000, 101), ]
  for (units in 1:2) {
    model <- a_model(units = units, activation = "linear")
    some <- gpu_predict(model, x[1:1000, ])
    found <- gpu_predict(model, x)
    expect_identical(NROW(found), 101000L)
    expect_identical(dim(found), if (units == 2) c(101000L, 2L))
    expect_equal(utils::tail(found, 1000), some, tolerance = 1e-6, ignore_attr = TRUE)
    before <- found + 0
    gpu_predict(model, -x)
    expect_identical(found, before)
    found[1] <- 7
    expect_false(any(gpu_predict(model, x) == 7))
  }
})

test_that("values that training rows did not have are told, and count as for lm()", {
  skip_without_tensorflow()
  rows <- data.frame(u = 1:20, v = 5, f = factor(rep(c("a", "b"), 10), levels = c("a", "b", "c")))
  rows$y <- rows$u
  train <- gpu_dataset(y ~ ., data = rows, batch_size = 20)
  model <- gpu_mlp(train, units = integer(), seed = 1)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  other <- transform(rows, v = 9)
  expect_warning(
    found <- gpu_predict(model, other),
    "`v` of `newdata` was the same in all training rows: its other values do not count",
    class = "gpukeras_warning_data"
  )
  expect_identical(found, expect_no_warning(gpu_predict(model, rows)))
  expect_identical(coef(model)[["v"]], NA_real_)
  expect_warning(gpu_evaluate(model, other, verbose = FALSE), "Column `v` of `data` was the same")
  other <- transform(rows, f = factor("c", levels = levels(f)))
  expect_warning(
    gpu_predict(model, other), "`f` of `newdata` has levels without a training row"
  )
})

test_that("classes of integer labels are integers, for each time step and output", {
  skip_without_tensorflow()
  keras <- reticulate::import("keras")
  x <- array(rnorm(240), c(10, 6, 4))
  input <- keras$Input(list(6L, 4L))
  step <- keras$layers$Dense(3L, activation = "softmax", name = "step")(input)
  row <- keras$layers$Dense(1L, name = "row")(keras$layers$Flatten()(input))
  model <- keras$Model(input, list(step = step, row = row))
  logits <- keras$losses$BinaryCrossentropy(from_logits = TRUE)
  model$compile("sgd", list(step = "sparse_categorical_crossentropy", row = logits))
  y <- list(step = matrix(0:2, 10, 6), row = rep(0:1, 5))
  gpu_fit(model, gpu_dataset(x, y), epochs = 1, engine = "keras", verbose = FALSE)
  numbers <- gpu_predict(model, x)
  classes <- gpu_predict(model, x, type = "class")
  expect_identical(classes$step, apply(numbers$step, 1:2, which.max) - 1L)
  expect_identical(classes$row, as.integer(numbers$row > 0))
})

test_that("predictions in Keras' batches are those of Keras, and say so once", {
  skip_without_tensorflow()
  keras <- reticulate::import("keras")
  model <- keras$Sequential(list(keras$Input(list(2L)), keras$layers$Softmax(axis = 0L)))
  model$compile("sgd", "mse")
  x <- matrix(stats::rnorm(140), ncol = 2)
  y <- matrix(0, 70, 2)
  rlang::reset_message_verbosity("gpukeras_batches")
  expect_message(found <- gpu_predict(model, x), "in the batches of Keras' own predict")
  expect_equal(found, model$predict(x, verbose = 0L), tolerance = 1e-6)
  expect_no_message(gpu_predict(model, x))
  loss <- gpu_evaluate(model, x, y)
  expect_equal(loss[["loss"]], model$evaluate(x, y, verbose = 0L), tolerance = 1e-6)
  expect_match(attr(loss, "note"), "in batches of 32, as by Keras")
})

test_that("outputs of 16 bits are doubles, and a file keeps its precision", {
  skip_without_tensorflow()
  keras <- reticulate::import("keras")
  for (policy in c("mixed_bfloat16", "mixed_float16")) {
    on.exit(keras$config$set_dtype_policy("float32"))
    keras$config$set_dtype_policy(policy)
    model <- keras$Sequential(list(keras$Input(list(3L)), keras$layers$Dense(2L)))
    model$compile("adam", "mse")
    x <- matrix(seq(-1, 1, length.out = 30), ncol = 3)
    found <- gpu_predict(model, x)
    expect_type(found, "double")
    kernel <- as.array(model$get_weights()[[1]])
    expect_equal(unname(found), x %*% kernel, tolerance = 0.02)
    path <- withr::local_tempfile(fileext = ".keras")
    gpu_save(model, path)
    keras$config$set_dtype_policy("float32")
    loaded <- gpu_load(path)
    expect_identical(loaded$dtype_policy$name, policy)
    expect_identical(gpu_predict(loaded, x), found)
  }
})
