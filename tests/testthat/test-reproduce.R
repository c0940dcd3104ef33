# Two trainings from the same state; what differs is tested by the core.

a_reproduction <- function(...) {
  record <- list(
    equal = FALSE, kind = "layer", name = "odd", layer_class = "Noise",
    sentence = paste(
      "Two trainings from the same state differ: first the output of the layer \"odd\" of Noise",
      "in step 1 (RandomStandardNormal)."
    ),
    operations = list("RandomStandardNormal"), epoch = 1L, metric = "loss",
    values = list(0.1, 0.1 + 1e-12), step = 1L, largest = 0.0123, epochs = 2L,
    settings = list(
      list(name = "deterministic kernels", value = "FALSE", effect = "needed on a GPU only"),
      list(name = "XLA_FLAGS", value = "not set", effect = "read when TensorFlow starts")
    )
  )
  new_gpu_reproduction(utils::modifyList(record, list(...)))
}

test_that("a comparison names what differs, and lists settings", {
  expect_snapshot({
    a_reproduction()
    a_reproduction(
      equal = TRUE, epoch = 0L, sentence = "Two trainings of 2 epochs were equal, bit by bit."
    )
  })
})

test_that("gpu_reproduce() trains twice, and leaves the model as it was", {
  skip_without_tensorflow()
  silence_tensorflow()
  data <- gpu_dataset(mpg ~ ., mtcars, seed = 1)
  model <- gpu_mlp(data, units = 3, dropout = 0.2, seed = 1)
  before <- gpu_predict(model, mtcars, recipe = data)
  found <- gpu_reproduce(model, data, epochs = 1)
  expect_true(found$equal)
  expect_identical(found$operations, character())
  expect_identical(gpu_predict(model, mtcars, recipe = data), before)
  expect_error(gpu_reproduce(model, mtcars), class = "gpukeras_error_spec")
})
