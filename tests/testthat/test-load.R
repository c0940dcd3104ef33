# The other tests of gpu_load() are beside those of gpu_save().

test_that("live models and datasets stay as they are", {
  skip_without_tensorflow()
  model <- a_model()
  data <- gpu_dataset(matrix(1:6, 2))
  expect_identical(gpu_load(model), model)
  expect_identical(gpu_load(data), data)
  expect_identical(gpu_unmarshal(list(model, 1)), list(model, 1))
})
