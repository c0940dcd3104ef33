test_that("methods are registered when generics is loaded, and load nothing themselves", {
  skip_if_not_installed("generics")
  child <- start_r(c(
    "library(gpukeras)", "before <- 'generics' %in% loadedNamespaces()",
    "known <- function(name, class) {",
    "  !is.null(utils::getS3method(name, class, TRUE, asNamespace('generics')))", "}",
    "cat(before, known('tidy', 'gpu_summary'), known('augment', 'gpu_mlp_fit'))"
  ))
  expect_identical(readLines(child$out, warn = FALSE), "FALSE TRUE TRUE")
})

test_that("a summary is tidied by broom's names of columns", {
  skip_if_not_installed("generics")
  record <- list(
    family = "poisson", rows = 10L, deviance = 3, null_deviance = 5, df_null = 9L,
    df_residual = 8L, log_likelihood = -12, aic = 28, bic = 28.6, columns = list("a"),
    terms = list(
      list(term = "(Intercept)", estimate = 1, predictor = ""),
      list(term = "a", estimate = 2, predictor = "")
    )
  )
  found <- new_gpu_summary(record)
  expect_identical(
    generics::tidy(found), data.frame(term = c("(Intercept)", "a"), estimate = c(1, 2))
  )
  expect_identical(generics::glance(found), data.frame(
    null.deviance = 5, df.null = 9L, logLik = -12, AIC = 28, BIC = 28.6, deviance = 3,
    df.residual = 8L, nobs = 10L
  ))
  none <- new_gpu_summary(list(family = "quantile", rows = 10L, terms = list()))
  expect_identical(sum(is.na(generics::glance(none))), 7L)
  expect_identical(nrow(generics::tidy(none)), 0L)
})

test_that("histories, importance and predictions are tidied", {
  skip_if_not_installed("generics")
  skip_without_tensorflow()
  data <- gpu_dataset(mpg ~ wt + hp, mtcars, batch_size = 16)
  model <- gpu_mlp(data, units = integer(), seed = 1)
  fit <- gpu_fit(model, data, epochs = 2, verbose = FALSE)
  tidied <- generics::tidy(fit)
  expect_named(tidied, c("epoch", "data", "metric", "value"))
  expect_identical(tidied$value[tidied$metric == "loss"], fit$history$loss)
  glanced <- generics::glance(fit)
  expect_identical(glanced$loss, fit$history$loss[2])
  expect_identical(glanced[c("epochs", "rows", "engine")], data.frame(
    epochs = 2L, rows = fit$rows, engine = fit$engine$engine
  ))
  importance <- gpu_importance(model, data, repeats = 2)
  expect_identical(generics::tidy(importance), as.data.frame(importance))
  effects <- gpu_effects(model, data, columns = "wt")
  expect_identical(generics::tidy(effects), as.data.frame(effects))

  augmented <- generics::augment(gpu_summary(model, mtcars), mtcars)
  expect_identical(augmented[names(mtcars)], mtcars)
  expect_identical(augmented$.fitted, gpu_predict(model, mtcars))
  expect_identical(augmented$.resid, mtcars$mpg - augmented$.fitted)
})

test_that("only a numeric column that a formula names is a label", {
  expect_identical(label_in("mpg ~ wt", mtcars), mtcars$mpg)
  for (text in c("", "log(mpg) ~ wt", "~ wt", "none ~ wt", "no formula", "1 +")) {
    expect_null(label_in(text, mtcars))
  }
})

test_that("classes have a column for each level", {
  skip_if_not_installed("generics")
  skip_without_tensorflow(slow = TRUE)
  set.seed(1)
  fit <- gpu_mlp_fit(Species ~ ., iris, units = 4, epochs = 1)
  augmented <- generics::augment(fit, iris)
  expect_identical(names(augmented), c(
    names(iris), ".pred_class", ".pred_setosa", ".pred_versicolor", ".pred_virginica"
  ))
  expect_equal(rowSums(augmented[7:9]), rep(1, 150), tolerance = 1e-6, ignore_attr = TRUE)
  two <- transform(mtcars, am = factor(am, labels = c("auto", "by hand")))
  data <- gpu_dataset(am ~ wt, two)
  model <- gpu_mlp(data, units = integer(), family = "binomial", seed = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  augmented <- generics::augment(gpu_summary(model, data), two)
  expect_identical(augmented[[".pred_by hand"]], gpu_predict(model, two))
  expect_identical(augmented$.pred_class, gpu_predict(model, two, type = "class"))
  both <- gpu_mlp_fit(cbind(mpg, hp) ~ wt, mtcars, units = 2, epochs = 1)
  expect_named(generics::augment(both, mtcars), c(names(mtcars), ".fitted_mpg", ".fitted_hp"))
})

test_that("a model of logits has fitted values and classes' probabilities", {
  skip_if_not_installed("generics")
  skip_without_tensorflow()
  keras <- reticulate::import("keras")
  trained <- function(data, units, loss) {
    model <- keras$Sequential(list(keras$layers$Input(list(2L)), keras$layers$Dense(units)))
    model$compile(keras$optimizers$Adam(0.05), loss = loss)
    gpu_fit(model, data, epochs = 3, verbose = FALSE)
    model
  }
  binary <- keras$losses$BinaryCrossentropy(from_logits = TRUE)
  model <- trained(gpu_dataset(am ~ wt + hp, mtcars, batch_size = 32), 1L, binary)
  augmented <- generics::augment(gpu_summary(model, mtcars), mtcars)
  expect_equal(augmented$.fitted, stats::plogis(gpu_predict(model, mtcars)))
  expect_equal(augmented$.resid, residuals(model, mtcars), tolerance = 1e-6)
  expect_equal(mtcars$am - fitted(model, mtcars), residuals(model, mtcars), tolerance = 1e-6)

  several <- keras$losses$SparseCategoricalCrossentropy(from_logits = TRUE)
  data <- gpu_dataset(Species ~ Petal.Length + Petal.Width, iris, batch_size = 50)
  model <- trained(data, 3L, several)
  augmented <- generics::augment(gpu_summary(model, iris), iris)
  odds <- exp(gpu_predict(model, iris))
  expect_equal(as.matrix(augmented[7:9]), odds / rowSums(odds), ignore_attr = TRUE)
})

test_that("counts of successes are augmented by their probability", {
  skip_if_not_installed("generics")
  skip_without_tensorflow()
  doses <- data.frame(died = c(1, 3, 7), lived = c(9, 7, 3), dose = 1:3)
  data <- gpu_dataset(cbind(died, lived) ~ dose, doses, batch_size = 3)
  model <- gpu_mlp(data, units = integer(), family = "binomial", seed = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  augmented <- generics::augment(gpu_summary(model, doses), doses)
  expect_identical(augmented$.fitted, gpu_predict(model, doses))
})
