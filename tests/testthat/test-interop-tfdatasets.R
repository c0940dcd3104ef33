# tfdatasets' pipelines: straight into gpu_fit(), or through gpu_dataset().

slices_of <- function(rows = 40) {
  x <- a_matrix(rows)
  tfdatasets::tensor_slices_dataset(list(x, x[, 1]))
}

test_that("pipelines of every shape train as they are", {
  skip_without_tfdatasets()
  x <- a_matrix(40)
  slices <- slices_of()
  long <- slices |>
    tfdatasets::dataset_map(function(x, y) list(2 * x, y)) |>
    tfdatasets::dataset_shuffle(40) |>
    tfdatasets::dataset_batch(10) |>
    tfdatasets::dataset_prefetch(1)
  inputs <- tfdatasets::tensor_slices_dataset(x)
  labels <- tfdatasets::tensor_slices_dataset(x[, 1])
  zipped <- tfdatasets::dataset_batch(tfdatasets::zip_datasets(list(inputs, labels)), 10)
  named <- tfdatasets::tensor_slices_dataset(list(x = x, y = x[, 1]))
  twice <- tfdatasets::dataset_batch(tfdatasets::dataset_concatenate(slices, slices), 16)
  even <- tfdatasets::dataset_batch(slices, 30, drop_remainder = TRUE)
  rows <- c(rows = 40, long = 40, zipped = 40, named = 40, twice = 80, even = 30)
  given <- list(slices, long, zipped, tfdatasets::dataset_batch(named, 8), twice, even)
  for (i in seq_along(given)) {
    fit <- fit_briefly(zero_model(), given[[i]], loss = "mse", epochs = 1, engine = "keras")
    expect_identical(fit$rows, as.integer(rows[[i]]), label = names(rows)[i])
  }
})

test_that("a pipeline of one batch gives the numbers of a matrix", {
  skip_without_tfdatasets()
  x <- a_matrix(40)
  batch <- tfdatasets::dataset_batch(slices_of(), 40)
  fit <- fit_briefly(zero_model(), batch, loss = "mse", epochs = 1, validation = batch)
  expect_equal(fit$history$loss, mean(x[, 1]^2), tolerance = 1e-5)
  model <- keras3_model(3, 1, "linear", "mse")
  expect_equal(gpu_evaluate(model, batch), gpu_evaluate(model, x, x[, 1]), tolerance = 1e-5)
  expect_equal(gpu_predict(model, batch), gpu_predict(model, x), tolerance = 1e-6)
})

test_that("a repeated pipeline needs steps, which gpu_dataset() takes", {
  skip_without_tfdatasets()
  endless <- tfdatasets::dataset_repeat(tfdatasets::dataset_batch(slices_of(), 10))
  expect_snapshot(gpu_fit(keras3_model(3, 1, "linear", "mse"), endless), error = TRUE)
  data <- gpu_dataset(endless, steps = 3)
  expect_identical(fit_briefly(zero_model(), data, loss = "mse", epochs = 1)$rows, 30L)
  kept <- gpu_dataset(tfdatasets::dataset_batch(slices_of(), 10), cache = TRUE, validation = 0.2)
  fit <- fit_briefly(zero_model(), kept, loss = "mse")
  expect_named(fit$history, c("loss", "val_loss"))
})

test_that("files of CSV go through tfdatasets", {
  skip_without_tfdatasets()
  x <- a_matrix(40)
  file <- withr::local_tempfile(fileext = ".csv")
  utils::write.csv(data.frame(a = x[, 1], b = x[, 2], c = x[, 3], y = x[, 1]), file, row.names = FALSE)
  spec <- tfdatasets::csv_record_spec(file)
  prepared <- tfdatasets::text_line_dataset(file, record_spec = spec) |>
    tfdatasets::dataset_map(function(row) {
      list(x = tensorflow::tf$stack(list(row$a, row$b, row$c)), y = row$y)
    }) |>
    tfdatasets::dataset_batch(10)
  expect_identical(fit_briefly(zero_model(), prepared, loss = "mse", epochs = 1)$rows, 40L)
  made <- tfdatasets::make_csv_dataset(
    file,
    batch_size = 10, num_epochs = 1, label_name = "y", shuffle = FALSE
  )
  inputs <- lapply(c(a = "a", b = "b", c = "c"), function(name) keras3::keras_input(1, name = name))
  joined <- keras3::layer_concatenate(unname(inputs))
  model <- keras3::keras_model(inputs, keras3::layer_dense(joined, 1))
  expect_identical(fit_briefly(model, made, loss = "mse", epochs = 1)$rows, 40L)
  expect_error(fit_briefly(zero_model(), made, loss = "mse"), "sequential", class = "gpukeras_error")
})

test_that("keras3's folders of images and feature spaces are pipelines too", {
  skip_without_tfdatasets()
  skip_if_not_installed("png")
  folder <- withr::local_tempdir()
  for (class in c("a", "b")) {
    dir.create(file.path(folder, class))
    for (i in 1:3) png::writePNG(array(i / 4, c(8, 8, 3)), file.path(folder, class, paste0(i, ".png")))
  }
  images <- keras3::image_dataset_from_directory(
    folder,
    image_size = c(8, 8), batch_size = 4, verbose = FALSE
  )
  model <- keras3::keras_model_sequential(input_shape = c(8, 8, 3)) |>
    keras3::layer_flatten() |>
    keras3::layer_dense(2, activation = "softmax")
  fit <- fit_briefly(model, images, loss = "sparse_categorical_crossentropy", epochs = 1)
  expect_identical(fit$rows, 6L)
  cars <- list(number = mtcars$wt, kind = as.character(mtcars$gear))
  space <- keras3::layer_feature_space(
    features = list(number = "float_normalized", kind = "string_categorical"),
    output_mode = "concat"
  )
  keras3::adapt(space, tfdatasets::tensor_slices_dataset(cars))
  encoded <- tfdatasets::tensor_slices_dataset(list(cars, mtcars$mpg)) |>
    tfdatasets::dataset_batch(8) |>
    tfdatasets::dataset_map(function(x, y) list(space(x), y))
  model <- keras3::keras_model_sequential(layers = list(keras3::layer_dense(units = 1)))
  expect_identical(fit_briefly(model, encoded, loss = "mse", epochs = 1)$rows, 32L)
})

test_that("tensors and NumPy arrays are rows and labels", {
  skip_without_tfdatasets()
  x <- a_matrix(40)
  model <- keras3_model(3, 1, "linear", "mse")
  tensor <- tensorflow::as_tensor(x)
  fit_briefly(model, list(tensor, tensorflow::as_tensor(x[, 1])), epochs = 1)
  expect_equal(gpu_predict(model, tensor), gpu_predict(model, x), tolerance = 1e-6)
  numpy <- reticulate::r_to_py(x)
  expect_equal(gpu_predict(model, numpy), gpu_predict(model, x), tolerance = 1e-6)
  expect_error(gpu_evaluate(model, slices_of(), x[, 1]), "`y` cannot be given beside `data`")
})
