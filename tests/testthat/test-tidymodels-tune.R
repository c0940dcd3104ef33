# gpu_tune_grid(): a loop runs twice, and its models train together in between. A loop that goes on
# after errors is enough for most of this; tune's own is compared where it is installed.

# Asks for models as tune does, and returns what they predict and which engine trained them; of one
# that fails, the error.
a_loop <- function(cases) {
  function(quiet) {
    lapply(cases, function(case) {
      tryCatch(
        {
          fit <- rlang::exec(gpu_mlp_fit, mpg ~ wt + hp, !!!case)
          engine <- fit$history$engine
          list(values = predict(fit, mtcars[1:3, ]), engine = engine$engine, why = engine$reason)
        },
        error = function(condition) conditionMessage(condition)
      )
    })
  }
}

# As many steps as make a program of three models worth its compiling.
a_case <- function(rows, ...) {
  fixed <- list(
    data = mtcars[rows, ], units = 4, optimizer = "sgd", learning_rate = 1e-4, batch_size = 1,
    epochs = 200
  )
  utils::modifyList(fixed, list(...))
}

values_of <- function(found) lapply(found, `[[`, "values")
engines_of <- function(found) vapply(found, `[[`, "", "engine")

test_that("models of a loop end as by themselves, with the same random numbers", {
  skip_without_tensorflow()
  cases <- list(a_case(1:20, penalty = 0.01), a_case(1:20, penalty = 0.1), a_case(8:32, penalty = 1))
  set.seed(5)
  alone <- a_loop(cases)(FALSE)
  after <- runif(1)
  set.seed(5)
  expect_silent(found <- run_together(a_loop(cases), verbose = FALSE))
  expect_identical(runif(1), after)
  expect_null(the$together)
  expect_equal(values_of(found), values_of(alone), tolerance = 1e-5)
  expect_identical(engines_of(found), rep("stacked", 3))
  expect_identical(engines_of(alone), rep("graph_loop", 3))
})

test_that("models that are none of many train by themselves, and a message says why", {
  skip_without_tensorflow(slow = TRUE)
  cases <- list(
    a_case(1:32, seed = 1, epochs = 1, clip_norm = 1),
    a_case(1:32, seed = 1, epochs = 1, fit_engine = "keras"), a_case(1:32, seed = 1, epochs = 1),
    a_case(1:32, seed = 1, activation = "none such")
  )
  expect_snapshot(found <- run_together(a_loop(cases), verbose = TRUE))
  expect_identical(engines_of(found[1:3]), c("graph_loop", "keras", "graph_loop"))
  expect_identical(found[[4]], a_loop(cases[4])(FALSE)[[1]])
})

test_that("what is asked for in the first run ends by an error of a class of its own", {
  the$together <- rlang::env(recording = TRUE, asked = list())
  withr::defer(the$together <- NULL)
  ask <- function() {
    ask_together(list(mpg ~ wt, mtcars, seed = 1), list(family = NULL), list(engine = "keras"))
  }
  expect_snapshot(ask(), error = TRUE)
  expect_error(ask(), class = "gpukeras_asked")
  expect_identical(the$together$asked[[1]]$refused, "`fit_engine` is \"keras\"")
})

test_that("an error or an interrupt leaves R's generator where it was", {
  set.seed(5)
  before <- .Random.seed
  expect_error(run_together(function(quiet) stop(stats::runif(1)), FALSE))
  expect_identical(.Random.seed, before)
  stopped <- function(quiet) if (stats::runif(1) > -1) rlang::interrupt()
  ended <- tryCatch(run_together(stopped, FALSE), interrupt = function(condition) "ended")
  expect_identical(ended, "ended")
  expect_identical(.Random.seed, before)
  drawn <- run_together(function(quiet) stats::runif(3), FALSE)
  set.seed(5)
  expect_identical(drawn, stats::runif(3)) # as one run draws
})

test_that("an interrupt ends it", {
  skip_without_tensorflow()
  cases <- list(a_case(1:32, seed = 1), a_case(1:32, seed = 2))
  interrupted <- tryCatch(
    run_together(a_loop(cases), verbose = FALSE, listener = function(event) TRUE),
    interrupt = function(condition) "interrupted"
  )
  expect_identical(interrupted, "interrupted")
  expect_null(the$together)
})

test_that("models of different structures train in workers", {
  skip_without_tensorflow(slow = TRUE)
  cases <- lapply(c(2, 3), function(units) a_case(1:20, units = units, epochs = 3, seed = 1))
  alone <- a_loop(cases)(FALSE)
  expect_silent(found <- run_together(a_loop(cases), verbose = FALSE, workers = 2))
  expect_equal(values_of(found), values_of(alone), tolerance = 1e-5)
  expect_identical(engines_of(found), rep("graph_loop", 2))
  expect_match(vapply(found, `[[`, "", "why"), "^2 models in 2 worker processes with ")
  expect_null(the$together)
  cases <- list(cases[[1]], a_case(1:20, units = 2, epochs = 3, seed = 1, clip_norm = 1))
  expect_snapshot(found <- run_together(a_loop(cases), verbose = TRUE, workers = 2))
})

a_spec <- function(engine) structure(list(engine = engine), class = c("mlp", "model_spec"))

test_that("workers that cannot be are refused before anything is prepared", {
  skip_without_tensorflow()
  expect_snapshot(error = TRUE, {
    gpu_tune_grid(a_spec("gpukeras"), workers = 0)
    gpu_tune_grid(a_spec("gpukeras"), workers = "two")
    gpu_tune_grid(a_spec("gpukeras"), workers = 1.5)
    gpu_tune_grid(a_spec("gpukeras"), workers = NA)
    gpu_tune_grid(a_spec("gpukeras"), workers = NULL)
  })
})

test_that("other engines are refused", {
  expect_snapshot(error = TRUE, {
    gpu_tune_grid("mlp")
    gpu_tune_grid(a_spec("nnet"))
    gpu_tune_grid(a_spec(NULL))
  })
})

skip_without_tune <- function() {
  for (name in c("tune", "rsample", "yardstick", "workflows")) skip_if_not_installed(name)
  skip_without_parsnip()
}

test_that("the result is that of tune_grid(), for models and for workflows with recipes", {
  skip_without_tune()
  spec <- parsnip::mlp("regression", "gpukeras", hidden_units = 4, epochs = 200) |>
    parsnip::set_args(penalty = tune::tune(), learn_rate = 1e-4) |>
    parsnip::set_engine("gpukeras", optimizer = "sgd", batch_size = 1)
  steps <- recipes::recipe(mpg ~ wt + hp + disp, mtcars) |>
    recipes::step_pca(recipes::all_predictors(), num_comp = tune::tune())
  flow <- workflows::workflow(steps, spec)
  grid <- data.frame(penalty = c(0.01, 0.1), num_comp = 2L)
  cases <- list(
    list(spec, mpg ~ wt + hp, grid = grid["penalty"]), list(flow, grid = grid)
  )
  for (case in cases) {
    folds <- withr::with_seed(1, rsample::vfold_cv(mtcars, v = 2))
    arguments <- c(case, list(resamples = folds))
    engine <- function(fit) parsnip::extract_fit_engine(fit)$history$engine$engine
    keeping <- tune::control_grid(save_pred = TRUE, extract = engine)
    set.seed(2)
    known <- do.call(tune::tune_grid, c(arguments, list(control = keeping)))
    set.seed(2)
    found <- do.call(gpu_tune_grid, c(arguments, list(control = keeping, verbose = FALSE)))
    expect_equal(tune::collect_metrics(found), tune::collect_metrics(known), tolerance = 1e-5)
    expect_equal(
      tune::collect_predictions(found), tune::collect_predictions(known), tolerance = 1e-5
    )
    engines <- unlist(do.call(rbind, found$.extracts)$.extracts)
    expect_identical(engines, rep("stacked", 4))
    expect_identical(attributes(found)$parameters$id, attributes(known)$parameters$id)
    best <- tune::select_best(found, metric = "rmse")
    expect_identical(best, tune::select_best(known, metric = "rmse"))
  }
  expect_s3_class(tune::finalize_workflow(flow, best), "workflow")
})

test_that("resamples and candidates that are drawn in the call train together", {
  skip_without_tune()
  skip_if_not_installed("dials")
  spec <- parsnip::mlp("regression", "gpukeras", hidden_units = 4, epochs = 200) |>
    parsnip::set_args(penalty = tune::tune(), learn_rate = 1e-4) |>
    parsnip::set_engine("gpukeras", optimizer = "sgd", batch_size = 1)
  keeping <- tune::control_grid(extract = function(fit) {
    parsnip::extract_fit_engine(fit)$history$engine$engine
  })
  set.seed(4)
  found <- gpu_tune_grid(
    spec, mpg ~ wt + hp, rsample::vfold_cv(mtcars, v = 2), grid = 2, control = keeping,
    verbose = FALSE
  )
  expect_identical(unlist(do.call(rbind, found$.extracts)$.extracts), rep("stacked", 4))
  set.seed(4)
  known <- tune::tune_grid(spec, mpg ~ wt + hp, rsample::vfold_cv(mtcars, v = 2), grid = 2)
  expect_equal(tune::collect_metrics(found), tune::collect_metrics(known), tolerance = 1e-4)
})

test_that("what fails is among tune's notes, and nothing is left of the first run", {
  skip_without_tune()
  spec <- parsnip::mlp("regression", "gpukeras", hidden_units = 4, epochs = 1) |>
    parsnip::set_args(learn_rate = tune::tune())
  folds <- rsample::vfold_cv(mtcars, v = 2)
  grid <- data.frame(learn_rate = c(0.01, -1))
  suppressMessages(found <- gpu_tune_grid(
    spec, mpg ~ wt, resamples = folds, grid = grid, verbose = FALSE
  ))
  notes <- unique(do.call(rbind, found$.notes)$note)
  expect_match(notes, "`learning_rate` must be a number")
  expect_length(notes, 1)
})
