# What other versions have saved; the other tests of gpu_load() are beside those of gpu_save().

test_that("live models and datasets stay as they are", {
  skip_without_tensorflow()
  model <- a_model()
  data <- gpu_dataset(matrix(1:6, 2))
  expect_identical(gpu_load(model), model)
  expect_identical(gpu_load(data), data)
  expect_identical(gpu_unmarshal(list(model, 1)), list(model, 1))
})

before <- function(name) test_path("fixtures", "before-packages", name)

rows_before <- function() {
  data.frame(
    price = 1:40 / 10, cut = factor(rep(c("a", "b"), 20)), size = sin(1:40),
    day = as.Date("2024-01-01") + 1:40
  )
}

test_that("models, recipes and histories of the version before the core had packages load", {
  skip_without_tensorflow()
  silence_tensorflow()
  expected <- readRDS(before("expected.rds"))$predictions
  model <- gpu_load(before("model.keras"))
  expect_equal(gpu_predict(model, rows_before()), expected, tolerance = 1e-5)
  recipe <- readRDS(before("recipe.rds"))
  expect_output(print(recipe), "log(size + 2)", fixed = TRUE)
  plain <- file.path(withr::local_tempdir(), "plain.keras")
  model$save(plain)
  plain <- suppressMessages(gpu_load(plain))
  expect_equal(gpu_predict(plain, rows_before(), recipe = recipe), expected, tolerance = 1e-5)
  expect_output(print(readRDS(before("history.rds"))), "<gpu_history> 2 epochs", fixed = TRUE)
  expect_identical(read_history(before("model.keras"))$epochs, 2L)
})
