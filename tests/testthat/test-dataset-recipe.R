# Recipes that R keeps: looked at, saved, and used in another session.

rows_of <- function(data) {
  lapply(as_r(data$handle$arrays), as_r)
}

# Through dput() and dget(): 15 digits of each number.
through_text <- function(value) {
  file <- withr::local_tempfile()
  dput(value, file)
  dget(file)
}

through_file <- function(value) {
  file <- withr::local_tempfile()
  saveRDS(value, file)
  readRDS(file)
}

test_that("a recipe comes of a dataset, of a model, and of itself", {
  skip_without_tensorflow()
  data <- gpu_dataset(y ~ ., mixed_frame(), seed = 1)
  recipe <- gpu_recipe(data)
  expect_s3_class(recipe, "gpu_recipe")
  expect_identical(gpu_recipe(trained(data)), recipe)
  expect_identical(gpu_recipe(recipe), recipe)
  expect_error(gpu_recipe(a_model()), class = "gpukeras_error_data", "has no recipe")
  expect_error(gpu_recipe(iris), class = "gpukeras_error_spec")
})

test_that("a recipe is plain R values", {
  skip_without_tensorflow()
  recipe <- gpu_recipe(gpu_dataset(y ~ ., mixed_frame(), seed = 1))
  is_plain <- function(value) {
    if (is.list(value)) all(vapply(value, is_plain, NA)) else is.null(value) || is.atomic(value)
  }
  expect_true(is_plain(unclass(recipe)))
  expect_identical(through_file(recipe), recipe)
  expect_identical(through_text(recipe)$portable, recipe$portable)
})

test_that("a recipe says what it does", {
  skip_without_tensorflow()
  frame <- mixed_frame()[c("double", "factor", "y")]
  frame$double[3] <- NA
  expect_identical(format(gpu_recipe(gpu_dataset(y ~ ., frame, na = "impute", seed = 1))), c(
    "<gpu_recipe>",
    "features: 5 from 1 number and 1 category",
    "columns:  double (number, standardised), factor (category)",
    "labels:   numbers from -0.4282 to 6.956",
    "missing:  imputed",
    "formula:  y ~ double + factor"
  ))
  matrix <- gpu_recipe(gpu_dataset(a_matrix(), seed = 1))
  expect_identical(format(matrix), c(
    "<gpu_recipe>", "features: 3 a row, as they are", "labels:   none", "missing:  refused"
  ))
  expect_output(expect_identical(expect_invisible(print(matrix)), matrix), "<gpu_recipe>")
})

test_that("a summary has the columns of a recipe, as that of its dataset", {
  skip_without_tensorflow()
  data <- gpu_dataset(y ~ ., mixed_frame()[c("double", "factor", "y")], seed = 1)
  found <- summary(gpu_recipe(data))
  expect_identical(found$columns, summary(data)$columns)
  expect_identical(found$text, format(gpu_recipe(data)))
  expect_output(print(found), "double +number +NA")
})

test_that("a recipe encodes other rows as those it was learned from", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  frame$when <- as.POSIXct("2026-01-01", tz = "Asia/Tokyo") + 3600 * seq_len(nrow(frame))
  data <- gpu_dataset(y ~ ., frame, seed = 1)
  for (recipe in list(gpu_recipe(data), through_text(gpu_recipe(data)))) {
    test <- gpu_dataset(y ~ ., frame[5:9, ], recipe = recipe, seed = 1)
    expected <- gpu_dataset(y ~ ., frame[5:9, ], recipe = data, seed = 1)
    expect_identical(rows_of(test), rows_of(expected))
  }
})

test_that("a recipe that is damaged is refused", {
  skip_without_tensorflow()
  recipe <- gpu_recipe(gpu_dataset(a_matrix(), seed = 1))
  for (portable in list(NULL, 3, "", "{}", substr(recipe$portable, 1, 50))) {
    broken <- recipe
    broken["portable"] <- list(portable)
    expect_error(gpu_dataset(a_matrix(), recipe = broken), class = "gpukeras_error_data")
  }
  broken["portable"] <- list(NULL)
  expect_snapshot(gpu_dataset(a_matrix(), recipe = broken), error = TRUE)
})

test_that("a model that is loaded anew predicts by its recipe", {
  skip_without_tensorflow(slow = TRUE)
  frame <- mixed_frame()
  frame$y <- factor(c("no", "yes", "\u00e9")[seq_len(40) %% 3 + 1])
  model <- trained(gpu_dataset(y ~ ., frame, seed = 1), epochs = 3)
  path <- withr::local_tempfile(fileext = ".keras")
  model$save(path)
  loaded <- import_keras()$models$load_model(path)
  expect_error(gpu_predict(loaded, frame), class = "gpukeras_error_data")
  recipe <- gpu_recipe(model)
  expect_identical(
    gpu_predict(loaded, frame, recipe = recipe, type = "class"),
    gpu_predict(model, frame, type = "class")
  )
  expect_identical(gpu_predict(loaded, frame), gpu_predict(model, frame)) # it is tied now
  again <- import_keras()$models$load_model(path)
  expect_identical(gpu_evaluate(again, frame, recipe = recipe), gpu_evaluate(model, frame))
})

test_that("a recipe that does not fit the model is refused", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(a_matrix(), factor(rep(1:3, 20)), seed = 1))
  narrow <- gpu_recipe(gpu_dataset(a_matrix(columns = 2), seed = 1))
  expect_error(
    gpu_predict(model, a_matrix(), recipe = narrow),
    class = "gpukeras_error_model", "takes rows of shape"
  )
})

test_that("another session predicts the same from the saved recipe and model", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  model <- trained(gpu_dataset(y ~ ., frame, seed = 1), epochs = 3)
  folder <- withr::local_tempdir()
  model$save(file.path(folder, "model.keras"))
  saveRDS(gpu_recipe(model), file.path(folder, "recipe.rds"))
  predicted <- in_second_session(function(folder, frame) {
    model <- reticulate::import("keras")$models$load_model(file.path(folder, "model.keras"))
    gpu_predict(model, frame, recipe = readRDS(file.path(folder, "recipe.rds")))
  }, list(folder, frame))
  expect_identical(predicted, gpu_predict(model, frame))
})
