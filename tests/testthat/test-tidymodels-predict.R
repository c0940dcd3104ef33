# Predictions of gpu_mlp_fit(), which parsnip asks for; and by parsnip.

test_that("a fit of Cox predicts times, curves and linear predictors as survival does", {
  skip_without_tensorflow(slow = TRUE)
  skip_if_not_installed("survival")
  lung <- survival::lung[c("time", "status", "age", "sex")]
  Surv <- survival::Surv # nolint: object_name_linter.
  formula <- Surv(time, status) ~ age + sex
  fit <- gpu_mlp_fit(
    formula, lung,
    units = integer(), family = "cox", epochs = 200, learning_rate = 0.05, batch_size = 228, seed = 1
  )
  known <- survival::coxph(formula, lung, ties = "breslow")
  new <- lung[c(1, 50, 100), ]
  linear <- predict(fit, new, type = "linear_pred")
  expect_equal(diff(linear), diff(unname(predict(known, new))), tolerance = 0.02)
  curves <- predict(fit, new, type = "survival", eval_time = c(0, 200, 500))
  expect_s3_class(curves, "data.frame")
  expect_identical(curves$.pred[[1]]$.eval_time, c(0, 200, 500))
  whole <- survival::survfit(known, new)
  found <- vapply(curves$.pred, function(curve) curve$.pred_survival, numeric(3))
  expect_equal(found, summary(whole, c(0, 200, 500))$surv, tolerance = 0.01, ignore_attr = TRUE)
  last <- max(lung$time[lung$status == 2])
  means <- summary(whole, rmean = last)$table[, "rmean"]
  expect_equal(predict(fit, new, type = "time"), unname(means), tolerance = 0.01)
  expect_identical(predict(fit, new), gpu_predict(fit, new))
})

test_that("intervals are quantiles of the predicted distribution", {
  skip_without_tensorflow(slow = TRUE)
  counts <- gpu_mlp_fit(count ~ spray, InsectSprays, units = 4, family = "poisson", epochs = 1)
  found <- predict(counts, InsectSprays, type = "pred_int", level = 0.9)
  mean <- predict(counts, InsectSprays, type = "numeric")
  expect_identical(found$.pred_lower, qpois(0.05, mean))
  expect_identical(found$.pred_upper, qpois(0.95, mean))
  plain <- gpu_mlp_fit(count ~ spray, InsectSprays, units = 4, epochs = 1)
  expect_snapshot(error = TRUE, {
    predict(plain, InsectSprays, type = "pred_int")
    predict(plain, InsectSprays, type = "linear_pred")
    predict(counts, InsectSprays, type = "linear_pred")
    predict(plain, InsectSprays, type = "hazard")
  })
})

test_that("a fit finds the functions of its formula in another session", {
  skip_without_tensorflow(slow = TRUE)
  twice <- function(x) 2 * x
  fit <- gpu_mlp_fit(mpg ~ twice(wt), mtcars, units = integer(), epochs = 1)
  expected <- predict(fit, mtcars)
  fit <- unserialize(serialize(fit, NULL))
  withr::defer(the$formulas <- formulas)
  formulas <- the$formulas
  the$formulas <- list()
  fit$state$model <- NULL
  expect_identical(predict(fit, mtcars), expected)
})

test_that("quantile regression has quantiles that do not cross", {
  skip_without_parsnip()
  levels <- c(0.1, 0.5, 0.9)
  for (model in c("linear_reg", "mlp")) {
    modes <- asNamespace("parsnip")$get_from_env(paste0(model, "_modes"))
    skip_if_not("quantile regression" %in% modes, "parsnip knows no quantile regression")
    spec <- if (model == "mlp") parsnip::mlp(hidden_units = 4) else parsnip::linear_reg()
    # In this order: set_engine() of parsnip 1.3.0 forgets the quantiles.
    spec <- parsnip::set_engine(spec, "gpukeras", epochs = 2)
    spec <- parsnip::set_mode(spec, "quantile regression", quantile_levels = levels)
    fitted <- parsnip::fit(spec, mpg ~ wt, mtcars)
    found <- as.matrix(predict(fitted, mtcars)$.pred_quantile)
    expect_identical(dim(found), c(32L, 3L))
    expect_true(all(diff(t(found)) > 0))
  }
})

test_that("censored regression predicts times and curves by parsnip", {
  skip_if_not_installed("parsnip", "1.1.0") # before, `eval_time` was `time`
  skip_without_parsnip()
  skip_if_not_installed("survival")
  skip_if_not_installed("prodlim")
  lung <- survival::lung[1:100, c("time", "status", "age", "sex")]
  hazards <- parsnip::set_engine(
    parsnip::proportional_hazards(), "gpukeras",
    units = 4, epochs = 2, batch_size = 100
  )
  discrete <- parsnip::set_engine(parsnip::survival_reg(), "gpukeras", epochs = 2)
  for (fitted in list(
    parsnip::fit(hazards, survival::Surv(time, status) ~ ., lung),
    parsnip::fit_xy(hazards, lung[c("age", "sex")], survival::Surv(lung$time, lung$status)),
    parsnip::fit(discrete, survival::Surv(time, status) ~ age, lung)
  )) {
    times <- predict(fitted, lung[1:3, ])
    expect_named(times, ".pred_time")
    curves <- predict(fitted, lung[1:3, ], type = "survival", eval_time = c(300, 100))
    expect_length(curves$.pred, 3)
    expect_named(curves$.pred[[1]], c(".eval_time", ".pred_survival"))
    expect_identical(curves$.pred[[2]]$.eval_time, c(300, 100))
    expect_lt(curves$.pred[[3]]$.pred_survival[1], curves$.pred[[3]]$.pred_survival[2])
  }
  fitted <- parsnip::fit(hazards, survival::Surv(time, status) ~ ., lung)
  rising <- predict(fitted, lung[1:3, ], type = "linear_pred")$.pred_linear_pred
  falling <- predict(fitted, lung[1:3, ], type = "linear_pred", increasing = FALSE)
  expect_equal(rising, -falling$.pred_linear_pred)
  refused <- parsnip::set_engine(parsnip::survival_reg(dist = "weibull"), "gpukeras")
  expect_error(
    parsnip::fit(refused, survival::Surv(time, status) ~ age, lung),
    "`dist`", class = "gpukeras_error_spec"
  )
})
