test_that("folds, seeds and settings make a table of models, and their ensemble", {
  skip_without_tensorflow()
  cars <- gpu_dataset(mpg ~ ., data = mtcars, seed = 1)
  fits <- gpu_fit_many(
    cars, function(rate) gpu_mlp(cars, units = 4, learning_rate = rate),
    folds = 3, seeds = 2, grid = data.frame(rate = c(0.01, 0.1)), epochs = 3, verbose = FALSE
  )
  expect_s3_class(fits, c("gpu_fits", "gpu_result"), exact = TRUE)
  table <- as.data.frame(fits)
  expect_identical(table$rate, rep(c(0.01, 0.1), each = 6))
  expect_identical(table$seed, rep(rep(1:2, each = 3), 2))
  expect_identical(unique(table$fold), paste0("Fold", 1:3))
  expect_length(fits, 12)
  held <- fits$predictions
  expect_identical(sort(held$row[held$model <= 3]), 1:32)

  # A model of the table is an ordinary one.
  one <- fits[[2]]
  rows <- held$row[held$model == 2]
  expect_equal(gpu_predict(one, mtcars[rows, ]), held$prediction[held$model == 2], tolerance = 1e-5)

  best <- which(table$rate == summary(fits)$rate[1])
  all <- vapply(best, function(i) gpu_predict(fits[[i]], mtcars[1:2, ]), numeric(2))
  found <- gpu_predict(fits, mtcars[1:2, ])
  expect_equal(found$mean, rowMeans(all), tolerance = 1e-5)
  expect_equal(found$sd, apply(all, 1, sd), tolerance = 1e-4)
  expect_equal(found$upper, apply(all, 1, quantile, 0.95), tolerance = 1e-4)
  expect_length(fits$histories[[12]]$val_loss, 3)
  expect_error(gpu_predict(fits, mtcars, group = "a"), class = "gpukeras_error_spec")
  expect_snapshot(error = TRUE, {
    gpu_predict(fits, mtcars, type = "class")
    gpu_predict(fits, mtcars, type = "quantile")
    gpu_predict(fits, mtcars, interval = 2)
  })
})

test_that("a formula makes a model for each group, and classes keep their levels", {
  skip_without_tensorflow()
  fits <- gpu_fit_many(
    iris, Species ~ ., group = rep(c("a", "b"), 75), epochs = 2, verbose = FALSE
  )
  expect_identical(as.data.frame(fits)$group, c("a", "b"))
  expect_identical(as.data.frame(fits)$rows, c(75L, 75L))
  classes <- gpu_predict(fits, iris[c(1, 60), ], type = "class", group = c("b", "a"))
  expect_identical(levels(classes), levels(iris$Species))
  expect_named(gpu_predict(fits, iris[1, ], group = "a"), c(outer(levels(iris$Species), c(
    "mean", "sd", "lower", "upper"
  ), paste)))
})

test_that("rows are predicted by the model of their group, which is that of the group alone", {
  skip_without_tensorflow(slow = TRUE)
  rows <- iris
  rows[rows$Species == "setosa", 1:4] <- rows[rows$Species == "setosa", 1:4] * 100
  build <- function(data) gpu_mlp(data, units = 4, seed = 1)
  whole <- gpu_dataset(Sepal.Length ~ . - Species, rows, batch_size = 16, seed = 1)
  fits <- gpu_fit_many(whole, build(whole), group = rows$Species, epochs = 3, verbose = FALSE)
  place <- rev(seq_len(150))
  found <- gpu_predict(fits, rows[place, ], group = rows$Species[place])
  alone <- unsplit(lapply(split(rows, rows$Species), function(part) {
    data <- gpu_dataset(Sepal.Length ~ . - Species, part, batch_size = 16, seed = 1)
    model <- build(data)
    gpu_fit(model, data, epochs = 3, engine = "graph_loop", verbose = FALSE)
    gpu_predict(model, part)
  }), rows$Species)
  expect_equal(found$mean, alone[place], tolerance = 1e-4)
})

test_that("rows are predicted by the model of their group, by the name of its column", {
  skip_without_tensorflow()
  rows <- iris
  rows$plot <- rep(c("x", "y"), 75)
  fits <- gpu_fit_many(
    rows, Sepal.Length ~ Petal.Width, group = "plot", epochs = 1, verbose = FALSE
  )
  found <- gpu_predict(fits, rows[c(1:2, 4), ])
  expect_equal(found$mean[c(1, 3)], c(
    gpu_predict(fits[[1]], rows[1, ]), gpu_predict(fits[[2]], rows[4, ])
  ), tolerance = 1e-5)
  expect_equal(found$sd, numeric(3))
  rows$plot[1:3] <- c("new", NA, "other")
  expect_snapshot(error = TRUE, {
    gpu_predict(fits, rows)
    gpu_predict(fits, iris)
    gpu_predict(fits, iris, group = "x")
    gpu_predict(fits, gpu_dataset(Sepal.Length ~ ., iris))
    gpu_predict(fits[[1]], rows, group = "x")
    as_new_groups(list(table = data.frame(seed = 1)), iris, "x", NULL)
  })
})

test_that("labels that a fold holds out are not known to its model", {
  skip_without_tensorflow(slow = TRUE)
  skip_if_not_installed("MASS")
  predict_with <- function(labels) {
    rows <- replace(MASS::Boston[1:200, ], "medv", labels)
    data <- gpu_dataset(medv ~ ., rows, seed = 1)
    fits <- gpu_fit_many(
      data, gpu_mlp(data, units = 8, seed = 1), epochs = 2, folds = list(1:100, 101:200),
      verbose = FALSE
    )
    gpu_predict(fits[[1]], rows)
  }
  labels <- MASS::Boston$medv[1:200]
  found <- predict_with(replace(labels, 1:20, 1e5))
  expect_identical(found, predict_with(labels))
  expect_lt(max(found), 200)
})

test_that("what does not fit is named before anything trains", {
  skip_without_tensorflow()
  cars <- gpu_dataset(mpg ~ ., data = mtcars, seed = 1)
  model <- gpu_mlp(cars)
  expect_snapshot(error = TRUE, {
    gpu_fit_many(mtcars, model)
    gpu_fit_many(cars, mpg ~ .)
    gpu_fit_many(mtcars, mpg ~ ., group = "zz")
    gpu_fit_many(cars, model, group = c(NA, 1))
    gpu_fit_many(cars, model, group = 1:3)
    gpu_fit_many(cars, function(a) model, grid = data.frame(b = 1))
    gpu_fit_many(cars, model, grid = list(b = 1))
    gpu_fit_many(cars, model, seeds = "a")
    gpu_fit_many(cars, model, seeds = c(1, 1))
    gpu_fit_many(cars, model, seeds = 0)
    gpu_fit_many(cars, function() 5)
    gpu_fit_many(cars, model, folds = NA)
    gpu_fit_many(cars, model, folds = list(1:3, 99))
    gpu_fit_many(cars, model, folds = list(1:3), together = rep(1, 32))
  })
})

test_that("folds of classes are those of rsample's strata, and classes without rows are named", {
  skip_without_tensorflow(slow = TRUE)
  skip_if_not_installed("rsample")
  rows <- data.frame(x = seq_len(189), y = factor(rep(c("no", "case"), c(130, 59))))
  held_by_class <- function(held) unname(sapply(held, function(fold) table(rows$y[fold])))
  data <- gpu_dataset(y ~ x, rows, seed = 1)
  fits <- gpu_fit_many(data, gpu_mlp(data, 2), folds = 5, epochs = 1, verbose = FALSE)
  found <- held_by_class(split(fits$predictions$row, fits$predictions$model))
  set.seed(1)
  strata <- lapply(rsample::vfold_cv(rows, 5, strata = "y")$splits, rsample::complement)
  expected <- held_by_class(strata)
  expect_identical(apply(found, 1, sort), apply(expected, 1, sort))
  expect_length(fits$notes, 0)

  # rsample pools classes below a tenth of the rows; here each is dealt out.
  rows$y <- factor(rep(c("no", "case"), c(185, 4)), levels = c("no", "case", "never"))
  expect_snapshot(data <- gpu_dataset(y ~ x, rows, seed = 1))
  if (requireNamespace("nnet", quietly = TRUE)) {
    expect_warning(nnet::multinom(y ~ x, rows, trace = FALSE), "never")
  }
  fits <- gpu_fit_many(data, gpu_mlp(data, 2), folds = 5, epochs = 1, verbose = FALSE)
  found <- held_by_class(split(fits$predictions$row, fits$predictions$model))
  expect_identical(sort(found[2, ]), c(0L, 1L, 1L, 1L, 1L))
  expect_length(fits$notes, 1)
  expect_match(fits$notes, "^`Fold5` holds out no row of class \"case\"\\.$")
  expect_match(format(fits), "holds out no row", all = FALSE)
})

test_that("models that are kept in a folder are not trained again", {
  skip_without_tensorflow()
  cars <- gpu_dataset(mpg ~ ., data = mtcars, seed = 1)
  model <- gpu_mlp(cars, units = 4, seed = 1)
  folder <- withr::local_tempfile()
  train <- function(epochs = 2) {
    gpu_fit_many(cars, model, folds = 3, epochs = epochs, checkpoint = folder, verbose = FALSE)
  }
  first <- train()
  written <- file.mtime(list.files(file.path(folder, "models"), full.names = TRUE))
  second <- train()
  expect_identical(second$predictions, first$predictions)
  expect_identical(file.mtime(list.files(file.path(folder, "models"), full.names = TRUE)), written)
  expect_error(train(epochs = 3), "`epochs` was 2 and is 3", class = "gpukeras_error_checkpoint")
  folder <- NA_character_
  expect_error(train(), "`checkpoint` must be a value, not NA", class = "gpukeras_error_spec")
})
