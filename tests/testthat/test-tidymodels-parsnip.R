# mlp() with the engine "gpukeras", as a user of tidymodels meets it.

a_spec <- function(mode, ..., epochs = 3) {
  parsnip::mlp(hidden_units = 4, epochs = !!epochs) |>
    parsnip::set_engine("gpukeras", ...) |>
    parsnip::set_mode(mode)
}

two_classes <- function() {
  frame <- mtcars[c("am", "wt", "hp")]
  frame$am <- factor(frame$am, labels = c("auto", "by hand"))
  frame
}

test_that("parsnip shows the engine, once, for each mode that it knows", {
  skip_if_not_installed("parsnip")
  register_engine()
  for (model in intersect(names(engine_models), asNamespace("parsnip")$get_from_env("models"))) {
    engines <- parsnip::show_engines(model)
    modes <- asNamespace("parsnip")$get_from_env(paste0(model, "_modes"))
    known <- intersect(engine_models[[model]]$modes, modes)
    expect_setequal(engines$mode[engines$engine == "gpukeras"], known)
  }
})

test_that("the engine is there whichever package is loaded first", {
  skip_if_not_installed("parsnip")
  for (order in list(c("parsnip", "gpukeras"), c("gpukeras", "parsnip"))) {
    child <- start_r(c(
      sprintf("loadNamespace('%s')", order),
      "engines <- parsnip::show_engines('mlp')",
      "cat(sum(engines$engine == 'gpukeras'), reticulate::py_available())"
    ))
    # Two modes, and since parsnip 1.5.0 quantile regression.
    expect_match(utils::tail(readLines(child$out, warn = FALSE), 1), "^[23] FALSE$")
  }
})

test_that("gpukeras loads without parsnip, and loads nothing of it", {
  child <- start_r(c(
    "library(gpukeras)",
    "cat(any(c('parsnip', 'recipes', 'hardhat') %in% loadedNamespaces()))"
  ))
  expect_identical(readLines(child$out, warn = FALSE), "FALSE")
})

test_that("what parsnip refuses is a warning", {
  refused <- function() stop("`model` must be another")
  expect_warning(try_register(refused), class = "gpukeras_warning_parsnip")
  expect_snapshot(try_register(refused))
})

test_that("arguments of mlp() and of the engine reach model and training", {
  skip_without_parsnip()
  spec <- parsnip::mlp(
    "regression", "gpukeras",
    hidden_units = c(6, 3), penalty = 0.25, epochs = 2, learn_rate = 0.03
  ) |>
    parsnip::set_engine(
      "gpukeras",
      batch_size = 8, optimizer = "sgd", batch_norm = TRUE, validation = 0.25
    )
  template <- parsnip::translate(spec)$method$fit
  expect_identical(template$func, c(pkg = "gpukeras", fun = "gpu_mlp_fit"))
  expect_false(rlang::eval_tidy(template$args$verbose))
  fit <- parsnip::extract_fit_engine(parsnip::fit(spec, mpg ~ ., mtcars))
  model <- resolve_saved(fit)
  dense <- model$layers[[1]]
  expect_identical(as_r(dense$units), 6L)
  expect_equal(as_r(dense$kernel_regularizer$l2), 0.25, tolerance = 1e-6)
  expect_match(as_r(model$layers[[2]]$name), "batch_normalization")
  expect_equal(as_r(model$optimizer$learning_rate$numpy()), 0.03, tolerance = 1e-6)
  expect_match(as_r(model$optimizer$name), "SGD|sgd")
  expect_identical(fit$history$epochs, 2L)
  expect_identical(fit$history$plan$batch_size, 8L)
  expect_identical(fit$history$plan$validation_rows, 8L)
  expect_identical(fit$history$engine$engine, "graph_loop")
  expect_length(fit$history$history$val_loss, 2)
})

test_that("every argument of the engine is one of the function that takes it", {
  functions <- list(dataset = gpu_dataset.default, mlp = gpu_mlp, fit = gpu_fit)
  for (name in names(functions)) {
    expect_true(all(engine_arguments[[name]] %in% names(formals(functions[[name]]))), label = name)
  }
  expect_false(anyDuplicated(unlist(engine_arguments)) > 0)
})

test_that("numbers are predicted as gpukeras itself predicts them", {
  skip_without_parsnip()
  fitted <- parsnip::fit(a_spec("regression", seed = 5), mpg ~ wt + hp, mtcars)
  data <- gpu_dataset(mtcars[c("wt", "hp")], mtcars$mpg, seed = 5)
  model <- gpu_mlp(data, units = 4, seed = 5)
  gpu_fit(model, data, epochs = 3, engine = "graph_loop", verbose = FALSE)
  expected <- gpu_predict(model, mtcars)
  expect_identical(predict(fitted, mtcars)$.pred, expected)
  expect_identical(as.numeric(predict(fitted, mtcars, type = "raw")), expected)
  expect_identical(parsnip::augment(fitted, mtcars)$.pred, expected)
  expect_identical(gpu_predict(parsnip::extract_fit_engine(fitted), mtcars), expected)
})

test_that("classes and probabilities come in the order of the levels", {
  skip_without_parsnip()
  flowers <- iris
  flowers$Species <- factor(flowers$Species, levels = c("virginica", "setosa", "versicolor"))
  for (case in list(list(Species ~ ., flowers), list(am ~ ., two_classes()))) {
    label <- case[[2]][[all.vars(case[[1]])[1]]]
    fitted <- parsnip::fit(a_spec("classification"), case[[1]], case[[2]])
    shares <- predict(fitted, case[[2]], type = "prob")
    expect_named(shares, paste0(".pred_", levels(label)))
    expect_equal(rowSums(shares), rep(1, nrow(shares)), tolerance = 1e-5)
    classes <- predict(fitted, case[[2]])$.pred_class
    expect_identical(levels(classes), levels(label))
    expect_identical(as.integer(classes), max.col(as.matrix(shares), "first"))
  }
})

test_that("levels that no row has are there, with no probability", {
  skip_without_parsnip()
  for (present in list(c("setosa", "virginica"), levels(iris$Species))) {
    rows <- iris[iris$Species %in% present, ]
    fitted <- parsnip::fit(a_spec("classification"), Species ~ ., rows)
    expect_named(predict(fitted, iris, type = "prob"), paste0(".pred_", levels(iris$Species)))
    expect_identical(levels(predict(fitted, iris)$.pred_class), levels(iris$Species))
  }
})

test_that("several outcomes are a column each", {
  skip_without_parsnip()
  spec <- a_spec("regression", epochs = 60)
  for (y in list(mtcars[c("mpg", "hp")], as.matrix(mtcars[c("mpg", "hp")]))) {
    fitted <- parsnip::fit_xy(spec, mtcars[c("wt", "disp")], y)
    predicted <- predict(fitted, mtcars)
    expect_named(predicted, c(".pred_mpg", ".pred_hp"))
    expect_lt(abs(mean(predicted$.pred_hp) - mean(mtcars$hp)), 60) # in their own unit
  }
})

test_that("case weights are weights of the rows", {
  skip_without_parsnip()
  skip_if_not_installed("hardhat")
  weights <- hardhat::importance_weights(rep(c(0, 1), 16))
  # Rows without weight teach nothing, whatever they are.
  spoilt <- mtcars
  spoilt$mpg[c(TRUE, FALSE)] <- rev(spoilt$mpg[c(TRUE, FALSE)])
  predicted <- lapply(list(mtcars, spoilt), function(rows) {
    fitted <- parsnip::fit_xy(
      a_spec("regression", seed = 3, batch_size = 32), rows[c("wt", "hp")], rows$mpg,
      case_weights = weights
    )
    predict(fitted, mtcars)$.pred
  })
  expect_equal(predicted[[1]], predicted[[2]], tolerance = 1e-5)
})

test_that("mlp() takes an activation", {
  skip_if_not_installed("parsnip", "1.2.0") # before, it knows those of its own engines only
  skip_without_tensorflow()
  spec <- parsnip::set_args(a_spec("regression"), activation = "tanh")
  model <- resolve_saved(parsnip::extract_fit_engine(parsnip::fit(spec, mpg ~ ., mtcars)))
  expect_identical(as_r(model$layers[[2]]$activation$`__name__`), "tanh")
})

test_that("set.seed() makes a training repeatable", {
  skip_without_parsnip()
  spec <- parsnip::set_args(a_spec("regression", validation = 0.2), dropout = 0.2)
  predicted <- lapply(c(1, 1, 2), function(seed) {
    set.seed(seed)
    predict(parsnip::fit(spec, mpg ~ ., mtcars), mtcars)$.pred
  })
  expect_identical(predicted[[1]], predicted[[2]])
  expect_false(identical(predicted[[1]], predicted[[3]]))
})

test_that("a fit survives its session", {
  skip_without_parsnip()
  fitted <- parsnip::fit(a_spec("classification"), Species ~ ., iris)
  folder <- withr::local_tempdir()
  saveRDS(fitted, file.path(folder, "fit.rds"))
  child <- start_r(c(
    sprintf("setwd(%s)", deparse(folder)),
    "fitted <- readRDS('fit.rds')",
    "library(parsnip)",
    "shares <- predict(fitted, iris, type = 'prob')",
    "engine <- extract_fit_engine(fitted)",
    "saveRDS(list(shares, gpukeras::gpu_evaluate(engine, iris, iris$Species)), 'out.rds')"
  ))
  expect_identical(child$status, 0L)
  out <- readRDS(file.path(folder, "out.rds"))
  expect_identical(out[[1]], predict(fitted, iris, type = "prob"))
  engine <- parsnip::extract_fit_engine(fitted)
  expect_identical(out[[2]], gpu_evaluate(engine, iris, iris$Species))
  # A model that is gone from this one is loaded from the archive, once.
  engine$state$model <- NULL
  again <- predict(engine, iris, type = "class")
  expect_identical(again, predict(fitted, iris)$.pred_class)
  expect_identical(python_key(resolve_saved(engine)), python_key(resolve_saved(engine)))
})

test_that("workflows with recipes, formulas and variables work", {
  skip_without_parsnip()
  skip_if_not_installed("workflows")
  skip_if_not_installed("recipes")
  spec <- a_spec("regression", epochs = 40)
  cars <- mtcars
  cars$gear <- factor(cars$gear)
  recipe <- recipes::recipe(mpg ~ ., data = cars) |>
    recipes::step_normalize(recipes::all_numeric_predictors()) |>
    recipes::step_dummy(recipes::all_nominal_predictors())
  flows <- list(
    workflows::workflow() |> workflows::add_recipe(recipe),
    workflows::workflow() |> workflows::add_formula(mpg ~ .),
    workflows::workflow() |> workflows::add_variables(mpg, c(wt, hp, gear))
  )
  for (flow in flows) {
    fitted <- parsnip::fit(workflows::add_model(flow, spec), cars[1:24, ])
    predicted <- predict(fitted, cars[25:32, -1])$.pred
    expect_length(predicted, 8)
    expect_true(all(is.finite(predicted)))
  }
})

test_that("bad input is refused, with the name of what is wrong", {
  skip_without_parsnip()
  fitted <- parsnip::fit(a_spec("regression"), mpg ~ wt + hp, mtcars)
  expect_error(parsnip::fit(a_spec("regression"), Species ~ ., iris), "numeric")
  expect_error(parsnip::fit(a_spec("classification"), mpg ~ ., mtcars), "factor")
  expect_error(predict(fitted, mtcars, type = "prob"), "classification|factor|prob")
  expect_error(predict(fitted, mtcars["wt"]), "hp")
  holes <- mtcars
  holes$wt[2] <- NA
  fits <- list(
    function() parsnip::fit_xy(a_spec("regression"), holes[c("wt", "hp")], holes$mpg),
    function() parsnip::fit(a_spec("regression"), mpg ~ wt + hp, holes)
  )
  for (fit in fits) {
    condition <- expect_error(fit(), class = "gpukeras_error_data")
    expect_match(one_line(condition), "`wt`")
  }
  fit <- function(...) parsnip::fit(a_spec("regression", ...), mpg ~ ., mtcars)
  expect_error(fit(batch_norm = 3), "batch_norm", class = "gpukeras_error_spec")
  expect_error(fit(fit_engine = "jet"), "engine", class = "gpukeras_error_spec")
})

test_that("an argument that is none of the engine's is named", {
  expect_snapshot(error = TRUE, gpu_mlp_fit(mpg ~ wt, mtcars, precision = "mixed_float16"))
  expect_snapshot(
    error = TRUE, gpu_mlp_fit(mpg ~ wt, mtcars, NULL, 4, "relu", 0, 0, 1, 1, "", 1, 3)
  )
})

test_that("a fit says what it is", {
  skip_without_tensorflow()
  fit <- new_result(
    list(
      history = new_gpu_history(a_report()), levels = c("a", "b"), archive = raw(40000),
      state = rlang::env(model = NULL)
    ),
    "gpu_mlp_fit"
  )
  expect_snapshot(fit)
  fit["levels"] <- list(NULL)
  expect_match(format(fit)[1], "numbers")
})

test_that("linear models are registered with their families, as parsnip is told", {
  calls <- list()
  note <- function(name) {
    force(name)
    function(...) calls[[length(calls) + 1]] <<- list(name = name, ...)
  }
  names <- c("set_model_engine", "set_dependency", "set_fit", "set_encoding", "set_pred")
  parsnip <- lapply(rlang::set_names(c(names, "set_model_arg")), note)
  known <- c("mlp", "linear_reg", "logistic_reg", "poisson_reg", "proportional_hazards")
  parsnip$get_from_env <- function(name) {
    # An older parsnip without further models and quantile regression, in which logistic_reg() has
    # the engine already.
    if (name == "models") {
      return(known)
    }
    if (endsWith(name, "_modes")) {
      return(c("unknown", "regression", "classification", "censored regression"))
    }
    data.frame(engine = if (name == "logistic_reg") "gpukeras" else "glm")
  }
  register_engine(parsnip)
  of <- function(name, model) Filter(function(call) call$name == name && call[[2]] == model, calls)
  expect_identical(unique(vapply(calls, `[[`, "", 2)), setdiff(known, "logistic_reg"))
  expect_length(of("set_fit", "mlp"), 2)
  value <- of("set_fit", "poisson_reg")[[1]]$value
  expect_identical(value$func, c(pkg = "gpukeras", fun = "gpu_mlp_fit"))
  expect_identical(value$defaults, list(verbose = FALSE, units = integer(), family = "poisson"))
  types <- function(model) vapply(of("set_pred", model), `[[`, "", "type")
  expect_identical(types("poisson_reg"), c("numeric", "pred_int", "raw"))
  expect_identical(types("proportional_hazards"), c("time", "survival", "linear_pred", "raw"))
  expect_true(all(unlist(lapply(engine_modes, `[[`, "types")) %in% names(prediction_types)))
  args <- of("set_pred", "proportional_hazards")[[2]]$value$args
  expect_identical(args$eval_time, quote(eval_time))
  expect_identical(vapply(of("set_model_arg", "linear_reg"), `[[`, "", "original"), "penalty")
  expect_length(of("set_model_arg", "mlp"), 6)
  # What parsnip passes on are arguments that gpu_mlp_fit() has.
  given <- unlist(lapply(engine_models, function(about) names(about$defaults)))
  expect_true(all(given %in% names(formals(gpu_mlp_fit))))
})

test_that("models without hidden layers have a family", {
  skip_without_tensorflow(slow = TRUE)
  fit_of <- function(model, ...) rlang::exec(gpu_mlp_fit, ..., !!!engine_models[[model]]$defaults)
  fit <- fit_of(
    "poisson_reg", count ~ spray, InsectSprays,
    epochs = 80, learning_rate = 0.1, batch_size = 24, seed = 1
  )
  found <- gpu_summary(fit, InsectSprays)
  expect_identical(found[c("family", "implied", "linear")], list(
    family = "poisson", implied = FALSE, linear = TRUE
  ))
  known <- stats::glm(count ~ spray, poisson(), InsectSprays)
  expect_equal(found$deviance, known$deviance, tolerance = 0.02)
  expect_identical(summary(fit, InsectSprays)$coefficients, found$coefficients)
  two <- two_classes()
  fit <- fit_of("logistic_reg", am ~ wt, two, epochs = 1)
  expect_identical(names(predict(fit, two, type = "prob")), levels(two$am))
  fit <- fit_of("multinom_reg", Species ~ ., iris, epochs = 1)
  expect_identical(levels(predict(fit, iris, type = "class")), levels(iris$Species))
})

test_that("linear models fit and predict by parsnip", {
  skip_without_parsnip()
  cases <- list(
    list(parsnip::linear_reg(), mpg ~ wt, mtcars),
    list(parsnip::logistic_reg(), am ~ wt, two_classes()),
    list(parsnip::multinom_reg(), Species ~ ., iris),
    list(parsnip::poisson_reg(), count ~ spray, InsectSprays)
  )
  for (case in cases) {
    spec <- parsnip::set_engine(case[[1]], "gpukeras", epochs = 2)
    fitted <- parsnip::fit(spec, case[[2]], case[[3]])
    expect_identical(nrow(predict(fitted, case[[3]])), nrow(case[[3]]))
    units <- vapply(parsnip::extract_fit_engine(fitted)$state$model$layers, function(layer) {
      inherits(layer, "keras.src.layers.core.dense.Dense")
    }, NA)
    expect_identical(sum(units), 1L)
  }
})

test_that("interactions and offsets of a formula are those of glm(), by parsnip", {
  skip_without_parsnip()
  rows <- data.frame(a = sin(1:60), b = cos(2 * 1:60), time = rep(1:6, 10))
  rows$count <- round(rows$time * exp(0.4 * rows$a * rows$b + 0.3 * rows$a))
  formula <- count ~ a + a:b + offset(log(time))
  spec <- parsnip::set_engine(
    parsnip::poisson_reg(), "gpukeras",
    epochs = 300, learning_rate = 0.05, batch_size = 60, scale = FALSE
  )
  fitted <- parsnip::fit(spec, formula, rows)
  known <- stats::fitted(stats::glm(formula, poisson(), rows))
  expect_equal(predict(fitted, rows)$.pred, unname(known), tolerance = 1e-3)
})
