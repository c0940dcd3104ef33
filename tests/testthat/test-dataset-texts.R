# Texts that stay texts, and batches whose shape varies: as Keras' own fit() trains them.

texts <- rep_len(c("a good film", "a bad plot", "the plot is good", "poor film"), 42)
colours <- rep_len(c("red", "green", "blue"), 42)
positive <- as.numeric(grepl("good", texts))
age <- sin(seq_len(42))

tf_module <- function() runtime()$tensorflow()

text_layer <- function(...) {
  layer <- import_keras()$layers$TextVectorization(20L, ...)
  layer$adapt(as.list(unique(texts)))
  layer
}

text_model <- function() {
  keras <- import_keras()
  keras$utils$set_random_seed(3L)
  model <- keras$Sequential(list(
    keras$Input(list(1L), dtype = "string", name = "words"),
    text_layer(output_sequence_length = 5L), keras$layers$Embedding(20L, 4L),
    keras$layers$GlobalAveragePooling1D(), keras$layers$Dense(1L, activation = "sigmoid")
  ))
  model$compile(optimizer = "adam", loss = "binary_crossentropy")
  model
}

applied <- function(layer, x) layer$`__call__`(x)

mixed_model <- function() {
  keras <- import_keras()
  keras$utils$set_random_seed(3L)
  colour <- keras$Input(list(1L), dtype = "string", name = "colour")
  age <- keras$Input(list(1L), name = "age")
  look <- keras$layers$StringLookup(
    vocabulary = list("red", "green", "blue"), output_mode = "one_hot"
  )
  joined <- applied(keras$layers$Concatenate(), list(applied(look, colour), age))
  output <- applied(keras$layers$Dense(1L, activation = "sigmoid"), joined)
  model <- keras$Model(list(colour, age), output)
  model$compile(optimizer = "adam", loss = "binary_crossentropy")
  model
}

number_model <- function() {
  keras <- import_keras()
  model <- keras$Sequential(list(keras$Input(list(1L), name = "age"), keras$layers$Dense(1L)))
  model$compile(optimizer = "sgd", loss = "mse")
  model
}

text_tensor <- function(x) tf_module()$constant(as.list(x), shape = list(length(x), 1L))

keras_losses <- function(model, x, y) {
  fit <- model$fit(
    x, reticulate::np_array(y),
    batch_size = 8L, epochs = 3L, shuffle = FALSE, verbose = 0L
  )
  unlist(as_r(fit$history)$loss)
}

losses <- function(model, data) {
  gpu_fit(model, data, epochs = 3, verbose = 0)$history$loss
}

test_that("a character matrix trains a model that takes text as Keras does", {
  skip_without_tensorflow()
  silence_tensorflow()
  expected <- text_model()
  model <- text_model()
  wanted <- keras_losses(expected, text_tensor(texts), positive)
  data <- gpu_dataset(matrix(texts), positive, batch_size = 8, shuffle = FALSE)
  fit <- gpu_fit(model, data, epochs = 3, verbose = 0)
  expect_equal(fit$history$loss, wanted, tolerance = 1e-5)
  expect_match(fit$reasons[["engine"]], "XLA cannot compile a model that takes text")
  own <- as.vector(as_r(expected$predict(text_tensor(texts), verbose = 0L)))
  expect_equal(gpu_predict(model, matrix(texts)), own, tolerance = 1e-5)
  expect_equal(gpu_predict(model, texts[1:5]), own[1:5], tolerance = 1e-5)
  vector <- text_model()
  gpu_fit(vector, texts, positive, epochs = 3, batch_size = 8, shuffle = FALSE, verbose = 0)
  expect_equal(as_r(vector$get_weights()), as_r(model$get_weights()))
  expect_equal(
    gpu_evaluate(model, matrix(texts), positive)[["loss"]],
    as_r(expected$evaluate(text_tensor(texts), reticulate::np_array(positive), verbose = 0L)),
    tolerance = 1e-5
  )
  expect_snapshot(print(data))
})

test_that("the columns of a data frame are inputs of their names, if the model takes text", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  expected <- mixed_model()
  model <- mixed_model()
  inputs <- list(colour = text_tensor(colours), age = reticulate::np_array(matrix(age)))
  wanted <- keras_losses(expected, unname(inputs), positive)
  frame <- data.frame(age, colour = colours)
  data <- gpu_dataset(frame, positive, encode = "none", batch_size = 8, shuffle = FALSE)
  expect_equal(losses(model, data), wanted, tolerance = 1e-5)
  own <- as.vector(as_r(expected$predict(unname(inputs), verbose = 0L)))
  expect_equal(gpu_predict(model, cbind(other = "z", frame)), own, tolerance = 1e-5)
  expect_s3_class(gpu_fit(mixed_model(), list(frame, positive), verbose = 0), "gpu_history")
  formula <- cbind(frame, positive)
  data <- gpu_dataset(positive ~ colour + age, formula, encode = "none")
  model <- mixed_model()
  gpu_fit(model, data, verbose = 0)
  expect_length(gpu_predict(model, formula), 42)
  expect_snapshot(print(gpu_dataset(frame, positive, encode = "none", seed = 1)))
})

test_that("a pipeline of text trains as Keras does", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  tf <- tf_module()
  slices <- tf$data$Dataset$from_tensor_slices(reticulate::tuple(
    tf$constant(as.list(texts)), tf$constant(as.list(positive))
  ))
  batched <- slices$batch(8L)
  expected <- text_model()
  model <- text_model()
  fit <- expected$fit(batched, epochs = 3L, shuffle = FALSE, verbose = 0L)
  expect_equal(losses(model, batched), unlist(as_r(fit$history)$loss), tolerance = 1e-5)
  own <- as.vector(as_r(expected$predict(batched, verbose = 0L)))
  expect_equal(gpu_predict(model, batched), own, tolerance = 1e-5)
  expect_equal(gpu_predict(model, matrix(texts)), own, tolerance = 1e-5)
  expect_snapshot(print(gpu_dataset(batched)))
})

# Batches whose shape varies -----------------------------------------------------------------------

lengths <- c(4, 4, 7, 3)
sequences <- lapply(lengths, function(n) array(sin(seq_len(6 * n * 2)), c(6, n, 2)))
targets <- lapply(sequences, function(x) rowSums(x))

sequence_model <- function(per_step = FALSE) {
  keras <- import_keras()
  keras$utils$set_random_seed(3L)
  layers <- list(
    keras$Input(list(NULL, 2L)), keras$layers$Conv1D(3L, 2L, padding = "same"),
    if (!per_step) keras$layers$GlobalAveragePooling1D(), keras$layers$Dense(1L)
  )
  model <- keras$Sequential(Filter(Negate(is.null), layers))
  model$compile(optimizer = "sgd", loss = "mse")
  model
}

padded <- function() {
  at <- 0
  function() {
    at <<- if (at == length(sequences)) 0 else at + 1
    if (at > 0) list(sequences[[at]], targets[[at]])
  }
}

test_that("a function's batches may vary in shape, as Keras' own do", {
  skip_without_tensorflow(slow = TRUE)
  silence_tensorflow()
  expected <- sequence_model()
  model <- sequence_model()
  each <- Map(sequences, targets, f = function(x, y) {
    rows <- reticulate::tuple(reticulate::np_array(x, "float32"), reticulate::np_array(matrix(y)))
    tf_module()$data$Dataset$from_tensors(rows)
  })
  whole <- Reduce(function(one, other) one$concatenate(other), each)
  fit <- expected$fit(whole, epochs = 2L, shuffle = FALSE, verbose = 0L)
  wanted <- unlist(as_r(fit$history)$loss)
  data <- gpu_dataset(padded())
  fit <- gpu_fit(model, data, epochs = 2, verbose = 0)
  expect_equal(fit$history$loss, wanted, tolerance = 1e-5)
  expect_identical(fit$engine$engine, "keras")
  expect_match(fit$reasons[["engine"]], "rows vary in shape")
  for (x in sequences) {
    own <- as.vector(as_r(expected$predict(reticulate::np_array(x), verbose = 0L)))
    expect_equal(gpu_predict(model, x), own, tolerance = 1e-4)
  }
})

test_that("outputs whose shape varies by batch are a list of arrays", {
  skip_without_tensorflow()
  silence_tensorflow()
  model <- sequence_model(per_step = TRUE)
  found <- gpu_predict(model, gpu_dataset(padded()))
  expect_identical(lapply(found, dim), lapply(lengths, function(n) c(6L, as.integer(n), 1L)))
  own <- as_r(model$predict(reticulate::np_array(sequences[[3]]), verbose = 0L))
  expect_equal(found[[3]], own, tolerance = 1e-5)
})

test_that("rows of texts are taken out as texts", {
  skip_without_tensorflow()
  words <- matrix(c("good", "bad", "good", "fine"), 2)
  data <- gpu_dataset(words, 1:2, batch_size = 2)
  expect_identical(unname(data[1:2, ]$x), words)
  frame <- data.frame(text = c("good", "bad"), y = 1:2)
  data <- gpu_dataset(frame, y = "y", encode = "none", batch_size = 2)
  expect_identical(as.vector(data[c(2, 1), ]$x), c("bad", "good"))
})

test_that("rows of several inputs are taken out as a list of them", {
  skip_without_tensorflow()
  words <- matrix(c("good", "bad", "good", "fine"), 2)
  pixels <- array(1:12, c(2, 3, 2))
  data <- gpu_dataset(
    list(words = words, pixels = pixels, table = data.frame(a = c(1, 3), b = c("u", "v"))), 1:2
  )
  taken <- data[2:1, ]$x
  expect_identical(
    lapply(taken, dim), list(words = c(2L, 2L), pixels = c(2L, 3L, 2L), table = c(2L, 3L))
  )
  expect_identical(unname(taken$words), words[2:1, ])
  expect_equal(unname(taken$pixels), unname(data[1:2, ]$x$pixels[2:1, , ]))
  expect_identical(colnames(taken$table), c("a", "b=u", "b=v"))
  expect_equal(unname(taken$table[, 2:3]), rbind(c(0, 1), c(1, 0)))
})

test_that("what does not fit is refused by name", {
  skip_without_tensorflow()
  silence_tensorflow()
  expect_snapshot(error = TRUE, {
    gpu_fit(text_model(), list(a_matrix(42, 1), positive))
    gpu_fit(number_model(), list(matrix(texts), positive))
    gpu_dataset(matrix(c("a", NA, "b")), 1:3)
    gpu_dataset(data.frame(day = Sys.Date() - 1:3, a = "x"), 1:3, encode = "none")
    gpu_mlp(gpu_dataset(matrix(texts), positive))
    gpu_dataset_save(gpu_dataset(matrix(texts), positive), tempfile())
    gpu_dataset(function() list(matrix("a"), 1))
    gpu_fit(sequence_model(), gpu_dataset(padded(), batch_size = 4), epochs = 1)
  })
})
