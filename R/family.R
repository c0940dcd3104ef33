# Statistical families of gpu_mlp(). The core checks them, and stores them in the model.

#' Statistical families for Keras models
#'
#' The argument `family` of [gpu_mlp()]: the distribution of the labels given the features. It
#' determines the model's last layers and its loss, which is the mean negative log-likelihood of
#' the rows, with all its constants. Weights of rows multiply their terms, and the sum is divided by
#' the number of rows, not by the sum of the weights. The network replaces the linear predictor of a
#' generalised linear model; without hidden layers (`units = integer()`) it is that linear
#' predictor, and training on all rows at once gives the coefficients of `glm()`.
#'
#' In the formulas \eqn{\eta} is the linear predictor, \eqn{\mu = g^{-1}(\eta)} the mean, \eqn{g}
#' the link. A dispersion is `"constant"` (one number is learned for all rows) or `"rows"` (it
#' depends on the features). An `offset()` of the formula is added to \eqn{\eta}.
#'
#' For each family: its labels; its links, the default first; the loss of a row.
#'
#' * `"gaussian"`: numbers; identity, log, inverse. \eqn{(y - \mu)^2}; with a dispersion
#'   \eqn{(y - \mu)^2 / 2 \sigma^2 + \log \sigma + \log(2 \pi) / 2}.
#' * `"quantile"`: numbers; identity. Mean over \eqn{q} of
#'   \eqn{\max(q (y - f_q), (q - 1)(y - f_q))}.
#' * `"poisson"`: counts; log, identity, sqrt. \eqn{\mu - y \log \mu + \log y!}.
#' * `"negative_binomial"`: counts; log, identity, sqrt. Minus the logarithm of
#'   `dnbinom(mu = , size = )`: variance \eqn{\mu + \mu^2 / s}.
#' * `"zero_inflated_poisson"`: counts; log. \eqn{-\log(\pi + (1 - \pi) e^{-\mu})} for 0, else
#'   \eqn{-\log(1 - \pi)} more than Poisson.
#' * `"gamma"`: numbers above 0; log, identity, inverse. That of
#'   `dgamma(shape = , rate = shape / mu)`.
#' * `"beta"`: shares in (0, 1); logit, probit, cloglog. That of `dbeta(mu * p, (1 - mu) * p)`.
#' * `"binomial"`: 0/1, two levels, or `cbind(successes, failures)`; logit, probit, cloglog. That of
#'   `dbinom()`.
#' * `"multinomial"`: a factor; logit. \eqn{-\log P(y)}, a softmax.
#' * `"multi_label"`: a matrix of 0 and 1; logit. Mean over columns of binomial losses.
#' * `"ordinal"`: an ordered factor (of another one, a message tells the order of its levels, and
#'   text is refused); logit, probit, cloglog. \eqn{-\log P(y)},
#'   \eqn{P(Y \le k) = g^{-1}(\theta_k - \eta)}.
#' * `"cox"`: `survival::Surv(time, status)`, or `cbind()`; log. For an event
#'   \eqn{\log \sum_j e^{\eta_j} - \eta}, the sum over rows with a time not before its own.
#' * `"discrete_time"`: as `"cox"`; logit, cloglog. \eqn{-\sum \log(1 - h)} over intervals
#'   survived, and \eqn{-\log h} of that of the event. Each interval has effects of its own, or all
#'   have the same, `proportional = TRUE`.
#'
#' Quantiles never cross: each one is the one before plus a positive number; a single one without
#' hidden layers is that of `quantreg::rq()`. The thresholds
#' \eqn{\theta_k} increase in the same way. Losses are computed in float32 also under mixed
#' precision, in forms that lose no digits for large counts or sizes; predictors are clipped where
#' float32 knows no difference any more, as R's [stats::make.link()] does.
#'
#' Without hidden layers `"discrete_time"` is a model of its own for each interval, as
#' `glm(event ~ interval * x)` of a row for each interval that a case was seen in: its hazards are
#' not proportional. With `proportional = TRUE` it is `glm(event ~ interval + x)`, with
#' `link = "cloglog"` the model of Cox for grouped times (Prentice and Gloeckler 1978), whose
#' effects are logarithms of hazard ratios as those of `"cox"`; with `"logit"` odds are
#' proportional. With hidden layers it has one risk score a row.
#'
#' The risk sets of `"cox"` are those of a batch, so that its loss depends on the batches: with
#' `batch_size` of all training rows it is the partial likelihood of `survival::coxph()`, divided by
#' the number of rows. ([gpu_evaluate()] takes batches of 32 unless `batch_size` is given.) Weights
#' of rows multiply the events' terms and the risks in the risk sets, as `coxph(weights = )` has
#' them. `strata(sex)` in the formula keeps the risk sets of each stratum apart, and gives it a
#' baseline hazard of its own, up to 1000 of them. When training ends, [gpu_fit()] stores the
#' cumulative baseline hazard of `survival::basehaz()`, on at most 200 times of events, in the
#' model's weights. `"discrete_time"` has a loss for each row, and needs no large batches; a
#' censored row has survived an interval if it was seen for at least half of it. A status is 1 for
#' an event and 0 for a censored row. With several devices each has its own batches, and risk sets.
#'
#' The family is stored with the model: [gpu_load()] knows it by itself. Keras' own `load_model()`
#' knows it in sessions in which gpukeras has made or loaded such a model.
#'
#' @param name Name of the family.
#' @param link Its link; `NULL` is the first of the list. (For `"gamma"` that is log; R's own
#'   `Gamma()` has the inverse.)
#' @param dispersion `"constant"`, `"rows"`, or `"none"` for a `"gaussian"` without one; `NULL` is
#'   `"none"` for `"gaussian"` and `"constant"` for the others that have one: `"gamma"`, `"beta"`
#'   and `"negative_binomial"`.
#' @param quantiles Probabilities of `"quantile"`, ascending; `NULL` is `c(0.1, 0.5, 0.9)`.
#' @param ties How `"cox"` treats events at the same time: `"efron"` (the default, as in `coxph()`)
#'   or `"breslow"`.
#' @param breaks Ends of the intervals of `"discrete_time"`, ascending; `NULL` is the deciles of the
#'   times of events.
#' @param proportional Whether effects of `"discrete_time"` are the same in all intervals; `NULL` is
#'   `FALSE`.
#' @return A `gpu_family`: a list of the family's options, with `print()`.
#' @section Errors:
#' `gpukeras_error_spec` for a family, a link or an option that does not exist. [gpu_mlp()] and
#' [gpu_fit()] check the labels: `gpukeras_error_data` for such as the family does not take.
#' @references
#' McCullagh and Nelder (1989), Generalized Linear Models, 2nd edition.
#'
#' Hilbe (2011), Negative Binomial Regression, 2nd edition.
#'
#' Lambert (1992), Zero-inflated Poisson regression, Technometrics 34.
#'
#' Ferrari and Cribari-Neto (2004), Beta regression for modelling rates and proportions, Journal of
#' Applied Statistics 31.
#'
#' McCullagh (1980), Regression models for ordinal data, Journal of the Royal Statistical Society B
#' 42.
#'
#' Koenker and Bassett (1978), Regression quantiles, Econometrica 46.
#'
#' Cox (1972), Regression models and life-tables, Journal of the Royal Statistical Society B 34.
#'
#' Efron (1977), The efficiency of Cox's likelihood function for censored data, Journal of the
#' American Statistical Association 72.
#'
#' Prentice and Gloeckler (1978), Regression analysis of grouped survival data with application to
#' breast cancer data, Biometrics 34.
#'
#' Gensheimer and Narasimhan (2019), A scalable discrete-time survival model for neural networks,
#' PeerJ 7, e6257.
#' @examplesIf gpukeras:::can_run_examples()
#' gpu_family("gaussian", dispersion = "rows")
#'
#' train <- gpu_dataset(count ~ spray, data = InsectSprays)
#' model <- gpu_mlp(train, units = 8, family = poisson())
#' fit <- gpu_fit(model, train, epochs = 20, verbose = FALSE)
#' head(gpu_predict(model, InsectSprays))
#' head(gpu_predict(model, InsectSprays, type = "quantile"))
#' @export
gpu_family <- function(name, link = NULL, dispersion = NULL, quantiles = NULL, ties = NULL,
                       breaks = NULL, proportional = NULL) {
  check_string(name)
  new_gpu_family(list(
    name = name, link = link, dispersion = dispersion, ties = ties, proportional = proportional,
    quantiles = if (!is.null(quantiles)) as_listed(plain_number(quantiles)),
    breaks = if (!is.null(breaks)) as_listed(plain_number(breaks))
  ))
}

# The core checks the options and returns them completed.
new_gpu_family <- function(options, call = caller_env()) {
  given <- check_no_na_options(options, call)
  record <- call_core("family", list(family = given), call = call)
  record[c("quantiles", "breaks")] <- lapply(
    record[c("quantiles", "breaks")], function(values) as.numeric(unlist(values))
  )
  new_result(record, "gpu_family")
}

#' @export
format.gpu_family <- function(x, ...) {
  format_fields(
    paste("<gpu_family>", gsub("_", " ", x$name)),
    link = x$link,
    dispersion = switch(x$dispersion,
      constant = "one number for all rows",
      rows = "depends on the features"
    ),
    quantiles = format_numbers(x$quantiles),
    ties = x$ties,
    breaks = format_numbers(x$breaks),
    effects = if (isTRUE(x$proportional)) "the same in all intervals",
    width = 12
  )
}

format_numbers <- function(values) {
  if (length(values) > 0) paste(format(values, trim = TRUE, digits = 4), collapse = ", ")
}

# R's names of families that gpukeras has too.
families_of_r <- c(
  gaussian = "gaussian", poisson = "poisson", binomial = "binomial", Gamma = "gamma"
)

# A family as options of the core: from a name, a gpu_family, or a family of R, such as glm() takes.
as_family <- function(family, call = caller_env()) {
  family <- if (is.function(family)) family() else family
  if (is.null(family) || rlang::is_string(family)) {
    return(family)
  }
  if (inherits(family, "gpu_family")) {
    return(family_options(family))
  }
  if (!inherits(family, "family")) {
    abort_spec(family, "family", "the name of a family, a gpu_family() or a family of glm()", call)
  }
  name <- families_of_r[family$family]
  if (is.na(name)) {
    abort_gpukeras(
      sprintf("`family` is %s of R, which gpukeras does not have.", family$family),
      code = "spec", hint = "?gpu_family lists the families.", arg = "family", call = call
    )
  }
  list(name = unname(name), link = family$link)
}

family_options <- function(family) {
  family <- unclass(family)
  for (name in c("quantiles", "breaks")) {
    family[[name]] <- if (length(family[[name]]) > 0) as.list(family[[name]])
  }
  family
}

# Predictions by parameters -----------------------------------------------------------------------

# Probabilities to survive, as a data frame with a line for each row and time.
as_survival_frame <- function(record) {
  values <- as_prediction(record[c("values", "missing")], NULL)
  times <- as.numeric(unlist(record$times))
  data.frame(
    row = rep(seq_len(nrow(values)), each = length(times)),
    time = rep(times, nrow(values)), survival = as.vector(t(values))
  )
}

# Curves, parameters of each row, or quantiles by R's own functions of them, as a data frame.
as_family_frame <- function(record, type, quantiles, call = caller_env()) {
  if (type == "survival") {
    return(as_survival_frame(record))
  }
  frame <- as.data.frame(as_prediction(record, NULL))
  if (type == "parameters") {
    return(frame)
  }
  family <- record$family$name
  if (family == "quantile") {
    check_own_quantiles(quantiles, names(frame), call)
    return(frame)
  }
  quantiles <- check_quantiles(quantiles %||% c(0.1, 0.5, 0.9), call)
  found <- lapply(quantiles, function(q) unname(quantile_functions[[family]](q, frame)))
  as.data.frame(rlang::set_names(found, sprintf("q%g", quantiles)))
}

quantile_functions <- list(
  gaussian = function(q, x) stats::qnorm(q, x$mean, x$sd),
  poisson = function(q, x) stats::qpois(q, x$mean),
  negative_binomial = function(q, x) stats::qnbinom(q, size = x$size, mu = x$mean),
  gamma = function(q, x) stats::qgamma(q, shape = x$shape, rate = x$shape / x$mean),
  beta = function(q, x) stats::qbeta(q, x$shape1, x$shape2)
)

check_quantiles <- function(quantiles, call) {
  quantiles <- plain_number(quantiles, call = call)
  if (!is.numeric(quantiles) || anyNA(quantiles) || any(quantiles <= 0 | quantiles >= 1)) {
    abort_spec(quantiles, "quantiles", "probabilities between 0 and 1", call)
  }
  quantiles
}

# A model of quantiles has learned those that it has.
check_own_quantiles <- function(quantiles, known, call) {
  if (!is.null(quantiles)) {
    abort_gpukeras(
      sprintf("`quantiles` is for other families: `model` has learned %s.", shorten(known, 8)),
      code = "spec", hint = "Leave it out.", arg = "quantiles", call = call
    )
  }
}
