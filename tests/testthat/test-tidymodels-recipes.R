# Recipes of the package recipes: where they learn, what they are applied to, and what keeps them.

skip_without_recipes <- function(slow = FALSE) {
  skip_if_not_installed("recipes")
  skip_without_tensorflow(slow)
}

# Steps that learn from rows, and one that makes columns of levels.
a_recipe <- function(rows = cars_frame()) {
  recipes::recipe(mpg ~ ., data = rows) |>
    recipes::step_normalize(recipes::all_numeric_predictors()) |>
    recipes::step_dummy(recipes::all_nominal_predictors())
}

cars_frame <- function() {
  frame <- mtcars[c("mpg", "wt", "hp")]
  frame$gears <- factor(mtcars$gear)
  frame[c(seq(1, 32, 2), seq(2, 32, 2)), ] # the first 24 have all gears
}

rows_of <- function(data) lapply(as_r(data$handle$arrays), as_r)

test_that("steps learn from the training rows only", {
  skip_outside_lane()
  skip_without_recipes()
  cars <- cars_frame()
  data <- gpu_dataset(a_recipe(), data = cars, validation = 0.25, seed = 4)
  drawn <- lapply(list(data$handle$train_rows, data$handle$validation_rows), function(rows) {
    as.integer(as_r(rows)) + 1L
  })
  expect_length(drawn[[2]], 8)
  by_hand <- recipes::prep(a_recipe(), training = cars[drawn[[1]], ])
  baked <- as.data.frame(recipes::bake(by_hand, cars))
  expect_identical(
    rows_of(data), rows_of(gpu_dataset(mpg ~ ., baked, validation = 0.25, seed = 4))
  )
  # Not what all rows would teach.
  all <- as.data.frame(recipes::bake(recipes::prep(a_recipe(), training = cars), cars))
  whole <- gpu_dataset(mpg ~ ., all, validation = 0.25, seed = 4, scale = FALSE)
  data <- gpu_dataset(a_recipe(), data = cars, validation = 0.25, seed = 4, scale = FALSE)
  expect_gt(max(abs(rows_of(data)[[1]] - rows_of(whole)[[1]])), 1e-3)
})

test_that("the seed of a split is R's own, unless it is given", {
  skip_without_recipes()
  set.seed(8)
  one <- gpu_dataset(a_recipe(), data = cars_frame(), validation = 0.25)
  set.seed(8)
  two <- gpu_dataset(a_recipe(), data = cars_frame(), validation = 0.25)
  expect_identical(rows_of(one), rows_of(two))
})

test_that("a model predicts and evaluates rows as they were before the steps", {
  skip_without_recipes()
  cars <- cars_frame()
  model <- trained(gpu_dataset(a_recipe(), data = cars[1:24, ], seed = 1), epochs = 3)
  prepared <- recipes::prep(a_recipe(), training = cars[1:24, ])
  baked <- lapply(list(cars[1:24, ], cars), function(rows) {
    as.data.frame(recipes::bake(prepared, rows))
  })
  plain <- trained(gpu_dataset(mpg ~ ., baked[[1]], seed = 1), epochs = 3)
  expect_identical(gpu_predict(model, cars[-1]), gpu_predict(plain, baked[[2]]))
  expect_identical(gpu_evaluate(model, cars), gpu_evaluate(plain, baked[[2]]))
  history <- gpu_fit(
    model, gpu_dataset(a_recipe(), data = cars[1:24, ], seed = 1),
    epochs = 1, validation = cars[25:32, ], verbose = FALSE
  )
  expect_equal(
    history$history$val_loss, gpu_evaluate(model, cars[25:32, ])[["loss"]],
    tolerance = 1e-5
  )
})

test_that("rows for a test are prepared as those that trained", {
  skip_without_recipes()
  cars <- cars_frame()
  train <- gpu_dataset(a_recipe(), data = cars[1:24, ], seed = 1)
  model <- trained(train)
  expected <- gpu_evaluate(model, cars[25:32, ])
  for (recipe in list(train, model, gpu_recipe(model))) {
    test <- gpu_dataset(a_recipe(), data = cars[25:32, ], recipe = recipe, seed = 1)
    expect_identical(gpu_evaluate(model, test), expected)
  }
})

test_that("roles say what is a label, a weight, and neither", {
  skip_without_recipes()
  cars <- mtcars[c("mpg", "hp", "wt", "disp")]
  cars$id <- rownames(mtcars)
  several <- recipes::recipe(cars) |>
    recipes::update_role(mpg, hp, new_role = "outcome") |>
    recipes::update_role(wt, disp, new_role = "predictor") |>
    recipes::update_role(id, new_role = "id")
  data <- gpu_dataset(several, data = cars)
  expect_identical(vapply(data$label$outputs, `[[`, "", "name"), c("mpg", "hp"))
  expect_identical(vapply(data$columns, `[[`, "", "name"), c("wt", "disp"))
  none <- gpu_dataset(recipes::recipe(~ wt + hp, data = cars), data = cars)
  expect_null(none$label)

  skip_if_not_installed("hardhat")
  cars$weight <- hardhat::importance_weights(seq(0.5, 2, length.out = 32))
  weighed <- recipes::recipe(mpg ~ wt + weight, data = cars)
  data <- gpu_dataset(weighed, data = cars, validation = 0.25, seed = 2)
  by_hand <- gpu_dataset(
    mpg ~ wt, cars,
    weights = as.numeric(cars$weight), validation = 0.25, seed = 2
  )
  expect_identical(rows_of(data), rows_of(by_hand))
})

test_that("steps that skip new rows are for training rows only", {
  skip_without_recipes(slow = TRUE)
  cars <- cars_frame()
  skipping <- recipes::recipe(mpg ~ wt, data = cars) |> recipes::step_log(mpg, skip = TRUE)
  data <- gpu_dataset(skipping, data = cars, seed = 1)
  expect_equal(as.vector(rows_of(data)[[2]]), log(cars$mpg), tolerance = 1e-6)
  model <- trained(data)
  expect_length(gpu_predict(model, cars["wt"]), 32)
  # Labels of new rows are not logarithms.
  expect_equal(
    gpu_evaluate(model, cars)[["mean_absolute_error"]],
    mean(abs(gpu_predict(model, cars) - cars$mpg)),
    tolerance = 1e-5
  )
  few <- recipes::recipe(mpg ~ wt, data = cars) |> recipes::step_sample(size = 20, skip = TRUE)
  expect_identical(gpu_dataset(few, data = cars)$plan$rows, 20L)
})

test_that("a recipe that is prepped stays as it is, and a message says what that means", {
  skip_without_recipes()
  cars <- cars_frame()
  prepped <- recipes::prep(a_recipe(), training = cars)
  expect_message(data <- gpu_dataset(prepped, data = cars, seed = 1), NA)
  expect_identical(rows_of(data), rows_of(gpu_dataset(a_recipe(), data = cars, seed = 1)))
  expect_snapshot(few <- gpu_dataset(prepped, data = cars[1:20, ]))
  skipping <- recipes::recipe(mpg ~ wt, data = cars) |>
    recipes::step_sample(size = 20, skip = TRUE) |>
    recipes::prep()
  expect_snapshot(all <- gpu_dataset(skipping, data = cars))
  expect_identical(all$plan$rows, 32L)
})

test_that("gpu_recipe() says what prepares rows, and holds it", {
  skip_without_recipes()
  recipe <- gpu_recipe(gpu_dataset(a_recipe(), data = cars_frame(), scale = FALSE))
  expect_snapshot(recipe)
  expect_s3_class(recipe$prepared, "recipe")
  expect_identical(nrow(recipe$prepared$template), 0L) # no training rows
  expect_null(gpu_recipe(gpu_dataset(mpg ~ wt, cars_frame()))$prepared)
  plain <- gpu_dataset(recipes::recipe(mpg ~ wt, data = mtcars), data = mtcars)
  expect_identical(tail(format(gpu_recipe(plain)), 1), "prepared: by a recipe without steps")
})

# A model that was saved with its recipe.
local_cars <- function(frame = parent.frame()) {
  model <- trained(gpu_dataset(a_recipe(), data = cars_frame(), seed = 1))
  folder <- withr::local_tempdir(.local_envir = frame)
  gpu_save(model, file.path(folder, "cars.keras"), verbose = FALSE)
  saveRDS(gpu_recipe(model), file.path(folder, "recipe.rds"))
  list(model = model, folder = folder)
}

# What is predicted where the recipe is not: nothing, then by the recipe, then by the one it has.
predict_elsewhere <- function(folder, rows) {
  model <- gpu_load(file.path(folder, "cars.keras"))
  refused <- tryCatch(gpu_predict(model, rows), gpukeras_error_data = conditionMessage)
  recipe <- readRDS(file.path(folder, "recipe.rds"))
  list(refused, gpu_predict(model, rows, recipe = recipe), gpu_predict(model, rows))
}

expect_elsewhere <- function(found, model) {
  expect_match(found[[1]], "which[[:space:]]+is not here")
  expect_identical(found[[2]], gpu_predict(model, cars_frame()))
  expect_identical(found[[3]], found[[2]])
}

test_that("a saved model finds its recipe in the session, and takes it where it is not", {
  skip_without_recipes(slow = TRUE)
  cars <- local_cars()
  expected <- gpu_predict(cars$model, cars_frame())
  expect_no_warning(loaded <- gpu_load(file.path(cars$folder, "cars.keras")))
  expect_identical(gpu_predict(loaded, cars_frame()), expected)
  before <- the$prepared
  withr::defer(the$prepared <- before)
  the$prepared <- list() # as in another session
  expect_snapshot(error = TRUE, gpu_predict(cars$model, cars_frame()))
  found <- predict_elsewhere(cars$folder, cars_frame())
  the$prepared <- before
  expect_elsewhere(found, cars$model)
})

test_that("another session takes the recipe of a saved model", {
  skip_unless_nightly()
  skip_without_recipes()
  cars <- local_cars()
  found <- in_second_session(predict_elsewhere, list(cars$folder, cars_frame()))
  expect_elsewhere(found, cars$model)
})

test_that("what a recipe cannot do is said", {
  skip_without_recipes()
  cars <- cars_frame()
  recipe <- a_recipe()
  data <- gpu_dataset(recipe, data = cars, seed = 1)
  model <- trained(data)
  expect_snapshot(error = TRUE, gpu_dataset(recipe))
  expect_snapshot(error = TRUE, gpu_dataset(recipe, data = "cars.csv"))
  expect_snapshot(error = TRUE, gpu_dataset(recipe, data = cars, wat = 1))
  expect_snapshot(error = TRUE, gpu_dataset(recipe, data = cars, validation = 2))
  expect_snapshot(error = TRUE, gpu_dataset(recipe, data = cars, validation = 0.2, seed = "a"))
  expect_snapshot(error = TRUE, gpu_dataset(mpg ~ ., cars, recipe = data))
  expect_snapshot(error = TRUE, gpu_predict(model, cars["wt"]))
  expect_snapshot(error = TRUE, gpu_predict(model, as.matrix(cars[2:3])))
  expect_snapshot(error = TRUE, gpu_evaluate(model, cars[-1]))
  sampling <- recipes::step_sample(recipe, size = 9)
  expect_snapshot(error = TRUE, gpu_dataset(sampling, data = cars, validation = 0.2))
  cars$wt[3] <- NA
  expect_snapshot(error = TRUE, gpu_dataset(recipe, data = cars, validation = 0.2, na = "drop"))
  expect_identical(gpu_dataset(recipe, data = cars, na = "drop")$plan$dropped_rows, 1L)
})

test_that("an error of a step is the parent of ours", {
  skip_without_recipes()
  broken <- recipes::step_mutate(a_recipe(), z = stop("of the step's own"))
  condition <- expect_error(
    gpu_dataset(broken, data = cars_frame()), "cannot be prepped",
    class = "gpukeras_error_data"
  )
  said <- character()
  while (!is.null(condition)) {
    said <- c(said, conditionMessage(condition))
    condition <- condition$parent
  }
  expect_match(paste(said, collapse = " "), "of the step's own")
})

test_that("a recipe of files that were saved is refused where rows come from elsewhere", {
  skip_without_recipes()
  model <- trained(gpu_dataset(a_recipe(), data = cars_frame(), seed = 1))
  path <- withr::local_tempfile(fileext = ".csv")
  utils::write.csv(cars_frame(), path, row.names = FALSE)
  expect_error(gpu_predict(model, path), "prepared by a recipe", class = "gpukeras_error_data")
  expect_error(gpu_evaluate(model, path), "prepared by a recipe", class = "gpukeras_error_data")
})

test_that("steps that move rows are refused where rows must keep their places", {
  skip_if_not_installed("recipes")
  skip_without_tensorflow()
  rows <- data.frame(y = c(3, 1, 2, 5, 4), x = c(3, 1, 2, 5, 4))
  arranged <- recipes::step_arrange(recipes::recipe(y ~ x, rows), x)
  expect_snapshot(gpu_dataset(arranged, data = rows, weights = rows$x), error = TRUE)
  filtered <- recipes::step_filter(recipes::recipe(y ~ x, rows), x > 2, skip = FALSE)
  for (recipe in list(arranged, filtered)) {
    data <- gpu_dataset(recipe, data = rows)
    model <- gpu_mlp(data, units = 2)
    gpu_fit(model, data, epochs = 1, verbose = FALSE)
    expect_snapshot(gpu_predict(model, rows), error = TRUE)
    expect_length(gpu_predict(model, rows[4, ]), 1)
  }
})
