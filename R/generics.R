# R's generics of models: a value, or an error that says why there is none; never a silent NULL.
#
# A Keras model is a Python object without rows. So what depends on rows takes them as `data`, and
# a gpu_summary() has what its rows gave.

#' R's generics for models: coef(), logLik(), nobs(), residuals() and their like
#'
#' Methods of R's own generics for Keras models, for the `gpu_mlp_fit` of [gpukeras-tidymodels], and
#' for a [gpu_summary()]. A Keras model keeps no rows: what depends on them takes `data`, as
#' [gpu_summary()] does. The summary keeps what they gave, so that [AIC()] and [BIC()] take it.
#'
#' @section Coefficients:
#' Models without hidden layers have coefficients on the scale of the data, with the names and the
#' meaning that `glm()` gives them: a factor's levels are compared with the first one that has a
#' training row (the model itself has a column for each level; [gpu_summary()] shows those), and
#' levels without one have no coefficient. Several linear predictors are
#' named before the term, `"high:wt"`; those of `"multinomial"` are compared with the first class
#' that has a training row, as in `nnet::multinom()`. Interactions too have the columns that `glm()`
#' gives them, `"wt:am1"`; where a combination of levels has no training row, they keep those of the
#' model, one for each level, `"wt:am=1"`. `"ordinal"` has slopes, then thresholds, as
#' `MASS::polr()`.
#' @section What there is not:
#' `vcov()`, `confint()`, `anova()` and others that need the covariance of estimates are an error:
#' gradients with random batches give none. `model.frame()`, `model.matrix()`, `terms()` and
#' `update()` are errors too, and so are all of these generics for histories and other results,
#' which are no models. `logLik()` of a model with hidden layers or a penalty has no degrees of
#' freedom, so its [AIC()] is `NA`.
#' @param object,x A Keras model, a `gpu_mlp_fit` or a [gpu_summary()]; `formula()` also takes a
#'   [gpu_dataset()] or a [gpu_recipe()].
#' @param data Rows with labels, as for [gpu_summary()]; for `fitted()` labels are not needed. Not
#'   used for a summary, but by `residuals()` and `fitted()`.
#' @param type `"response"`, the label less the mean, or `"deviance"`, whose squares add up to the
#'   deviance. (`residuals()` of a `glm()` has `"deviance"` by default.)
#' @param ... Further arguments of [gpu_summary()].
#' @return `coef()` a named vector, with `NA` for a number that is the same in all training rows, as
#'   of [lm()]; `logLik()` a `logLik` with degrees of freedom and the number of observations;
#'   `nobs()` the `$nobs` of [gpu_summary()];
#'   `deviance()` and `df.residual()` numbers; `residuals()` and `fitted()` one number a row, which
#'   is a probability where the model itself gives logits. Rows that `na = "drop"` leaves out have
#'   no residual; `fitted()` has a number for them where `data` is a data frame, or `NA` where a
#'   feature is missing;
#'   `formula()` a formula; `family()` a [gpu_family()].
#' @section Errors:
#' `gpukeras_error_model` for what a model does not have, `gpukeras_error_spec` without `data`.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(count ~ spray, data = InsectSprays, batch_size = 24)
#' model <- gpu_mlp(train, units = integer(), family = "poisson", learning_rate = 0.05)
#' fit <- gpu_fit(model, train, epochs = 60, verbose = FALSE)
#' coef(model)
#' formula(model)
#' AIC(logLik(model, InsectSprays), gpu_summary(model, InsectSprays))
#' head(residuals(model, InsectSprays, type = "deviance"))
#' @name gpukeras-generics
#' @aliases coef.gpu_summary logLik.gpu_summary
#' @rawNamespace S3method(stats::coef, gpu_summary, coef_of_summary)
#' S3method(stats::logLik, gpu_summary, likelihood_of_summary)
#' S3method(stats::nobs, gpu_summary, count_of_summary)
#' S3method(stats::deviance, gpu_summary, deviance_of_summary)
#' S3method(stats::df.residual, gpu_summary, df_of_summary)
#' S3method(stats::residuals, gpu_summary, residuals_of_summary)
#' S3method(stats::fitted, gpu_summary, fitted_of_summary)
#' S3method(stats::formula, gpu_summary, formula_of_text)
#' S3method(stats::family, gpu_summary, family_of_summary)
#' S3method(stats::formula, gpu_recipe, formula_of_text)
#' S3method(stats::formula, gpu_dataset, formula_of_dataset)
NULL

# A summary ----------------------------------------------------------------------------------------

coef_of_summary <- function(object, ...) {
  coefficients_of(object$state$contrasts, object$linear, caller_env())
}

# The coefficients of a model without hidden layers by name.
coefficients_of <- function(terms, linear, call) {
  if (length(terms) == 0) {
    abort_gpukeras(
      if (linear) {
        "The model's coefficients are not known: it was not trained by gpukeras on named columns."
      } else {
        "The model has hidden layers or other operations: its weights are no coefficients."
      },
      code = "model", arg = "object", call = call,
      hint = "gpu_importance() and gpu_effects() tell what columns do; gpu_mlp(units = integer())."
    )
  }
  frame <- terms_frame(terms)
  several <- nzchar(frame$predictor)
  names <- paste0(frame$predictor, ifelse(several, ":", ""), frame$term)
  stats::setNames(frame$estimate, names)
}

likelihood_of_summary <- function(object, ...) {
  value <- known_value(object$log_likelihood, object, "likelihood", caller_env())
  df <- if (is.null(object$aic)) NA_integer_ else object$df
  structure(value, df = df, nobs = object$nobs, class = "logLik")
}

count_of_summary <- function(object, ...) object$nobs

deviance_of_summary <- function(object, ...) {
  known_value(object$deviance, object, "deviance", caller_env())
}

df_of_summary <- function(object, ...) {
  known_value(object$df_residual, object, "residual degrees of freedom", caller_env())
}

known_value <- function(value, summary, what, call) {
  if (is.null(value)) {
    abort_gpukeras(
      sprintf(
        "This model of the family \"%s\"%s has no %s.", summary$family,
        if (summary$linear) "" else " with hidden layers", what
      ),
      code = "model", arg = "object", call = call
    )
  }
  value
}

family_of_summary <- function(object, ...) {
  new_family(object$family, object$link, object$state$options)
}

new_family <- function(name, link, options) {
  rlang::exec(gpu_family, name, link = link, !!!lapply(options, unlist))
}

residuals_of_summary <- function(object, data, ...) {
  residuals_of_model(object$state$model, data, ...)
}

fitted_of_summary <- function(object, data, ...) fitted_of_model(object$state$model, data, ...)

# A formula out of a summary's or recipe's text, which may come from a file: it is parsed only.
formula_of_text <- function(x, ...) as_formula(x$formula, caller_env())

as_formula <- function(text, call) {
  text <- text %||% ""
  if (!nzchar(text) || is_recipe_key(text)) {
    abort_gpukeras(
      "There is no formula: the rows were given without one.",
      code = "model", arg = "x", call = call, hint = "gpu_recipe() tells the columns."
    )
  }
  code <- parse_formula(show_formula(text), call)
  left <- if (length(code) == 3) code[[2]]
  rlang::new_formula(left, code[[length(code)]], env = globalenv())
}

formula_of_dataset <- function(x, ...) formula_of_text(gpu_recipe(x), ...)

# A model ------------------------------------------------------------------------------------------

#' @name gpukeras-generics
#' @rawNamespace S3method(stats::coef, keras.src.models.model.Model, coef_of_model)
#' S3method(stats::logLik, keras.src.models.model.Model, likelihood_of_model)
#' S3method(stats::nobs, keras.src.models.model.Model, count_of_model)
#' S3method(stats::deviance, keras.src.models.model.Model, deviance_of_model)
#' S3method(stats::df.residual, keras.src.models.model.Model, df_of_model)
#' S3method(stats::residuals, keras.src.models.model.Model, residuals_of_model)
#' S3method(stats::fitted, keras.src.models.model.Model, fitted_of_model)
#' S3method(stats::formula, keras.src.models.model.Model, formula_of_model)
#' S3method(stats::family, keras.src.models.model.Model, family_of_model)
#' S3method(stats::coef, gpu_mlp_fit, coef_of_model)
#' S3method(stats::logLik, gpu_mlp_fit, likelihood_of_model)
#' S3method(stats::nobs, gpu_mlp_fit, count_of_model)
#' S3method(stats::deviance, gpu_mlp_fit, deviance_of_model)
#' S3method(stats::df.residual, gpu_mlp_fit, df_of_model)
#' S3method(stats::residuals, gpu_mlp_fit, residuals_of_model)
#' S3method(stats::fitted, gpu_mlp_fit, fitted_of_model)
#' S3method(stats::formula, gpu_mlp_fit, formula_of_model)
#' S3method(stats::family, gpu_mlp_fit, family_of_model)
NULL

terms_of_model <- function(model, call) {
  model <- check_model(model, "object", call)
  recipe <- call_core("recipe", list(model = model), call = call)
  args <- list(model = model, formula = crossed_terms(recipe$formula, call))
  call_core("terms", args, call = call)
}

# The terms of a formula with interactions, each with its elements and their levels, for the core;
# NULL of other formulas. The text may come from a file: it is parsed only.
crossed_terms <- function(text, call) {
  if (is.null(text) || !nzchar(text) || is_recipe_key(text)) {
    return(NULL)
  }
  features <- lapply(formula_parts(parse_formula(text, call))$features, split_crossed)
  if (all(lengths(features) == 1)) {
    return(NULL)
  }
  lapply(features, function(term) {
    lapply(term, function(element) {
      levels <- if (has_levels(element)) as.list(element[[3]]$levels)[-1] # of c("u", "v")
      list(name = name_term(element), levels = lapply(levels, as_chr))
    })
  })
}

coef_of_model <- function(object, ...) {
  record <- terms_of_model(object, caller_env())
  coefficients_of(record$terms, record$linear, caller_env())
}

formula_of_model <- function(x, ...) {
  as_formula(terms_of_model(x, caller_env())$formula, caller_env())
}

family_of_model <- function(object, ...) {
  record <- terms_of_model(object, caller_env())
  if (!nzchar(record$family)) {
    abort_gpukeras(
      "The model has no family, and its loss implies none.",
      code = "model", arg = "object", call = caller_env(), hint = "gpu_mlp(family = ) has one."
    )
  }
  new_family(record$family, record$link, record$options)
}

likelihood_of_model <- function(object, data, ...) {
  likelihood_of_summary(summary_on(object, data, "logLik", ..., call = caller_env()))
}

count_of_model <- function(object, data, ...) {
  count_of_summary(summary_on(object, data, "nobs", ..., call = caller_env()))
}

deviance_of_model <- function(object, data, ...) {
  deviance_of_summary(summary_on(object, data, "deviance", ..., call = caller_env()))
}

df_of_model <- function(object, data, ...) {
  df_of_summary(summary_on(object, data, "df.residual", ..., call = caller_env()))
}

summary_on <- function(model, data, generic, ..., call) {
  check_rows_given(missing(data), generic, call)
  gpu_summary(model, data, ...)
}

check_rows_given <- function(lacks, generic, call) {
  if (lacks) {
    abort_gpukeras(
      "A Keras model keeps no rows, and this depends on them: `data` is missing.",
      code = "spec", arg = "data", call = call,
      hint = sprintf(
        "%s(model, data = ); AIC(), BIC() and others take gpu_summary(model, data).", generic
      )
    )
  }
}

residuals_of_model <- function(object, data, type = "response", y = NULL, part = "all",
                               recipe = NULL, ...) {
  check_rows_given(missing(data), "residuals", caller_env())
  model <- check_model(object)
  recipe <- use_recipe(model, recipe)
  data <- as_dataset(data, model, recipe, y, model = model)
  args <- list(model = model, data = data$handle, part = part, kind = type)
  values <- call_core("residuals", args)
  values[is.nan(values)] <- NA
  if (length(dim(values)) < 2) as.vector(values) else values
}

fitted_of_model <- function(object, data, ...) {
  check_rows_given(missing(data), "fitted", caller_env())
  predict_means(object, data, ...)
}

# Predictions; of a model that gives the logits of classes, their probabilities.
predict_means <- function(model, data, ..., call = caller_env()) {
  predicted <- gpu_predict(model, data, ...)
  about <- terms_of_model(model, call)
  if (!about$logits) {
    return(predicted)
  }
  switch(about$family,
    multinomial = {
      odds <- exp(predicted - do.call(pmax, as.data.frame(predicted)))
      odds / rowSums(odds)
    },
    binomial = ,
    multi_label = stats::plogis(predicted),
    predicted
  )
}

# What there is not --------------------------------------------------------------------------------

#' @name gpukeras-generics
#' @rawNamespace S3method(stats::vcov, keras.src.models.model.Model, refuse_object)
#' S3method(stats::confint, keras.src.models.model.Model, refuse_object)
#' S3method(stats::anova, keras.src.models.model.Model, refuse_object)
#' S3method(stats::simulate, keras.src.models.model.Model, refuse_object)
#' S3method(stats::sigma, keras.src.models.model.Model, refuse_object)
#' S3method(stats::weights, keras.src.models.model.Model, refuse_object)
#' S3method(stats::update, keras.src.models.model.Model, refuse_object)
#' S3method(stats::add1, keras.src.models.model.Model, refuse_object)
#' S3method(stats::drop1, keras.src.models.model.Model, refuse_object)
#' S3method(stats::variable.names, keras.src.models.model.Model, refuse_object)
#' S3method(stats::case.names, keras.src.models.model.Model, refuse_object)
#' S3method(stats::model.matrix, keras.src.models.model.Model, refuse_object)
#' S3method(stats::extractAIC, keras.src.models.model.Model, refuse_fit)
#' S3method(stats::rstandard, keras.src.models.model.Model, refuse_model)
#' S3method(stats::rstudent, keras.src.models.model.Model, refuse_model)
#' S3method(stats::hatvalues, keras.src.models.model.Model, refuse_model)
#' S3method(stats::cooks.distance, keras.src.models.model.Model, refuse_model)
#' S3method(stats::influence, keras.src.models.model.Model, refuse_model)
#' S3method(stats::model.frame, keras.src.models.model.Model, refuse_formula)
#' S3method(stats::terms, keras.src.models.model.Model, refuse_x)
#' S3method(stats::vcov, gpu_result, refuse_object)
#' S3method(stats::confint, gpu_result, refuse_object)
#' S3method(stats::anova, gpu_result, refuse_object)
#' S3method(stats::simulate, gpu_result, refuse_object)
#' S3method(stats::sigma, gpu_result, refuse_object)
#' S3method(stats::weights, gpu_result, refuse_object)
#' S3method(stats::update, gpu_result, refuse_object)
#' S3method(stats::add1, gpu_result, refuse_object)
#' S3method(stats::drop1, gpu_result, refuse_object)
#' S3method(stats::variable.names, gpu_result, refuse_object)
#' S3method(stats::case.names, gpu_result, refuse_object)
#' S3method(stats::model.matrix, gpu_result, refuse_object)
#' S3method(stats::extractAIC, gpu_result, refuse_fit)
#' S3method(stats::rstandard, gpu_result, refuse_model)
#' S3method(stats::rstudent, gpu_result, refuse_model)
#' S3method(stats::hatvalues, gpu_result, refuse_model)
#' S3method(stats::cooks.distance, gpu_result, refuse_model)
#' S3method(stats::influence, gpu_result, refuse_model)
#' S3method(stats::model.frame, gpu_result, refuse_formula)
#' S3method(stats::terms, gpu_result, refuse_x)
#' S3method(stats::coef, gpu_result, refuse_object)
#' S3method(stats::logLik, gpu_result, refuse_object)
#' S3method(stats::nobs, gpu_result, refuse_object)
#' S3method(stats::deviance, gpu_result, refuse_object)
#' S3method(stats::df.residual, gpu_result, refuse_object)
#' S3method(stats::residuals, gpu_result, refuse_object)
#' S3method(stats::fitted, gpu_result, refuse_object)
#' S3method(stats::family, gpu_result, refuse_object)
#' S3method(stats::formula, gpu_result, refuse_x)
NULL

# One function for each list of arguments of a generic.
refuse_object <- function(object, ...) refuse_generic(object, .Generic) # nolint
refuse_model <- function(model, ...) refuse_generic(model, .Generic) # nolint
refuse_formula <- function(formula, ...) refuse_generic(formula, .Generic) # nolint
refuse_x <- function(x, ...) refuse_generic(x, .Generic) # nolint
refuse_fit <- function(fit, scale, k, ...) refuse_generic(fit, .Generic) # nolint

refuse_generic <- function(object, generic, call = caller_env(2)) {
  is_model <- inherits(object, c("gpu_summary", "gpu_mlp_fit", "python.builtin.object"))
  if (!is_model) {
    abort_gpukeras(
      sprintf("A %s is no model: `%s()` takes the model itself.", class(object)[1], generic),
      code = "model", arg = "object", call = call
    )
  }
  of_rows <- generic %in% c("model.frame", "model.matrix", "terms", "weights", "case.names")
  reason <- if (of_rows) {
    "a Keras model keeps no rows"
  } else if (generic %in% c("update", "drop1", "add1", "extractAIC")) {
    "a Keras model is not built anew from a formula"
  } else {
    "gradients with random batches give no covariance of estimates"
  }
  abort_gpukeras(
    sprintf("`%s()` is not known for this model: %s.", generic, reason),
    code = "model", arg = "object", call = call,
    hint = if (of_rows) {
      "formula() and gpu_recipe() tell how the rows were encoded."
    } else {
      "?`gpukeras-generics` lists what there is; gpu_calibrate() gives intervals of predictions."
    }
  )
}
