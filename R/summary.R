# gpu_summary(): what a statistician reads after a fit, as of glm().

#' Summary of a model: likelihood, deviance, information criteria and coefficients
#'
#' What `summary()` of a [glm()] tells, of a Keras model on rows: for models of [gpu_mlp()] with a
#' [gpu_family()], and for others whose loss is the mean squared error or a (binary or sparse)
#' cross-entropy, which imply the Gaussian, binomial, multi-label or multinomial family.
#'
#' The deviance is 2 (log-likelihood of a model with a parameter for each row - log-likelihood), as
#' in `glm()`: it is not divided by the dispersion of a Gaussian or gamma family. For `"ordinal"`,
#' `"multinomial"`, `"multi_label"`, `"discrete_time"` and `"cox"` it is -2 log-likelihood, as in
#' `MASS::polr()`. The null deviance is that of the mean alone, with the offset if there is one.
#' Weights of rows multiply their log-likelihoods; a Gaussian family without a dispersion treats
#' them as `glm()` does. `"cox"` has the partial likelihood of all rows at once, as
#' `survival::coxph()`, in which weights multiply events and risk sets. `class_weight` of
#' [gpu_dataset()] is for training alone, here as in [gpu_effects()] and [gpu_calibrate()]: give
#' weights of classes as `weights` if they are to count, as those of `glm()` do.
#'
#' The dispersion is the model's own: for `"gamma"` 1 / shape, which `glm()` estimates by moments,
#' and for `"negative_binomial"` the size. A Gaussian family without a dispersion has the variance
#' deviance / degrees of freedom, and the log-likelihood of `logLik()` of a `glm()`.
#'
#' Without hidden layers (`units = integer()`) there are coefficients on the scale of the data: the
#' standardisation of numbers is undone. Factors are one-hot: each level has a column, so that with
#' the intercept their coefficients are determined only up to a constant; differences between levels
#' are those of `glm()`. AIC and BIC count parameters as `logLik()` does: the rank of the encoded
#' rows, and a dispersion. BIC takes the logarithm of `$nobs`: the rows with a weight above 0, for
#' `"cox"` the events, and for `"ordinal"` and `"multinomial"` the sum of the weights, which
#' `MASS::polr()` and `nnet::multinom()` take for frequencies. They are missing for models with
#' hidden layers or a penalty, whose parameters cannot be counted so, and after a training with
#' `class_weight`, whose parameters do not have the largest likelihood. Standard errors are not
#' computed. The family `"quantile"` has no likelihood, and coefficients if it has one quantile.
#'
#' @inheritParams gpu_evaluate
#' @param data Rows with labels: a [gpu_dataset()], or a data frame, matrix, array or paths of
#'   files, as for [gpu_evaluate()].
#' @return A `gpu_summary`, which `print()` shows. A value that the model does not define is `NULL`.
#' - `$family`, `$link`; `$implied`: whether the loss says so.
#' - `$formula`, `$columns`, `$rows` (with a weight above 0), `$trainable` (number of parameters).
#' - `$log_likelihood`, `$deviance`, `$null_deviance`, `$explained` (the share of the deviance).
#' - `$df`, `$aic`, `$nobs`, `$bic`, `$df_null`, `$df_residual`: without hidden layers.
#' - `$dispersion` and `$dispersion_name`, if it is one number for all rows.
#' - `$coefficients`: a data frame of `term`, `estimate` and, for several linear predictors,
#'   `predictor`. It has no rows for models with hidden layers.
#' @section Errors:
#' `gpukeras_error_model` for a model whose loss is no known likelihood or with several outputs;
#' `gpukeras_error_data` for rows without labels, in sequence, or encoded otherwise. A warning
#' `gpukeras_warning_weights` for rows without weights that trained the model by weights: a model
#' keeps the name of a column of weights, not weights given as a vector. Give such rows as a
#' [gpu_dataset()] with `weights`.
#' @references McCullagh and Nelder (1989), Generalized Linear Models, 2nd edition, sections 2.3 and
#'   2.5.
#' @seealso [gpukeras-generics] for `coef()`, `logLik()`, `AIC()` and their like; [gpukeras-tidiers]
#'   for `tidy()` and `glance()` of it.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(count ~ spray, data = InsectSprays, batch_size = 24)
#' model <- gpu_mlp(train, units = integer(), family = "poisson", learning_rate = 0.05)
#' fit <- gpu_fit(model, train, epochs = 60, verbose = FALSE)
#' gpu_summary(model, InsectSprays)
#' summary(glm(count ~ spray, poisson(), InsectSprays))
#' @export
gpu_summary <- function(model, data, y = NULL, part = "all", recipe = NULL) {
  fit <- model
  model <- check_model(model)
  recipe <- use_recipe(model, recipe)
  data <- as_dataset(data, model, recipe, y, model = model)
  record <- call_core("summary", list(
    model = model, data = data$handle, part = part,
    formula = crossed_terms(recipe$formula, rlang::current_env())
  ))
  warn_unweighed(record$unweighed)
  record$unweighed <- NULL
  new_gpu_summary(record, fit)
}

#' @rdname gpu_summary
#' @param object A `gpu_mlp_fit`, as parsnip's `extract_fit_engine()` gives it.
#' @export
summary.gpu_mlp_fit <- function(object, data, ...) gpu_summary(object, data, ...)

# `model` is kept for augment(); a gpu_mlp_fit also lives on in other sessions.
new_gpu_summary <- function(record, model = NULL) {
  text <- record$formula %||% ""
  record$formula <- if (nzchar(text) && !is_recipe_key(text)) show_formula(text) else ""
  record$columns <- as_chr(record$columns)
  terms <- terms_frame(record$terms)
  if (!any(nzchar(terms$predictor))) terms$predictor <- NULL
  record$terms <- NULL
  record$coefficients <- terms
  record$state <- rlang::env(
    model = model, contrasts = record$contrasts, options = record$options
  )
  record$contrasts <- record$options <- NULL
  new_result(record, "gpu_summary")
}

#' @rdname gpu_summary
#' @param x A `gpu_summary`.
#' @param digits Significant digits.
#' @param ... Of `summary()`, the further arguments of `gpu_summary()`; else not used.
#' @export
format.gpu_summary <- function(x, digits = 5, ...) {
  number <- function(value) if (!is.null(value)) format_number(value, digits)
  c(
    sprintf(
      "<gpu_summary> %s family (link %s)%s, %s", gsub("_", " ", x$family), x$link,
      if (x$implied) " by the loss" else "", count_of(x$rows, "rows")
    ),
    format_fields(
      formula = if (nzchar(x$formula)) x$formula,
      columns = if (!nzchar(x$formula) && length(x$columns) > 0) shorten(x$columns, 8),
      parameters = paste0(format_count(x$trainable), if (x$linear) " (no hidden layers)"),
      width = 21
    ),
    format_coefficients(x$coefficients, digits),
    format_fields(
      dispersion = if (!is.null(x$dispersion)) {
        sprintf("%s (%s)", number(x$dispersion), x$dispersion_name)
      },
      "null deviance" = format_deviance(x$null_deviance, x$df_null, digits),
      "residual deviance" = format_deviance(x$deviance, x$df_residual, digits),
      explained = if (!is.null(x$explained)) paste(format_percent(x$explained), "of the deviance"),
      "log-likelihood" = format_likelihood(x, digits),
      AIC = number(x$aic), BIC = number(x$bic),
      width = 21
    )
  )
}

format_deviance <- function(value, df, digits) {
  if (!is.null(value)) {
    degrees <- if (!is.null(df)) sprintf(" on %s", count_of(df, "degrees of freedom"))
    paste0(format_number(value, digits), degrees)
  }
}

format_likelihood <- function(x, digits) {
  if (!is.null(x$log_likelihood)) {
    degrees <- if (!is.null(x$df)) sprintf(" (%d parameters)", x$df)
    partial <- if (identical(x$family, "cox")) ", partial"
    paste0(format_number(x$log_likelihood, digits), degrees, partial)
  }
}

# Coefficients as a data frame; NA are those that rows do not tell.
terms_frame <- function(terms) {
  frame <- typed_frame(terms, list(term = "", estimate = 0, predictor = ""))
  frame$estimate[is.nan(frame$estimate)] <- NA
  frame
}

# A table of at most `most` coefficients.
format_coefficients <- function(terms, digits, most = 30) {
  if (nrow(terms) == 0) {
    return(NULL)
  }
  shown <- utils::head(terms, most)
  cells <- list(term = shown$term, estimate = format(shown$estimate, digits = digits))
  cells <- c(if (!is.null(shown$predictor)) list(predictor = shown$predictor), cells)
  onehot <- if (any(grepl("=", terms$term, fixed = TRUE))) ", factors one-hot"
  c(
    paste0("coefficients on the scale of the data", onehot, ":"),
    format_columns(cells, c(rep("left", length(cells) - 1), "right")),
    format_more(nrow(terms) - nrow(shown), "$coefficients")
  )
}
