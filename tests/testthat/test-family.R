test_that("families are checked, completed and printed", {
  skip_without_tensorflow()
  expect_snapshot({
    gpu_family("gamma")
    gpu_family("gaussian", dispersion = "rows")
    gpu_family("quantile", quantiles = c(0.05, 0.95))
    gpu_family("cox")
    gpu_family("discrete_time", breaks = c(1, 2.5))
    gpu_family("discrete_time", link = "cloglog", proportional = TRUE)
  })
  expect_snapshot(error = TRUE, {
    gpu_family("cauchy")
    gpu_family("poisson", link = "logit")
    gpu_family("quantile", quantiles = c(0.9, 0.1))
    gpu_family(3)
    gpu_family("cox", proportional = TRUE)
    gpu_family("discrete_time", proportional = "yes")
  })
})

test_that("a family is a name, a gpu_family, or one of R's", {
  expect_null(as_family(NULL))
  expect_identical(as_family("poisson"), "poisson")
  expect_identical(as_family(poisson), list(name = "poisson", link = "log"))
  expect_identical(as_family(Gamma()), list(name = "gamma", link = "inverse"))
  expect_identical(as_family(binomial("probit")), list(name = "binomial", link = "probit"))
  expect_snapshot(error = TRUE, {
    as_family(quasipoisson())
    as_family(list(1))
  })
})

# Rows whose labels come from each family, of the same linear predictor.
family_rows <- function(n = 300) {
  set.seed(1)
  x <- data.frame(a = rnorm(n), b = rnorm(n))
  eta <- 0.3 + 0.5 * x$a - 0.4 * x$b
  own <- 2 + 0.3 * x$a - 0.2 * x$b # away from 0
  trials <- sample(1:8, n, TRUE)
  won <- rbinom(n, trials, plogis(eta))
  share <- rbeta(n, 6 * plogis(eta), 6 * plogis(-eta))
  cbind(x, data.frame(
    number = eta + rnorm(n), count = rpois(n, exp(eta)), spread = rnbinom(n, 2, mu = exp(eta)),
    amount = rgamma(n, 3, 3 / exp(eta)), slow = rgamma(n, 3, 3 * own),
    root = rpois(n, own^2), share = share, won = won, lost = trials - won,
    once = rbinom(n, 1, plogis(eta)),
    kind = factor(cut(eta + rlogis(n), c(-Inf, -0.5, 1, Inf)), labels = c("low", "mid", "high")),
    plain = rpois(n, own)
  ))
}

# Coefficients of a linear predictor that was predicted: its regression is exact.
coefficients_of <- function(predictor) {
  fit <- stats::lm(predictor ~ a + b, cbind(predictor = predictor, family_rows()[c("a", "b")]))
  expect_lt(max(abs(stats::residuals(fit))), 1e-4)
  unname(stats::coef(fit))
}

cases_of_glm <- list(
  trials = list(cbind(won, lost) ~ a + b, binomial()),
  poisson = list(count ~ a + b, poisson()),
  probit = list(once ~ a + b, binomial("probit")),
  gamma = list(amount ~ a + b, Gamma("log")),
  inverse = list(slow ~ a + b, Gamma()),
  gaussian = list(number ~ a + b, gaussian()),
  cloglog = list(once ~ a + b, binomial("cloglog")),
  sqrt = list(root ~ a + b, poisson("sqrt")),
  identity = list(plain ~ a + b, poisson("identity"))
)

test_that("a model without hidden layers has the coefficients of glm()", {
  skip_without_tensorflow()
  for (case in few(cases_of_glm, 1)) {
    model <- linear_fit(case[[1]], case[[2]], family_rows())
    start <- c(case[[2]]$linkfun(mean(gpu_predict(model, family_rows()))), 0, 0)
    expected <- stats::glm(case[[1]], case[[2]], family_rows(), start = start)
    found <- coefficients_of(case[[2]]$linkfun(gpu_predict(model, family_rows())))
    expect_equal(found, unname(stats::coef(expected)), tolerance = 1e-3)
  }
})

test_that("a negative binomial model is that of MASS", {
  skip_unless_nightly() # an ordinal one in each run
  skip_without_tensorflow()
  skip_if_not_installed("MASS")
  model <- linear_fit(spread ~ a + b, "negative_binomial", family_rows())
  expected <- MASS::glm.nb(spread ~ a + b, family_rows())
  found <- gpu_predict(model, family_rows(), type = "parameters")
  expect_equal(coefficients_of(log(found$mean)), unname(coef(expected)), tolerance = 1e-3)
  expect_equal(found$size[1], expected$theta, tolerance = 1e-2)
  y <- family_rows()$spread
  nll <- -mean(dnbinom(y, size = found$size, mu = found$mean, log = TRUE))
  expect_equal(gpu_evaluate(model, family_rows())[["loss"]], nll, tolerance = 1e-5)
  expect_gte(nll + 1e-5, -as.numeric(logLik(expected)) / 300)
})

test_that("an ordinal model is that of MASS", {
  skip_without_tensorflow()
  skip_if_not_installed("MASS")
  model <- linear_fit(kind ~ a + b, "ordinal", family_rows())
  expected <- MASS::polr(kind ~ a + b, family_rows())
  found <- gpu_predict(model, family_rows())
  expect_identical(colnames(found), c("low", "mid", "high"))
  own <- gpu_summary(model, family_rows())$coefficients
  known <- c(coef(expected), expected$zeta)
  expect_identical(own$term, names(known))
  expect_lt(max(abs(own$estimate - known)), 1e-4)
  expect_equal(unname(found), unname(fitted(expected)), tolerance = 1e-4)
})

# The least negative log-likelihood of a row, by R's optimiser: `density(eta, other)`.
least_loss <- function(density, others) {
  x <- stats::model.matrix(~ a + b, family_rows())
  loss <- function(w) -mean(density(drop(x %*% w[1:3]), w[-(1:3)], x))
  stats::optim(rep(0, 3 + others), loss, method = "BFGS", control = list(maxit = 500))$value
}

# Coefficients of other packages, recorded because they are not part of what tests install: Debian's
# quantreg 5.94, pscl 1.5.5, VGAM 1.1-7 and ordinal 2022.11-16, on `counted_rows()`.
counted_rows <- function() {
  rows <- family_rows()
  rows$many <- rows$count * (seq_len(nrow(rows)) %% 4 > 0)
  rows
}

cases_of_others <- function() list(
  # coef(quantreg::rq(number ~ a + b, c(0.1, 0.5, 0.9), rows))
  list(number ~ a + b, gpu_family("quantile", quantiles = 0.1), c(-0.880423, 0.469096, -0.344628)),
  list(number ~ a + b, gpu_family("quantile", quantiles = 0.5), c(0.293180, 0.427996, -0.497861)),
  list(number ~ a + b, gpu_family("quantile", quantiles = 0.9), c(1.627418, 0.553350, -0.619362)),
  # coef(pscl::zeroinfl(many ~ a + b, rows, reltol = 1e-14))
  list(
    many ~ a + b, "zero_inflated_poisson",
    c(0.320906, 0.507945, -0.353372, -1.005066, -0.164215, 0.302401)
  ),
  # coef(VGAM::vglm(share ~ a + b, VGAM::betaff(zero = "phi"), rows, epsilon = 1e-12))[-2]
  list(share ~ a + b, "beta", c(0.340857, 0.562624, -0.378489)),
  # coef(ordinal::clm(kind ~ a + b, data = rows, link = "probit")), slopes first
  list(
    kind ~ a + b, gpu_family("ordinal", link = "probit"),
    c(0.310550, -0.260995, -0.487048, 0.487566)
  ),
  list(
    kind ~ a + b, gpu_family("ordinal", link = "cloglog"),
    c(0.347511, -0.264781, -0.978592, 0.134336)
  )
)

test_that("quantiles, zero-inflated counts, shares and ordered classes are those of others", {
  skip_without_tensorflow()
  skip_unless_nightly()
  rows <- counted_rows()
  for (case in cases_of_others()) {
    found <- gpu_summary(linear_fit(case[[1]], case[[2]], rows), rows)
    expect_lt(max(abs(found$coefficients$estimate - case[[3]])), 1e-3)
    if (found$family == "beta") {
      expect_equal(log(found$dispersion), 1.855229, tolerance = 1e-4)
      expect_equal(found$log_likelihood, 121.5041, tolerance = 1e-5)
    }
  }
  # A learned spread is that of the maximum of the likelihood.
  constant <- gpu_family("gaussian", dispersion = "constant")
  found <- gpu_summary(linear_fit(number ~ a + b, constant), rows)
  known <- stats::lm(number ~ a + b, rows)
  expect_equal(found$log_likelihood, as.numeric(logLik(known)), tolerance = 1e-5)
})

lung_rows <- function() {
  lung <- survival::lung[c("time", "status", "age", "sex", "ph.karno")]
  lung <- lung[stats::complete.cases(lung), ]
  data.frame(
    time = lung$time, status = as.numeric(lung$status == 2),
    a = as.numeric(scale(lung$age)), b = as.numeric(lung$sex == 2)
  )
}

test_that("a model of Cox without hidden layers is coxph(), with its loss and its curves", {
  skip_without_tensorflow()
  skip_if_not_installed("survival")
  rows <- lung_rows()
  rows$time <- ceiling(rows$time / 20) # ties
  for (ties in rev(few(c("breslow", "efron"), 1))) {
    model <- linear_fit(cbind(time, status) ~ a + b, gpu_family("cox", ties = ties), rows)
    formula <- survival::Surv(time, status) ~ a + b
    expected <- survival::coxph(formula, rows, ties = ties)
    fit <- stats::lm(log(gpu_predict(model, rows)) ~ a + b, rows)
    expect_equal(unname(coef(fit)[-1]), unname(coef(expected)), tolerance = 1e-3)
    here <- survival::coxph(formula, rows, ties = ties, init = coef(fit)[-1], iter.max = 0)
    loss <- gpu_evaluate(model, rows, batch_size = nrow(rows))[["loss"]]
    expect_equal(loss * nrow(rows), -here$loglik[2], tolerance = 1e-5)
  }
  expected <- survival::coxph(formula, rows, ties = "breslow")
  hazard <- survival::basehaz(expected, centered = FALSE)
  curves <- gpu_predict(model, rows[1:2, ], type = "survival", times = c(0, hazard$time))
  risk <- predict(expected, rows[1, ], type = "risk", reference = "zero")
  known <- exp(-c(0, hazard$hazard) * as.numeric(risk))
  expect_named(curves, c("row", "time", "survival"))
  expect_equal(curves$survival[curves$row == 1], known, tolerance = 5e-3)

  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  again <- gpu_load(path)
  expect_equal(gpu_predict(again, rows[1:2, ], type = "survival", times = c(0, hazard$time)), curves)
})

test_that("survival times choose the family of Cox, or are refused by the families' names", {
  skip_without_tensorflow()
  skip_if_not_installed("survival")
  Surv <- survival::Surv # nolint: object_name_linter.
  rows <- lung_rows()
  data <- gpu_dataset(Surv(time, status) ~ a + b, rows)
  model <- gpu_mlp(data, units = integer(), seed = 1)
  expect_identical(as_r(model$loss$name), "cox_likelihood")
  by_y <- gpu_dataset(as.matrix(rows[c("a", "b")]), Surv(rows$time, rows$status))
  expect_identical(as_r(gpu_mlp(by_y)$loss$name), "cox_likelihood")
  keras <- gpu_mlp(gpu_dataset(cbind(a, b) ~ time, rows, scale = FALSE), units = integer())
  late <- rows$time + 1
  expect_snapshot(error = TRUE, {
    gpu_tabular(data)
    gpu_mlp(data, family = "gaussian")
    gpu_mlp(gpu_dataset(list(Surv(time, status), a) ~ b, rows))
    gpu_fit(keras, gpu_dataset(Surv(time, status) ~ a, rows), epochs = 1)
    gpu_dataset(rows["a"], Surv(rows$time, late, type = "interval2"))
    gpu_dataset(rows["a"], Surv(rows$time, rows$status, type = "left"))
    gpu_dataset(rows["a"], Surv(rows$time, late, rows$status))
    gpu_dataset(rows["a"], Surv(rows$time, factor(rows$status + rows$b)))
  })
})

test_that("weights and strata of a model of Cox are those of coxph(), in fit, summary and curves", {
  skip_without_tensorflow(slow = TRUE)
  skip_if_not_installed("survival")
  rows <- lung_rows()
  rows$time <- ceiling(rows$time / 20) # ties
  rows$w <- rep(c(1, 2, 0.5), length.out = nrow(rows))
  rows$s <- factor(rep(c("u", "v", "v", "w"), length.out = nrow(rows)))
  Surv <- survival::Surv # nolint: object_name_linter.
  strata <- survival::strata # coxph() knows it without `survival::` only
  cases <- list(
    list(Surv(time, status) ~ a + b, "breslow"),
    list(Surv(time, status) ~ a + b + strata(s), "efron")
  )
  for (case in cases) {
    known <- survival::coxph(case[[1]], rows, weights = rows$w, ties = case[[2]])
    family <- gpu_family("cox", ties = case[[2]])
    model <- linear_fit(case[[1]], family, rows, weights = w)
    found <- gpu_summary(model, rows)
    expect_equal(found$coefficients$estimate, unname(coef(known)), tolerance = 1e-3)
    expect_equal(c(found$null_deviance, found$deviance) / -2, known$loglik, tolerance = 1e-5)
    expect_equal(c(found$aic, found$bic), c(AIC(known), BIC(known)), tolerance = 1e-5)
    loss <- gpu_evaluate(model, rows, batch_size = nrow(rows))[["loss"]]
    expect_equal(loss * nrow(rows), found$deviance / 2, tolerance = 1e-5)
    times <- c(5, 15, 30)
    curves <- gpu_predict(model, rows[1:9, ], type = "survival", times = times)
    many <- rows[rep(seq_len(nrow(rows)), 30), ] # those that trained, whose ties are larger
    here <- survival::coxph(case[[1]], many,
      weights = many$w, ties = case[[2]], init = coef(known), iter.max = 0
    )
    expected <- summary(survival::survfit(here, newdata = rows[1:9, ]), times = times, extend = TRUE)
    expect_equal(curves$survival, as.vector(expected$surv), tolerance = 1e-3)
  }
  expect_named(gpu_predict(model, rows[1:2, ], type = "parameters"), c("risk", "stratum"))
  curves <- gpu_predict(model, rows[1:9, ], type = "survival", times = times)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  again <- gpu_load(path)
  expect_equal(gpu_predict(again, rows[1:9, ], type = "survival", times = times), curves)
  expect_equal(gpu_summary(again, rows)$deviance, found$deviance)
  effects <- as.data.frame(gpu_effects(model, rows, "a", grid = 3))
  expect_identical(unique(effects$output), "1") # the stratum's number is no prediction
  expect_s3_class(gpu_attributions(model, rows[1:3, ]), "gpu_attributions")
  expect_snapshot(error = TRUE, {
    gpu_predict(model, transform(rows, s = "x"))
    gpu_mlp(gpu_dataset(a ~ b + strata(s), rows), family = "gaussian")
    gpu_mlp(gpu_dataset(cbind(time, status) ~ b + strata(s), rows), family = "discrete_time")
  })
})

test_that("discrete times have curves and mean survival times", {
  skip_without_tensorflow()
  skip_if_not_installed("survival")
  data <- gpu_dataset(cbind(time, status) ~ a + b, lung_rows())
  family <- gpu_family("discrete_time", breaks = c(200, 400, 800))
  model <- gpu_mlp(data, units = integer(), family = family, seed = 1)
  hazards <- gpu_predict(model, data, type = "parameters")
  expect_named(hazards, c("hazard1", "hazard2", "hazard3"))
  curves <- gpu_predict(model, data, type = "survival")
  expect_equal(curves$time[1:3], c(200, 400, 800))
  expect_equal(curves$survival[1:3], cumprod(1 - unlist(hazards[1, ])), ignore_attr = TRUE)
  s <- curves$survival[1:3]
  mean <- 200 * (1 + s[1]) / 2 + 200 * (s[1] + s[2]) / 2 + 400 * (s[2] + s[3]) / 2
  expect_equal(gpu_predict(model, data)[1], mean, tolerance = 1e-5)
  expect_snapshot(error = TRUE, {
    gpu_predict(model, data, type = "survival", times = -1)
    gpu_predict(model, data, type = "class")
    gpu_mlp(gpu_dataset(time ~ a, lung_rows()), family = "cox")
    gpu_mlp(gpu_dataset(cbind(time - 5, status) ~ a, lung_rows()), family = "cox")
    gpu_mlp(gpu_dataset(cbind(time, status + 1) ~ a, lung_rows()), family = "cox")
  })
})

# A row for each interval in which a case was at risk, as grouped survival times are given to glm().
person_periods <- function(rows, breaks) {
  from <- c(0, breaks[-length(breaks)])
  parts <- lapply(seq_along(breaks), function(k) {
    event <- rows$status == 1
    died <- event & rows$time > from[k] & rows$time <= breaks[k]
    lived <- ifelse(event, rows$time > breaks[k], rows$time >= (from[k] + breaks[k]) / 2)
    cbind(rows, interval = factor(k), died = as.numeric(died))[died | lived, ]
  })
  do.call(rbind, parts)
}

test_that("discrete times with the same effects are Cox' model of grouped times, that of glm()", {
  skip_without_tensorflow()
  skip_if_not_installed("survival")
  lung <- survival::lung[c("time", "status", "age", "sex", "ph.ecog")]
  lung <- lung[stats::complete.cases(lung), ]
  lung$status <- as.numeric(lung$status == 2)
  breaks <- c(100, 200, 300, 400, 600, 1100)
  long <- person_periods(lung, breaks)
  family <- gpu_family("discrete_time", link = "cloglog", breaks = breaks, proportional = TRUE)
  model <- linear_fit(cbind(time, status) ~ age + sex + ph.ecog, family, lung)
  formula <- died ~ 0 + interval + age + sex + ph.ecog
  expected <- stats::glm(formula, binomial("cloglog"), long)
  expect_equal(expected$deviance, 679.31, tolerance = 1e-5)
  found <- gpu_summary(model, lung)
  expect_equal(-2 * found$log_likelihood, expected$deviance, tolerance = 1e-5)
  expect_equal(found$df, length(coef(expected)))
  terms <- found$coefficients
  expect_equal(terms$estimate, unname(coef(expected)), tolerance = 5e-3)
  expect_identical(terms$term, c(rep("(Intercept)", 6), "age", "sex", "ph.ecog"))
  hazards <- gpu_predict(model, lung[1:3, ], type = "parameters")
  known <- stats::predict(expected, transform(lung[1:3, ], interval = factor(2)), type = "response")
  expect_equal(hazards$hazard2, unname(known), tolerance = 5e-3)
  # Hazards of two rows are proportional: their ratio of log(1 - h) is that of each interval.
  ratios <- log1p(-hazards[1, ]) / log1p(-hazards[2, ])
  expect_equal(unlist(ratios, use.names = FALSE), rep(ratios[[1]], 6), tolerance = 1e-4)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  expect_equal(gpu_predict(gpu_load(path), lung[1:3, ], type = "parameters"), hazards)
  skip_unless_nightly()
  own <- gpu_family("discrete_time", link = "cloglog", breaks = breaks)
  each <- linear_fit(cbind(time, status) ~ age + sex + ph.ecog, own, lung)
  apart <- stats::glm(died ~ interval * (age + sex + ph.ecog), binomial("cloglog"), long)
  found <- gpu_summary(each, lung)
  expect_equal(-2 * found$log_likelihood, apart$deviance, tolerance = 1e-3)
  expect_equal(found$df, length(coef(apart)))
})

test_that("offsets and interactions of a formula are those of glm() and coxph()", {
  skip_without_tensorflow()
  rows <- family_rows()
  set.seed(2)
  rows$exposure <- runif(nrow(rows), 10, 1000)
  rows$seen <- rpois(nrow(rows), rows$exposure * exp(-3 + 0.5 * rows$a - 0.2 * rows$a * rows$b))
  formula <- seen ~ a * b + offset(log(exposure))
  expected <- stats::predict(stats::glm(formula, poisson(), rows))
  found <- gpu_predict(linear_fit(formula, "poisson", rows), rows)
  expect_equal(log(found), unname(expected), tolerance = 1e-4)
  skip_unless_nightly()
  skip_if_not_installed("survival")
  Surv <- survival::Surv # nolint: object_name_linter.
  formula <- Surv(amount, once) ~ a + offset(b)
  model <- linear_fit(formula, "cox", rows)
  fit <- stats::lm(log(gpu_predict(model, rows)) - b ~ a, rows)
  expect_equal(coef(fit)[["a"]], coef(survival::coxph(formula, rows))[["a"]], tolerance = 1e-3)
})

# The mean loss that gpu_evaluate() gives, and that of R's own density at the parameters.
losses_of <- function(formula, family, density) {
  data <- gpu_dataset(formula, family_rows(), batch_size = 300)
  model <- gpu_mlp(data, units = 4, family = family, seed = 1)
  found <- gpu_predict(model, data, type = "parameters")
  own <- -mean(density(family_rows(), found))
  expect_lt(abs(gpu_evaluate(model, data)[["loss"]] - own), 1e-5 * max(1, abs(own)))
  list(model = model, data = data)
}

test_that("losses are those of R's densities, and quantiles those of its quantile functions", {
  skip_without_tensorflow()
  gaussian <- gpu_family("gaussian", dispersion = "rows")
  made <- losses_of(number ~ a + b, gaussian, function(rows, x) {
    dnorm(rows$number, x$mean, x$sd, log = TRUE)
  })
  found <- gpu_predict(made$model, made$data, type = "quantile", quantiles = c(0.05, 0.5))
  own <- gpu_predict(made$model, made$data, type = "parameters")
  expect_named(found, c("q0.05", "q0.5"))
  expect_equal(found$q0.05, qnorm(0.05, own$mean, own$sd))
  expect_equal(own$mean, gpu_predict(made$model, made$data))
  losses_of(count ~ a + b, "poisson", function(rows, x) dpois(rows$count, x$mean, log = TRUE))
  losses_of(amount ~ a + b, "gamma", function(rows, x) {
    dgamma(rows$amount, x$shape, x$shape / x$mean, log = TRUE)
  })
  losses_of(share ~ a + b, "beta", function(rows, x) {
    dbeta(rows$share, x$shape1, x$shape2, log = TRUE)
  })
  losses_of(cbind(won, lost) ~ a + b, "binomial", function(rows, x) {
    dbinom(rows$won, rows$won + rows$lost, x$success, log = TRUE)
  })
})

test_that("a model of quantiles predicts its own, and others say what they lack", {
  skip_without_tensorflow()
  data <- gpu_dataset(number ~ a + b, family_rows())
  model <- gpu_mlp(data, units = 4, family = gpu_family("quantile", quantiles = c(0.2, 0.8)))
  found <- gpu_predict(model, data)
  expect_identical(colnames(found), c("q0.2", "q0.8"))
  expect_equal(as.matrix(gpu_predict(model, data, type = "quantile")), found)
  plain <- gpu_mlp(data, units = 4)
  rows <- gpu_dataset(count ~ a + b, family_rows())
  counts <- gpu_mlp(rows, family = "poisson")
  expect_snapshot(error = TRUE, {
    gpu_predict(model, data, type = "quantile", quantiles = 0.3)
    gpu_predict(counts, rows, type = "quantile", quantiles = 2)
    gpu_predict(counts, rows, type = "class")
    gpu_predict(plain, data, type = "parameters")
    gpu_mlp(data, family = "poisson")
    gpu_mlp(gpu_dataset(kind ~ a, family_rows()), family = "beta")
  })
})
