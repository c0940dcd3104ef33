# keras3 models of every make: sequential, functional, subclassed, with preprocessing layers.

test_that("a sequential model without input shape is built by the rows", {
  skip_without_keras3()
  model <- keras3::keras_model_sequential(layers = list(
    keras3::layer_dense(units = 4, activation = "relu"), keras3::layer_dense(units = 1)
  ))
  keras3::compile(model, optimizer = "adam", loss = "mse")
  expect_named(fit_briefly(model)$history, c("loss", "val_loss"))
  expect_length(gpu_predict(model, a_matrix(7)), 7)
})

test_that("a functional model has several inputs and outputs, as lists or by name", {
  skip_without_keras3()
  a <- keras3::keras_input(2, name = "a")
  b <- keras3::keras_input(1, name = "b")
  h <- keras3::layer_concatenate(list(a, b))
  p <- keras3::layer_dense(h, 1, name = "p")
  q <- keras3::layer_dense(h, 3, activation = "softmax", name = "q")
  x <- a_matrix(40)
  parts <- list(a = x[, 1:2], b = x[, 3, drop = FALSE])
  kinds <- factor(rep_len(c("u", "v", "w"), 40))
  data <- gpu_dataset(parts, list(p = x[, 1], q = kinds), batch_size = 10)
  listed <- keras3::keras_model(list(a, b), list(p, q))
  keras3::compile(listed, optimizer = "adam", loss = list("mse", "sparse_categorical_crossentropy"))
  expect_named(fit_briefly(listed, data)$history, c("loss", "p_loss", "q_loss"))
  named <- keras3::keras_model(list(a = a, b = b), list(p = p, q = q))
  keras3::compile(named,
    optimizer = "adam", loss = list(p = "mse", q = "sparse_categorical_crossentropy"),
    loss_weights = list(p = 1, q = 0.1), metrics = list(q = "accuracy")
  )
  fit <- fit_briefly(named, data)
  expect_setequal(names(fit$history), c("loss", "p_loss", "q_loss", "q_accuracy"))
  predicted <- gpu_predict(named, parts, type = "class")
  expect_identical(levels(predicted$q), levels(kinds))
  own <- stats::predict(named, parts, verbose = 0)
  expect_equal(predicted$p, as.vector(own$p), tolerance = 1e-5)
})

test_that("a subclassed model trains, with a training step of its own too", {
  skip_without_keras3()
  plain <- keras3::Model("Plain",
    initialize = function(...) {
      super$initialize(...)
      self$hidden <- keras3::layer_dense(units = 4, activation = "relu")
      self$dropout <- keras3::layer_dropout(rate = 0.1)
      self$out <- keras3::layer_dense(units = 1)
    },
    call = function(inputs, training = FALSE) {
      self$out(self$dropout(self$hidden(inputs), training = training))
    }
  )()
  keras3::compile(plain, optimizer = "adam", loss = "mse", metrics = "mae")
  fit <- fit_briefly(plain, engine = "graph_loop")
  expect_named(fit$history, c("loss", "mae", "val_loss", "val_mae"))
  own <- keras3::Model("Own",
    initialize = function(...) {
      super$initialize(...)
      self$out <- keras3::layer_dense(units = 1)
    },
    call = function(inputs, training = FALSE) self$out(inputs),
    train_step = function(data) {
      tape <- tensorflow::tf$GradientTape()
      with(tape, {
        loss <- self$compute_loss(y = data[[2]], y_pred = self(data[[1]], training = TRUE))
      })
      gradients <- tape$gradient(loss, self$trainable_variables)
      self$optimizer$apply(gradients, self$trainable_variables)
      list(loss = loss, doubled = 2 * loss)
    }
  )()
  keras3::compile(own, optimizer = "adam", loss = "mse")
  x <- a_matrix(40)
  fit <- fit_briefly(own, list(x, x[, 1]), engine = "graph_loop")
  expect_equal(fit$history$doubled, 2 * fit$history$loss, tolerance = 1e-6)
})

test_that("preprocessing layers of numbers work inside the model", {
  skip_without_keras3()
  x <- a_matrix(40)
  codes <- matrix(rep_len(0:4, 40) * 1.0)
  adapted <- keras3::layer_normalization(axis = -1L)
  keras3::adapt(adapted, 100 * x)
  first <- list(
    normalization = list(100 * x, adapted),
    discretization = list(x, keras3::layer_discretization(
      bin_boundaries = c(-1, 0, 1), output_mode = "one_hot"
    )),
    encoding = list(codes, keras3::layer_category_encoding(num_tokens = 5)),
    hashing = list(codes, keras3::layer_hashing(num_bins = 4, output_mode = "one_hot"), "int32"),
    lookup = list(codes, keras3::layer_integer_lookup(
      vocabulary = 0:3, output_mode = "one_hot"
    ), "int64"),
    embedding = list(codes, keras3::layer_embedding(input_dim = 5, output_dim = 2))
  )
  for (name in names(first)) {
    given <- first[[name]]
    types <- if (length(given) > 2) given[[3]] else "float32"
    input <- keras3::keras_input(ncol(given[[1]]), dtype = types)
    output <- keras3::layer_dense(keras3::layer_flatten(given[[2]](input)), 1)
    model <- keras3::keras_model(input, output)
    fit <- fit_briefly(model, list(given[[1]], x[, 1]), loss = "mse", engine = "graph_loop")
    expect_true(all(is.finite(fit$history$loss)), label = name)
    own <- as.vector(stats::predict(model, given[[1]], verbose = 0))
    expect_equal(gpu_predict(model, given[[1]]), own, tolerance = 1e-5, label = name)
  }
})

test_that("preprocessing layers of images work inside the model", {
  skip_without_keras3()
  images <- array(rep_len(0:255, 12 * 8 * 8 * 3) * 1.0, c(12, 8, 8, 3))
  model <- keras3::keras_model_sequential(input_shape = c(8, 8, 3)) |>
    keras3::layer_rescaling(1 / 255) |>
    keras3::layer_random_flip() |>
    keras3::layer_random_rotation(0.1) |>
    keras3::layer_random_contrast(0.1) |>
    keras3::layer_conv_2d(4, 3) |>
    keras3::layer_flatten() |>
    keras3::layer_dense(1)
  fit <- fit_briefly(model, list(images, seq(0, 1, length.out = 12)), loss = "mse")
  expect_true(all(is.finite(fit$history$loss)))
  own <- as.vector(stats::predict(model, images, verbose = 0))
  expect_equal(gpu_predict(model, images), own, tolerance = 1e-4)
})

test_that("text is made numbers before the model, or by the model itself", {
  skip_without_tfdatasets()
  texts <- matrix(rep_len(c("the cat", "a dog runs", "the dog"), 40))
  words <- keras3::layer_text_vectorization(max_tokens = 20, output_mode = "tf_idf")
  keras3::adapt(words, texts)
  y <- a_matrix(40)[, 1]
  slices <- tfdatasets::dataset_batch(tfdatasets::tensor_slices_dataset(list(texts, y)), 10)
  mapped <- tfdatasets::dataset_map(slices, function(x, y) list(words(x), y))
  model <- zero_model(words$vocabulary_size())
  expect_identical(fit_briefly(model, mapped, loss = "mse")$rows, 80L)
  input <- keras3::keras_input(1, dtype = "string", name = "words")
  whole <- keras3::keras_model(input, keras3::layer_dense(words(input), 1))
  keras3::compile(whole, optimizer = "adam", loss = "mse")
  expect_snapshot(error = TRUE, {
    gpu_fit(whole, list(a_matrix(40), y))
    gpu_predict(whole, a_matrix(3))
  })
  expect_identical(gpu_fit(whole, slices, epochs = 2, verbose = 0)$rows, 80L)
  expect_length(gpu_predict(whole, texts), 40)
})

test_that("models saved by keras3 are trained and used after loading", {
  skip_without_keras3()
  x <- a_matrix(40)
  model <- keras3_model(3, 1, "linear", "mse", "mae")
  fit_briefly(model)
  file <- withr::local_tempfile(fileext = ".keras")
  keras3::save_model(model, file)
  again <- keras3::load_model(file)
  expect_equal(gpu_predict(again, x), gpu_predict(model, x), tolerance = 1e-6)
  expect_equal(gpu_evaluate(again, x, x[, 1]), gpu_evaluate(model, x, x[, 1]), tolerance = 1e-5)
  expect_named(fit_briefly(again)$history, c("loss", "mae", "val_loss", "val_mae"))
})

test_that("R's functions, which Keras calls alike, stay apart in copies, and are told of in files", {
  skip_without_keras3()
  double <- function(x) x * 2
  turn <- function(x) x * -3
  make <- function() {
    model <- keras3::keras_model_sequential(input_shape = 3)
    model <- keras3::layer_dense(model, 4, activation = double)
    model <- keras3::layer_dense(model, 1, activation = turn)
    keras3::compile(model, optimizer = "sgd", loss = "mse")
    model
  }
  path <- withr::local_tempfile(fileext = ".keras")
  x <- a_matrix(20)
  model <- make()
  small <- gpu_quantize(model)$model
  expect_equal(gpu_predict(small, x), gpu_predict(model, x), tolerance = 0.05)
  expect_warning(
    gpu_save(model, path, verbose = FALSE), "anonymous_R_function",
    class = "gpukeras_warning_shared_names"
  )
  attr(double, "py_function_name") <- "double"
  attr(turn, "py_function_name") <- "turn"
  expect_no_warning(gpu_save(model <- make(), path, overwrite = TRUE, verbose = FALSE))
  again <- gpu_load(path, custom_objects = list(double = double, turn = turn))
  expect_equal(gpu_predict(again, x), gpu_predict(model, x), tolerance = 1e-6)
})

test_that("models of Keras 2 are refused, and keras3 is named", {
  skip_without_keras3()
  old <- tryCatch(reticulate::import("tf_keras"), error = function(condition) NULL)
  skip_if(is.null(old), "The Python package tf_keras is not installed")
  model <- old$Sequential(list(old$layers$Dense(1L, input_shape = list(3L))))
  model$compile("adam", "mse")
  x <- a_matrix(8)
  file <- withr::local_tempfile(fileext = ".keras")
  expect_snapshot(error = TRUE, {
    gpu_fit(model, list(x, x[, 1]))
    gpu_evaluate(model, x, x[, 1])
    gpu_predict(model, x)
    gpu_check(model)
    gpu_save(model, file)
    gpu_run(function(model) 1, list(model = model))
  })
  expect_error(gpu_check(model, list(x, x[, 1])), "keras3", class = "gpukeras_error_model")
})
