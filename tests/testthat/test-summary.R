# gpu_summary() against glm(), MASS and survival: the model gets their coefficients, and must then
# have their deviances, likelihoods and information criteria.

summary_rows <- function(n = 120) {
  set.seed(2)
  rows <- data.frame(a = rnorm(n, 5, 3), b = runif(n), w = sample(1:3, n, TRUE))
  eta <- 0.4 + 0.1 * rows$a - 0.5 * rows$b
  rows$number <- 20 * eta + rnorm(n)
  rows$count <- rpois(n, exp(eta))
  rows$spread <- rnbinom(n, 2, mu = exp(eta))
  rows$amount <- rgamma(n, 3, 3 / exp(eta))
  rows$once <- rbinom(n, 1, plogis(eta - 0.5))
  rows$trials <- sample(2:8, n, TRUE)
  rows$won <- rbinom(n, rows$trials, plogis(eta - 0.5))
  rows$kind <- cut(eta + rlogis(n), c(-Inf, 0.2, 1.5, Inf), c("low", "mid", "high"))
  rows$o <- runif(n, 0, 2)
  rows$g <- factor(sample(c("x", "y", "z"), n, TRUE))
  rows
}

# Gives a linear model coefficients on the scale of the data. Both are affine in its weights, a
# slope in its own weight.
set_coefficients <- function(model, data, intercept, slopes) {
  kind <- "keras.src.layers.core.dense.Dense"
  dense <- Filter(function(layer) inherits(layer, kind), model$layers)
  set <- function(kernel, bias) {
    kernel <- matrix(kernel, length(slopes))
    dense[[1]]$set_weights(c(list(kernel), if (dense[[1]]$use_bias) list(array(bias))))
    gpu_summary(model, data)$coefficients$estimate
  }
  there <- if (dense[[1]]$use_bias) seq_along(slopes) + 1 else seq_along(slopes)
  kernel <- slopes / set(rep(1, length(slopes)), 0)[there]
  if (!dense[[1]]$use_bias) {
    return(invisible(set(kernel)))
  }
  low <- set(kernel, 0)[1]
  invisible(set(kernel, (intercept - low) / (set(kernel, 1)[1] - low)))
}

# Sets a weight of the family's layer, of which `read` predicts what it means.
set_dispersion <- function(model, value, read) {
  layer <- model$layers[[length(model$layers)]]
  now <- layer$get_weights()
  layer$set_weights(list(now[[1]] + log(value / read(model))))
}

glm_cases <- list(
  poisson = list(count ~ a + b, poisson(), "poisson"),
  offset = list(count ~ a + b + offset(o), poisson(), "poisson"),
  gaussian = list(number ~ a + b, gaussian(), NULL),
  weighted = list(number ~ a + b, gaussian(), "gaussian", weights = TRUE),
  counts = list(count ~ a + b, poisson(), "poisson", weights = TRUE),
  trials = list(cbind(won, trials - won) ~ a + b, binomial(), "binomial"),
  binary = list(once ~ a + b, binomial(), NULL),
  probit = list(once ~ a + b + offset(o), binomial("probit"), binomial("probit")),
  cloglog = list(once ~ a + b + offset(o), binomial("cloglog"), binomial("cloglog")),
  shifted = list(number ~ a + b + offset(o), gaussian(), "gaussian"),
  gamma = list(amount ~ a + b, Gamma("log"), "gamma")
)

test_that("likelihood, deviances and criteria are those of glm()", {
  skip_without_tensorflow()
  rows <- summary_rows()
  for (name in names(few(glm_cases, 6))) {
    case <- glm_cases[[name]]
    weights <- if (isTRUE(case$weights)) rows$w
    rows$weights_of_case <- weights %||% rep(1, nrow(rows))
    known <- stats::glm(case[[1]], case[[2]], rows, weights = weights_of_case)
    data <- if (is.null(weights)) {
      gpu_dataset(case[[1]], rows, batch_size = 120)
    } else {
      gpu_dataset(case[[1]], rows, batch_size = 120, weights = rows$w)
    }
    model <- gpu_mlp(data, units = integer(), family = case[[3]], seed = 1)
    set_coefficients(model, data, coef(known)[[1]], coef(known)[-1])
    if (name == "gamma") {
      set_dispersion(model, nrow(rows) / deviance(known), function(model) {
        1 / gpu_summary(model, data)$dispersion
      })
    }
    found <- gpu_summary(model, data)
    # The coefficients are on the data's scale: they predict what those of glm() do.
    expect_equal(gpu_predict(model, data), unname(fitted(known)), tolerance = 1e-5, label = name)
    expect_equal(found$coefficients$estimate, unname(coef(known)), tolerance = 1e-5, label = name)
    own <- found[c("deviance", "null_deviance", "log_likelihood", "aic", "bic")]
    known_values <- list(
      deviance = known$deviance, null_deviance = known$null.deviance,
      log_likelihood = as.numeric(logLik(known)), aic = AIC(known), bic = BIC(known)
    )
    expect_equal(own, known_values, tolerance = 1e-5, label = name)
    expect_identical(
      c(found$df_null, found$df_residual, found$rows),
      as.integer(c(known$df.null, known$df.residual, nobs(known))), label = name
    )
    if (is.null(case[[3]])) expect_true(found$implied)
  }
})

test_that("terms that learn numbers are shown as the user wrote them", {
  text <- 'y ~ a + b:.learned("g", factor(g, levels = c("u", "v")))'
  found <- new_gpu_summary(list(formula = text, terms = list()))
  expect_identical(found$formula, "y ~ a + b:g")
})

test_that("a summary is printed, and refuses what has no likelihood", {
  skip_without_tensorflow()
  rows <- summary_rows()
  data <- gpu_dataset(count ~ a + g, rows, batch_size = 120)
  model <- gpu_mlp(data, units = integer(), family = "poisson", seed = 1)
  known <- stats::glm(count ~ a + g, poisson(), rows)
  slopes <- c(coef(known)[["a"]], 1, 1 + coef(known)[c("gy", "gz")])
  set_coefficients(model, data, coef(known)[[1]] - 1, slopes)
  found <- gpu_summary(model, data)
  expect_equal(c(found$df, found$df_residual), c(4, 116)) # one-hot, but counted as by glm()
  expect_equal(c(found$aic, found$bic), c(AIC(known), BIC(known)), tolerance = 1e-5)
  expect_snapshot(found)
  hidden <- gpu_mlp(data, units = 3, family = gpu_family("poisson"), seed = 1)
  shown <- gpu_summary(hidden, data)
  expect_null(shown$aic)
  expect_identical(nrow(shown$coefficients), 0L)
  pinball <- gpu_mlp(data, units = 3, family = "quantile", seed = 1)
  expect_null(gpu_summary(pinball, data)$deviance)
  plain <- gpu_mlp(gpu_dataset(number ~ a, rows), seed = 1)
  plain$compile(loss = "mean_absolute_error")
  expect_snapshot(error = TRUE, {
    gpu_summary(plain, gpu_dataset(number ~ a, rows))
    gpu_summary(model, gpu_dataset(~ a + g, rows))
    gpu_summary(3, rows)
  })
})

test_that("negative binomial, ordinal and Cox models are those of MASS and survival", {
  skip_without_tensorflow()
  skip_if_not_installed("MASS")
  skip_if_not_installed("survival")
  rows <- summary_rows()
  known <- MASS::glm.nb(spread ~ a + b, rows)
  data <- gpu_dataset(spread ~ a + b, rows, batch_size = 120)
  model <- gpu_mlp(data, units = integer(), family = "negative_binomial", seed = 1)
  set_coefficients(model, data, coef(known)[[1]], coef(known)[-1])
  set_dispersion(model, known$theta, function(model) gpu_summary(model, data)$dispersion)
  found <- gpu_summary(model, data)
  expect_equal(found$dispersion, known$theta, tolerance = 1e-5)
  expect_equal(found$deviance, known$deviance, tolerance = 1e-5)
  expect_equal(found$null_deviance, known$null.deviance, tolerance = 1e-5)
  expect_equal(c(found$aic, found$bic), c(AIC(known), BIC(known)), tolerance = 1e-5)

  known <- MASS::polr(kind ~ a + b, rows)
  data <- gpu_dataset(kind ~ a + b, rows, batch_size = 120)
  model <- gpu_mlp(data, units = integer(), family = "ordinal", seed = 1)
  set_coefficients(model, data, 0, coef(known))
  found <- gpu_summary(model, data)
  expect_identical(found$coefficients$term, c("a", "b", "low|mid", "mid|high"))
  zeta <- found$coefficients$estimate[3:4]
  chances <- gpu_predict(model, data)
  eta <- as.matrix(rows[c("a", "b")]) %*% coef(known)
  expect_equal(qlogis(chances[, "low"]), zeta[1] - eta[, 1], tolerance = 1e-4)
  own <- sum(log(chances[cbind(seq_len(nrow(rows)), as.integer(rows$kind))]))
  expect_equal(found$log_likelihood, own, tolerance = 1e-5)
  expect_equal(found$aic, -2 * own + 2 * attr(logLik(known), "df"), tolerance = 1e-5)
  expect_equal(found$null_deviance, MASS::polr(kind ~ 1, rows)$deviance, tolerance = 1e-5)

  lung <- stats::na.omit(survival::lung[c("time", "status", "age", "sex")])
  lung$status <- lung$status - 1
  known <- survival::coxph(survival::Surv(time, status) ~ age + sex, lung)
  data <- gpu_dataset(cbind(time, status) ~ age + sex, lung, batch_size = nrow(lung))
  model <- gpu_mlp(data, units = integer(), family = "cox", seed = 1)
  set_coefficients(model, data, NULL, coef(known))
  found <- gpu_summary(model, data)
  expect_equal(found$coefficients$estimate, unname(coef(known)), tolerance = 1e-5)
  expect_equal(c(found$null_deviance, found$deviance) / -2, known$loglik, tolerance = 1e-5)
  expect_equal(c(found$aic, found$bic), c(AIC(known), BIC(known)), tolerance = 1e-5)
})

test_that("a column of weights weighs rows wherever they are scored, and one that lacks is named", {
  skip_without_tensorflow(slow = TRUE)
  rows <- summary_rows()
  known <- glm(count ~ a + b, poisson(), rows, weights = w)
  data <- gpu_dataset(count ~ a + b, rows, weights = w, batch_size = 120)
  model <- gpu_mlp(data, units = integer(), family = "poisson", seed = 1)
  gpu_fit(model, data, epochs = 1, validation = rows, verbose = FALSE) # gives the model its recipe
  set_coefficients(model, data, coef(known)[[1]], coef(known)[-1])
  found <- gpu_summary(model, rows)
  expect_equal(c(found$aic, found$bic), c(AIC(known), BIC(known)), tolerance = 1e-5)
  expect_identical(found$formula, "count ~ a + b")
  # The loss is the sum of the weighted losses, divided by the number of rows.
  loss <- -as.numeric(logLik(known)) / nrow(rows)
  expect_equal(gpu_evaluate(model, rows)[["loss"]], loss, tolerance = 1e-5)
  expect_equal(attr(gpu_importance(model, rows, repeats = 1), "baseline"), loss, tolerance = 1e-5)
  expect_equal(gpu_evaluate(model, gpu_dataset(count ~ a + b, rows, recipe = model))[["loss"]],
    loss, tolerance = 1e-5
  )
  expect_equal(gpu_evaluate(model, list(rows, NULL, 2 * rows$w))[["loss"]], 2 * loss, tolerance = 1e-5)
  half <- rows[1:50, ]
  plain <- gpu_evaluate(model, transform(half, w = 1))[["loss"]]
  expect_equal(gpu_evaluate(model, half, sample_weight = rep(1, 50))[["loss"]], plain)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  expect_equal(gpu_summary(gpu_load(path), rows)$aic, found$aic)
  expect_snapshot(error = TRUE, {
    gpu_evaluate(model, rows[names(rows) != "w"])
    gpu_summary(model, transform(rows, w = NULL))
    gpu_fit(model, data, validation = rows[names(rows) != "w"], verbose = FALSE)
    gpu_dataset(count ~ a, rows, weights = w / mean(w))
  })
  expect_length(gpu_predict(model, rows[names(rows) != "w"]), 120)

  history <- gpu_fit(model, data, epochs = 1, validation = half, verbose = FALSE)
  validated <- history$history$val_loss
  expect_equal(validated, gpu_evaluate(model, half)[["loss"]], tolerance = 1e-5)

  # Calls, names of columns, and files with a column of weights.
  for (weighed in list(
    gpu_dataset(count ~ a + b, rows, weights = w / 2 + 1),
    gpu_dataset(rows[c("a", "b", "count", "w")], "count", weights = "w")
  )) {
    found <- gpu_evaluate(gpu_mlp(weighed, units = integer(), seed = 1), weighed)[["loss"]]
    own <- gpu_mlp(weighed, units = integer(), seed = 1)
    expect_equal(gpu_evaluate(own, rows, recipe = gpu_recipe(weighed))[["loss"]], found, tolerance = 1e-5)
  }
  table <- withr::local_tempfile(fileext = ".csv")
  utils::write.csv(rows[c("a", "b", "count", "w")], table, row.names = FALSE)
  files <- gpu_dataset(table, "count", weights = "w")
  own <- gpu_mlp(files, units = integer(), family = "poisson", seed = 1)
  loss <- gpu_evaluate(own, files)[["loss"]]
  for (new in list(table, rows)) {
    found <- gpu_evaluate(own, new, recipe = gpu_recipe(files))[["loss"]]
    expect_equal(found, loss, tolerance = 1e-5)
  }
  utils::write.csv(rows[c("a", "b", "count")], table, row.names = FALSE)
  expect_error(gpu_evaluate(own, table, recipe = gpu_recipe(files)), class = "gpukeras_error_data")
})

test_that("training rows that are scored without the weights of their training are a warning", {
  skip_without_tensorflow(slow = TRUE)
  rows <- summary_rows()
  y <- rows$count
  x <- as.matrix(rows["b"])
  model <- gpu_mlp(gpu_dataset(x, y), units = integer(), family = "poisson", seed = 1)
  gpu_fit(model, x, y = y, sample_weight = rows$w, epochs = 1, batch_size = 120, verbose = FALSE)
  expect_snapshot({
    loss <- gpu_evaluate(model, x, y)
    lost <- gpu_summary(model, list(x, y))
    some <- gpu_evaluate(model, rbind(x[1:60, , drop = FALSE], x[61:120, , drop = FALSE] + 9), y)
    found <- gpu_importance(model, x, y, repeats = 1)
  })
  expect_warning(gpu_evaluate(model, x, y), class = "gpukeras_warning_weights")
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  expect_warning(gpu_summary(gpu_load(path), list(x, y)), class = "gpukeras_warning_weights")
  expect_no_warning(gpu_evaluate(model, x + 9, y))
  expect_no_warning(weighed <- gpu_evaluate(model, x, y, sample_weight = rows$w))
  mean <- as.numeric(gpu_predict(model, x))
  losses <- -dpois(y, mean, log = TRUE)
  expect_equal(weighed[["loss"]], mean(rows$w * losses), tolerance = 1e-5)
  expect_equal(loss[["loss"]], mean(losses), tolerance = 1e-5)

  # The last training of the same rows had no weights, or weights of 1.
  gpu_fit(model, x, y = y, sample_weight = rep(1, 120), epochs = 1, verbose = FALSE)
  expect_no_warning(gpu_evaluate(model, x, y))
})

test_that("BIC of classes takes weights for frequencies, as polr() and multinom() do", {
  skip_without_tensorflow()
  skip_if_not_installed("MASS")
  skip_if_not_installed("nnet")
  rows <- summary_rows()
  nobs_of <- function(known) attr(logLik(known), "nobs")
  data <- gpu_dataset(kind ~ a + b, rows, weights = w, batch_size = 120)
  for (family in c("ordinal", "multinomial")) {
    known <- if (family == "ordinal") {
      MASS::polr(kind ~ a + b, rows, weights = w)
    } else {
      nnet::multinom(kind ~ a + b, rows, weights = w, trace = FALSE)
    }
    found <- gpu_summary(gpu_mlp(data, units = integer(), family = family, seed = 1), data)
    expect_identical(found$nobs, as.integer(sum(rows$w)))
    expect_equal(found$nobs, nobs_of(known) %||% sum(rows$w))
    expect_identical(as.numeric(found$df), as.numeric(attr(logLik(known), "df")))
    expect_equal(found$bic, -2 * found$log_likelihood + log(sum(rows$w)) * found$df)
    if (family == "ordinal") expect_equal(found$df_residual, known$df.residual)
  }
})
