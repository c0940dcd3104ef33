# R's generics of models against those of glm(), MASS::polr(), survival::coxph() and multinom().

generic_rows <- function(n = 90) {
  set.seed(4)
  rows <- data.frame(a = rnorm(n, 2), g = factor(sample(c("p", "q", "r"), n, TRUE)))
  eta <- 0.3 + 0.4 * rows$a + c(0, 0.5, -0.5)[rows$g]
  rows$count <- rpois(n, exp(eta))
  rows$once <- rbinom(n, 1, plogis(eta))
  rows$number <- eta + rnorm(n)
  rows$won <- rbinom(n, 5, plogis(eta))
  rows$kind <- cut(eta + rlogis(n), c(-Inf, 0, 1.5, Inf), c("low", "mid", "high"), ordered_result = TRUE)
  rows$class <- factor(as.character(rows$kind), c("low", "mid", "high"))
  rows$time <- rexp(n, exp(eta - 1)) + 0.01
  rows$event <- rbinom(n, 1, 0.7)
  rows
}

test_that("coefficients, likelihood, deviance and residuals are those of glm()", {
  skip_without_tensorflow()
  rows <- generic_rows()
  cases <- list(
    list(count ~ a + g, poisson()), list(once ~ a + g, binomial()), list(number ~ a + g, gaussian()),
    list(cbind(won, 5 - won) ~ a + g, binomial())
  )
  for (case in cases) {
    known <- stats::glm(case[[1]], case[[2]], rows)
    model <- linear_fit(case[[1]], case[[2]], rows)
    label <- deparse(case[[1]])
    expect_equal(coef(model), coef(known), tolerance = 2e-3, info = label)
    expect_named(coef(model), names(coef(known)))
    summary <- gpu_summary(model, rows)
    expect_equal(coef(summary), coef(model))
    for (generic in list(logLik, AIC, BIC, deviance)) {
      expect_equal(generic(summary), generic(known), tolerance = 1e-4, info = label)
    }
    expect_mapequal(attributes(logLik(model, rows)), attributes(logLik(known)))
    expect_equal(nobs(model, rows), nobs(known))
    expect_equal(df.residual(model, rows), df.residual(known))
    expect_equal(deviance(model, rows), deviance(known), tolerance = 1e-4)
    expect_equal(formula(model), case[[1]], ignore_formula_env = TRUE)
    expect_identical(family(model)$name, case[[2]]$family)
    expect_identical(family(summary)$link, case[[2]]$link)
    for (type in c("response", "deviance")) {
      found <- residuals(model, rows, type = type)
      expect_equal(found, unname(residuals(known, type)), tolerance = 0.02, info = label)
    }
    expect_equal(sum(residuals(summary, rows, type = "deviance")^2), deviance(summary), tolerance = 1e-4)
    expect_equal(fitted(model, rows), unname(fitted(known)), tolerance = 5e-3, info = label)
  }
})

test_that("ordered classes, classes and hazards have the names and values of their functions", {
  skip_without_tensorflow()
  skip_if_not_installed("MASS")
  skip_if_not_installed("nnet")
  skip_if_not_installed("survival")
  rows <- generic_rows()
  known <- MASS::polr(kind ~ a + g, rows)
  model <- linear_fit(kind ~ a + g, "ordinal", rows)
  expect_equal(coef(model), c(coef(known), known$zeta), tolerance = 1e-2)
  expect_equal(AIC(gpu_summary(model, rows)), AIC(known), tolerance = 1e-4)
  known <- nnet::multinom(class ~ a + g, rows, trace = FALSE)
  model <- linear_fit(class ~ a + g, NULL, rows)
  expected <- t(coef(known))
  names <- paste0(rep(colnames(expected), each = nrow(expected)), ":", rownames(expected))
  expect_equal(coef(model), stats::setNames(as.vector(expected), names), tolerance = 1e-2)
  surv <- survival::Surv(rows$time, rows$event)
  known <- survival::coxph(surv ~ a + g, rows)
  model <- linear_fit(cbind(time, event) ~ a + g, "cox", rows)
  expect_equal(coef(model), coef(known), tolerance = 1e-2)
  summary <- gpu_summary(model, rows)
  expect_mapequal(attributes(logLik(summary)), attributes(logLik(known)))
  expect_equal(BIC(summary), BIC(known), tolerance = 1e-4)
  expect_equal(nobs(summary), sum(rows$event))
  expect_error(residuals(summary, rows), "no residuals", class = "gpukeras_error_model")
})

refused <- c(
  "vcov", "confint", "anova", "simulate", "sigma", "weights", "update", "add1", "drop1",
  "variable.names", "case.names", "model.matrix", "extractAIC", "rstandard", "rstudent",
  "hatvalues", "cooks.distance", "influence", "model.frame", "terms"
)
of_models <- c(
  "coef", "logLik", "nobs", "deviance", "df.residual", "residuals", "fitted", "formula", "family"
)

test_that("no generic gives NULL without a word", {
  skip_without_tensorflow()
  rows <- generic_rows()
  data <- gpu_dataset(count ~ a, rows, batch_size = 32)
  model <- gpu_mlp(data, units = 4, family = "poisson")
  history <- gpu_fit(model, data, epochs = 1, verbose = FALSE)
  summary <- gpu_summary(model, rows)
  get_generic <- function(name) get(name, asNamespace("stats"))
  for (generic in refused) {
    for (object in list(model, summary, history)) {
      expect_error(get_generic(generic)(object), class = "gpukeras_error_model", info = generic)
    }
  }
  for (generic in of_models) {
    expect_error(get_generic(generic)(history), "no model", class = "gpukeras_error_model")
  }
  for (generic in setdiff(of_models, c("coef", "formula", "family"))) {
    expect_error(get_generic(generic)(model), "keeps no rows", class = "gpukeras_error_spec")
  }
  expect_error(AIC(model), "keeps no rows", class = "gpukeras_error_spec")
  expect_error(coef(model), "hidden layers", class = "gpukeras_error_model")
  expect_identical(attr(logLik(summary), "df"), NA_integer_)
  expect_true(is.na(AIC(summary)))
  expect_equal(formula(summary), count ~ a, ignore_formula_env = TRUE)
  expect_equal(formula(data), count ~ a, ignore_formula_env = TRUE)
  expect_snapshot(error = TRUE, {
    logLik(model)
    coef(model)
    df.residual(summary)
    vcov(model)
    model.frame(model)
    coef(history)
  })
  plain <- gpu_dataset(as.matrix(rows["a"]), rows$number)
  model <- gpu_mlp(plain, units = integer())
  other <- a_model(1, 1, "linear", loss = "log_cosh", metrics = list())
  gpu_fit(other, plain, epochs = 1, verbose = FALSE)
  expect_snapshot(error = TRUE, {
    coef(model)
    formula(model)
    family(other)
  })
})

test_that("gpu_tabular() takes a family, and its models predict as those of gpu_mlp() do", {
  skip_without_tensorflow(slow = TRUE)
  rows <- generic_rows()
  data <- gpu_dataset(count ~ a + g, rows, batch_size = 32, encode = "codes")
  model <- gpu_tabular(data, "mlp", units = 8, family = "negative_binomial", seed = 1)
  gpu_fit(model, data, epochs = 2, verbose = FALSE)
  expect_identical(family(model)$name, "negative_binomial")
  expect_named(gpu_predict(model, rows, type = "parameters"), c("mean", "size"))
  found <- gpu_predict(model, rows, type = "parameters")
  expected <- stats::qnbinom(0.9, size = found$size, mu = found$mean)
  expect_equal(gpu_predict(model, rows, type = "quantile", quantiles = 0.9)$q0.9, expected)
  likely <- sum(stats::dnbinom(rows$count, size = found$size, mu = found$mean, log = TRUE))
  expect_equal(as.numeric(logLik(model, rows)), likely, tolerance = 1e-4)
  loss <- gpu_evaluate(model, rows)[["loss"]]
  expect_equal(loss, -likely / nrow(rows), tolerance = 1e-4)
  events <- gpu_dataset(cbind(time, event) ~ a + g, rows)
  expect_error(gpu_tabular(events, family = "cox"), "tabm", class = "gpukeras_error_spec")
  expect_error(gpu_tabular(data, family = "gamma"), class = "gpukeras_error_data")
})

test_that("a level without a row has no coefficient, as in glm()", {
  skip_without_tensorflow(slow = TRUE)
  flowers <- iris[51:150, ] # setosa is a level still
  flowers$large <- flowers$Petal.Length > 5
  formula <- Sepal.Length ~ Species + Sepal.Width + large
  data <- gpu_dataset(formula, flowers, batch_size = 100, seed = 1)
  model <- gpu_mlp(data, units = integer(), learning_rate = 0.1, seed = 1)
  gpu_fit(model, data, epochs = 800, verbose = FALSE)
  expect_equal(coef(model), coef(stats::lm(formula, flowers)), tolerance = 1e-3)
  terms <- gpu_summary(model, flowers)$coefficients$term
  expect_false("Species=setosa" %in% terms)
  expect_true("Species=versicolor" %in% terms)

  path <- withr::local_tempfile(fileext = ".csv") # of whose categories the levels alone are kept
  utils::write.csv(flowers[c("Sepal.Length", "Species")], path, row.names = FALSE)
  model <- gpu_mlp(gpu_dataset(path, y = "Sepal.Length"), units = integer())
  gpu_fit(model, gpu_dataset(path, y = "Sepal.Length"), epochs = 1, verbose = FALSE)
  expect_named(coef(model), c("(Intercept)", "Speciesvirginica"))

  known <- gpu_dataset(Sepal.Length ~ Species, flowers)
  expect_warning(
    all <- gpu_dataset(Sepal.Length ~ Species, iris, recipe = known),
    "`Species` of `data` has levels without a training row"
  )
  model <- gpu_mlp(all, units = integer())
  gpu_fit(model, all, epochs = 1, verbose = FALSE) # on rows that its recipe was not learned from
  expect_named(coef(model), c("(Intercept)", "Speciesversicolor", "Speciesvirginica"))

  count <- 0 # a function gives the levels one after the other
  batches <- function() {
    count <<- (count + 1) %% 3
    rows <- flowers[flowers$Species == c("", "versicolor", "virginica")[count + 1], ]
    if (count > 0) list(rows["Species"], rows$Sepal.Length)
  }
  model <- gpu_mlp(gpu_dataset(Sepal.Length ~ Species, flowers), units = integer())
  gpu_fit(model, gpu_dataset(batches), epochs = 1, verbose = FALSE)
  expect_true("Speciesvirginica" %in% names(coef(model)))
})

test_that("interactions have the coefficients of lm()", {
  skip_without_tensorflow()
  rows <- generic_rows()
  rows$flag <- rows$a > 2
  for (formula in list(number ~ a * g, number ~ a:g, number ~ g * flag + a:flag)) {
    known <- coef(stats::lm(formula, rows))
    found <- coef(linear_fit(formula, "gaussian", rows))
    expect_equal(found, known, tolerance = 2e-3, info = deparse(formula))
  }
})

test_that("numbers that do not vary have no coefficient, as in lm()", {
  skip_without_tensorflow()
  rows <- generic_rows()
  rows$g <- factor(rows$g, c("none", levels(rows$g)))
  rows$five <- 5
  rows$true <- TRUE
  for (formula in list(number ~ a:g, number ~ a + a:g, number ~ a + five + true)) {
    known <- coef(stats::lm(formula, rows))
    found <- coef(linear_fit(formula, "gaussian", rows))
    expect_identical(names(found), names(known))
    expect_identical(is.na(found), is.na(known))
    expect_false(any(is.nan(found)))
    expect_equal(found, known, tolerance = 2e-3, info = deparse(formula))
  }
})

test_that("a class without a row is no base of the coefficients, as in nnet::multinom()", {
  skip_without_tensorflow(slow = TRUE)
  skip_if_not_installed("nnet")
  rows <- generic_rows()
  rows$class <- factor(rows$class, c("none", levels(rows$class)))
  known <- suppressWarnings(nnet::multinom(class ~ a, rows, trace = FALSE))
  model <- suppressWarnings(linear_fit(class ~ a, "multinomial", rows))
  found <- matrix(coef(model), 2, byrow = TRUE)
  expect_equal(found, unname(coef(known)), tolerance = 2e-2)
  expect_identical(gpu_summary(model, rows)$df, 4L)
})
