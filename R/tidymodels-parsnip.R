# parsnip's mlp() and linear models with the engine "gpukeras": the function that parsnip calls to
# fit, and the registration of the engine.

#' gpukeras in tidymodels
#'
#' If the package parsnip is installed, `mlp()` and linear models have the engine `"gpukeras"`:
#' [gpu_dataset()], [gpu_mlp()] and [gpu_fit()] behind `fit()`, `predict()` and `augment()`, also in
#' workflows. If the package recipes is installed, [gpu_dataset()] takes a recipe, which prepares
#' training rows and new rows in the same way. gpukeras needs neither package for anything else.
#'
#' @section The engine:
#' The arguments `hidden_units` (several numbers make several layers), `penalty`, `dropout`,
#' `epochs`, `activation` and `learn_rate` of `mlp()` are `units`, `penalty`, `dropout`, `epochs`,
#' `activation` and `learning_rate` of [gpu_mlp()] and [gpu_fit()], with their defaults. In
#' addition, `set_engine("gpukeras")` takes:
#'
#' * of [gpu_dataset()]: `batch_size`, `shuffle`, `cache`, `validation` (a share), `encode`,
#'   `hash_bins`, `new_levels`, `text`, `inputs`, `scale`, `na`, `drop_last`, `class_weight`;
#' * of [gpu_mlp()]: `batch_norm`, `optimizer`, `family`, `seed` (which also seeds the dataset);
#' * of [gpu_fit()]: `schedule`, `clip_norm`, `clip_value`, `clip_global_norm`, `ema`,
#'   `early_stopping`, `checkpoint`, `tensorboard`, `track`, `monitor`, `devices`,
#'   `rate_scaling`, `on_oom`, `callbacks`, `on_epoch_end`, `verbose` (off by default), and
#'   `fit_engine`, which is the `engine` of [gpu_fit()], because `set_engine()` has its own
#'   argument `engine`. `fit_engine` is `"repeatable"` by default, not `"auto"`, so that
#'   `set.seed()` makes a training repeatable.
#'
#' Linear models have the engine too, as models without hidden layers: `linear_reg()` with the
#' squared error, and those of families of [gpu_family()]: `logistic_reg()` (`"binomial"`),
#' `multinom_reg()` (`"multinomial"`), `ordinal_reg()` (`"ordinal"`), `poisson_reg()` (`"poisson"`),
#' `proportional_hazards()` (`"cox"`) and `survival_reg()` (`"discrete_time"`). Their
#' `set_engine()` also takes `epochs`, `learning_rate` and `units`, which makes hidden layers:
#' `proportional_hazards() |> set_engine("gpukeras", units = c(32, 16))` is a network whose hazards
#' are proportional. Without hidden layers a higher rate than that of Keras is useful, such as 0.05.
#' `penalty` is that of [gpu_mlp()] on the weights, not divided as glmnet does. [gpu_summary()] of
#' `extract_fit_engine()` shows the coefficients. `dist` of `survival_reg()` and `ordinal_link` of
#' `ordinal_reg()` are refused: `family = gpu_family("ordinal", link = "probit")` sets a link.
#'
#' The mode `"quantile regression"` of `mlp()` and `linear_reg()` is the family `"quantile"`, whose
#' quantiles do not cross: the lowest is linear, each further one is the one before plus a positive
#' number. The mode `"censored regression"` takes right-censored `survival::Surv()`, and parsnip
#' needs the package prodlim for it. The risk sets of `"cox"` are those of a batch, so that its
#' `batch_size` should be large.
#'
#' Use [gpu_setup()] for settings of the whole session, such as precision. `activation` needs
#' parsnip 1.2.0: earlier versions only accept the activations of their own engines. Curves need
#' parsnip 1.1.0, and an older parsnip may lack a model or a mode.
#'
#' Formulas are those of [gpu_dataset()], with interactions and `offset()`: factors, texts, dates
#' and times are encoded and numbers standardised. Missing values are an error unless `na` says
#' otherwise. Case weights are row weights in the loss. Several outcomes are several outputs.
#' parsnip refuses sparse matrices for this engine; [gpu_dataset()] takes them.
#'
#' Types of prediction are, besides `"raw"`:
#'
#' * for regression `"numeric"` (one column per outcome), and `"pred_int"` for a family with a
#'   spread, such as `"poisson"` or `gpu_family("gaussian", dispersion = "constant")`: quantiles of
#'   the predicted distribution, without the coefficients' own uncertainty;
#' * for classification `"class"` and `"prob"`;
#' * for quantile regression `"quantile"`;
#' * for censored regression `"time"` (the mean survival time, see [gpu_predict()]), `"survival"`,
#'   and of `"cox"` `"linear_pred"`, which rises with the time as in the package censored, and is 0
#'   for a row of means.
#'
#' `tune::tune_grid()` trains one model after another; [gpu_tune()] trains those of all resamples
#' and settings together.
#'
#' `extract_fit_engine()` returns a `gpu_mlp_fit`, which gpukeras functions accept as a model; its
#' element `history` is the [gpu_history]. It also holds the trained model as a `.keras` archive:
#' after `saveRDS()` and `readRDS()`, in another session or on a worker, the model is loaded on
#' first use. The archive is made after each training and takes as much memory as a file of
#' [gpu_save()]. It does not change, so [gpu_fit()], [gpu_prune()] and [gpu_calibrate()], which
#' change a model in place, refuse it: [gpu_save()] and [gpu_load()] make a model for them.
#'
#' @section Recipes:
#' `gpu_dataset(recipe, data = )` preps the recipe on the training rows (without the `validation`
#' share, if given) and bakes them. Columns with the role `predictor` become features, columns with
#' the role `outcome` become labels (several are several outputs), and a `case_weights` column
#' becomes the weights. Numbers are standardised after the steps, unless `scale = FALSE`.
#'
#' [gpu_fit()] attaches the prepped recipe to the model: [gpu_predict()] and [gpu_evaluate()] take
#' unprocessed rows and apply the steps. As in recipes, steps with `skip = TRUE` apply to training
#' rows only, not to rows for validation or prediction. If a step transforms the label, predictions
#' are on the transformed scale. A step without it that moves or leaves out rows, such as
#' `step_arrange()`, is an error where rows are predicted, and so are `weights` as a vector beside a
#' step that moves rows.
#'
#' An already prepped recipe does not change; if it was prepped on other rows, a message says so.
#' With `recipe = ` set to a dataset or model, the rows are prepared and encoded like those of that
#' dataset or model.
#'
#' The file of [gpu_save()] does not contain the prepped recipe, because its steps could run any
#' code. Pass the [gpu_recipe()] of the trained model, which contains it, as `recipe` to functions
#' that use the loaded model; see the example. A workflow with the engine does not need this:
#' `saveRDS()` saves all of it.
#' @section Errors:
#' `gpukeras_error_data` for a recipe that cannot be prepped or applied, with the step's own error
#' as its parent, and for a model whose prepped recipe is missing. `gpukeras_error_spec` for an
#' argument of `set_engine()` that is none of the above.
#' @examplesIf rlang::is_installed("recipes") && gpukeras:::can_run_examples()
#' prices <- recipes::recipe(mpg ~ ., data = mtcars) |>
#'   recipes::step_log(disp, hp) |>
#'   recipes::step_pca(recipes::all_predictors(), num_comp = 4)
#' train <- gpu_dataset(prices, data = mtcars[1:24, ])
#' model <- gpu_mlp(train, units = c(16, 8))
#' history <- gpu_fit(model, train, epochs = 20, verbose = FALSE)
#' gpu_predict(model, mtcars[25:32, ])
#'
#' # For another session: the model, and beside it the recipe.
#' path <- tempfile(fileext = c(".keras", ".rds"))
#' gpu_save(model, path[1])
#' saveRDS(gpu_recipe(model), path[2])
#' gpu_predict(gpu_load(path[1]), mtcars[25:32, ], recipe = readRDS(path[2]))
#' @examplesIf rlang::is_installed("parsnip") && gpukeras:::can_run_examples()
#' # With parsnip:
#' spec <- parsnip::mlp(hidden_units = c(16, 8), epochs = 30) |>
#'   parsnip::set_engine("gpukeras", batch_size = 32) |>
#'   parsnip::set_mode("classification")
#' fitted <- parsnip::fit(spec, Species ~ ., data = iris)
#' predict(fitted, iris[c(1, 51, 101), ], type = "prob")
#' @name gpukeras-tidymodels
NULL

# Engine -------------------------------------------------------------------------------------------

#' @param formula,data For `gpu_mlp_fit()`, which parsnip calls, formula and data frame of
#'   [gpu_dataset()]; `cbind()` of several outcomes makes several outputs, unless `family` is given.
#'   For a recipe, a data frame.
#' @param units,activation,penalty,dropout,learning_rate,seed,family See [gpu_mlp()].
#' @param epochs,fit_engine See `epochs` and `engine` of [gpu_fit()].
#' @param verbose Whether progress is shown.
#' @rdname gpukeras-tidymodels
#' @export
gpu_mlp_fit <- function(formula, data, weights = NULL, units = 64, activation = "relu", penalty = 0,
                        dropout = 0, learning_rate = NULL, epochs = 10, fit_engine = "repeatable",
                        seed = NULL, ..., verbose = FALSE, family = NULL) {
  given <- split_arguments(list(...))
  check_data_frame(data)
  seeds <- list(seed %||% draw_seed(), seed %||% draw_seed())
  fitted <- train_engine(
    rows = rlang::list2(
      split_outcomes(formula, family), data,
      weights = weights, seed = seeds[[1]], !!!given$dataset
    ),
    model = rlang::list2(
      units = units, activation = activation, dropout = dropout, penalty = penalty,
      learning_rate = learning_rate, seed = seeds[[2]], family = family, !!!given$mlp
    ),
    fit = rlang::list2(epochs = epochs, engine = fit_engine, verbose = verbose, !!!given$fit)
  )
  label <- rlang::eval_tidy(formula[[2]], data, environment(formula))
  new_gpu_mlp_fit(fitted$model, fitted$history, if (is.factor(label)) levels(label))
}

# A trained model and its history, from arguments of formula_dataset(), gpu_mlp() and gpu_fit().
train_engine <- function(rows, model, fit) {
  data <- rlang::exec(formula_dataset, !!!rows)
  model <- inform_labels_once(rlang::exec(gpu_mlp, data, !!!model))
  list(model = model, history = rlang::exec(gpu_fit, model, data, !!!fit))
}

# Arguments of set_engine(), by the function that takes them.
engine_arguments <- list(
  dataset = c(
    "batch_size", "shuffle", "cache", "validation", "encode", "hash_bins", "new_levels", "text",
    "inputs", "scale", "na", "drop_last", "class_weight"
  ),
  mlp = c("batch_norm", "optimizer"),
  fit = c(
    "schedule", "clip_norm", "clip_value", "clip_global_norm", "ema", "early_stopping",
    "checkpoint", "tensorboard", "track", "monitor", "devices", "rate_scaling", "on_oom",
    "callbacks", "on_epoch_end"
  )
)

split_arguments <- function(given, call = caller_env()) {
  unknown <- setdiff(rlang::names2(given), unlist(engine_arguments))
  if (length(unknown) > 0) {
    abort_gpukeras(
      if (nzchar(unknown[1])) {
        sprintf("The engine \"gpukeras\" has no argument `%s`.", unknown[1])
      } else {
        "An argument of the engine \"gpukeras\" has no name."
      },
      code = "spec", arg = unknown[1], call = call,
      hint = paste(
        "?`gpukeras-tidymodels` lists them; what holds for the session, such as precision, is set",
        "by gpu_setup()."
      )
    )
  }
  lapply(engine_arguments, function(names) given[intersect(names(given), names)])
}

# Several outcomes, for which parsnip writes cbind(), become several outputs, each in its own unit.
split_outcomes <- function(formula, family) {
  if (is.null(family) && rlang::is_call(formula[[2]], "cbind")) {
    formula[[2]][[1]] <- quote(list)
  }
  formula
}

# A trained model that can be serialized: `state$model` is the model or NULL, `archive` the bytes of
# its .keras file, `formula` the user's own functions in its formula.
new_gpu_mlp_fit <- function(model, history, levels) {
  path <- tempfile(fileext = ".keras")
  on.exit(unlink(path))
  gpu_save(model, path, verbose = FALSE)
  new_result(
    list(
      history = history, levels = levels, archive = readBin(path, "raw", file.size(path)),
      formula = formula_record(gpu_recipe(model)$formula), state = rlang::env(model = model)
    ),
    "gpu_mlp_fit"
  )
}

# The model; from another session it is loaded from its archive, once.
model_of_fit <- function(fit, call = caller_env()) {
  if (is_dead(fit$state$model)) {
    path <- tempfile(fileext = ".keras")
    on.exit(unlink(path))
    writeBin(fit$archive, path)
    own <- fit$formula
    if (!is.null(own)) remember_formula(own$text, own$functions)
    fit$state$model <- call_core("load_archive", list(path = path, arg = "model"), call)$model
  }
  fit$state$model
}

#' @export
format.gpu_mlp_fit <- function(x, ...) {
  c(
    sprintf(
      "<gpu_mlp_fit> %s, kept in %s",
      if (length(x$levels) > 0) sprintf("%d classes", length(x$levels)) else "numbers",
      format_bytes(length(x$archive))
    ),
    format(x$history)
  )
}

# Registration -------------------------------------------------------------------------------------

# Registers the engine when parsnip is loaded, before or after gpukeras. Loads nothing itself.
register_tidymodels <- function() {
  setHook(packageEvent("parsnip", "onLoad"), function(...) try_register())
  if (isNamespaceLoaded("parsnip")) try_register()
}

# A failure must not keep either package from loading.
try_register <- function(register = register_engine) {
  tryCatch(register(), error = function(condition) {
    warn_gpukeras(
      c("mlp() has no engine \"gpukeras\": parsnip refused it.", x = said_by(condition)),
      "parsnip"
    )
  })
}

# parsnip's models with the engine: their modes, what gpu_mlp_fit() gets if the user does not say
# otherwise, and the names and ranges for tuning of the arguments that they share with it. An
# argument that gpu_mlp_fit() does not have is refused by it, where parsnip would drop it.
only_penalty <- list(penalty = list("penalty", fun = "penalty"))

linear_model <- function(modes, family = NULL, arguments = only_penalty) {
  defaults <- c(list(units = integer()), if (!is.null(family)) list(family = family))
  list(modes = modes, defaults = defaults, arguments = arguments)
}

engine_models <- list(
  mlp = list(
    modes = c("regression", "classification", "quantile regression"), defaults = list(),
    arguments = list(
      hidden_units = list("units", fun = "hidden_units", range = c(8L, 256L)),
      penalty = list("penalty", fun = "penalty"),
      dropout = list("dropout", fun = "dropout"),
      epochs = list("epochs", fun = "epochs"),
      activation = list("activation", fun = "activation", values = c("relu", "elu", "tanh")),
      learn_rate = list("learning_rate", fun = "learn_rate", range = c(-4, -1))
    )
  ),
  linear_reg = linear_model(c("regression", "quantile regression")),
  logistic_reg = linear_model("classification", "binomial"),
  multinom_reg = linear_model("classification", "multinomial"),
  ordinal_reg = linear_model(
    "classification", "ordinal",
    c(only_penalty, list(ordinal_link = list("ordinal_link", fun = "ordinal_link")))
  ),
  poisson_reg = linear_model("regression", "poisson"),
  proportional_hazards = linear_model("censored regression", "cox"),
  survival_reg = linear_model(
    "censored regression", "discrete_time", list(dist = list("dist", fun = "surv_dist"))
  )
)

# What a mode has: types of prediction, and defaults beside those of the model.
engine_modes <- list(
  regression = list(types = c("numeric", "pred_int", "raw")),
  classification = list(types = c("class", "prob", "raw")),
  "quantile regression" = list(types = c("quantile", "raw"), defaults = list(
    family = quote(gpukeras::gpu_family("quantile", quantiles = quantile_levels))
  )),
  "censored regression" = list(types = c("time", "survival", "linear_pred", "raw"))
)

# Once for a loaded parsnip, which refuses some registrations the second time. `parsnip` holds its
# functions. An old one may lack a model.
register_engine <- function(parsnip = asNamespace("parsnip")) {
  for (model in intersect(names(engine_models), parsnip$get_from_env("models"))) {
    if (!"gpukeras" %in% parsnip$get_from_env(model)$engine) {
      register_model(parsnip, model, engine_models[[model]])
    }
  }
}

# An older one may lack a mode.
register_model <- function(parsnip, model, about) {
  for (mode in intersect(about$modes, parsnip$get_from_env(paste0(model, "_modes")))) {
    parsnip$set_model_engine(model, mode = mode, eng = "gpukeras")
    parsnip$set_dependency(model, eng = "gpukeras", pkg = "gpukeras", mode = mode)
    parsnip$set_fit(model, mode = mode, eng = "gpukeras", value = list(
      interface = "formula", protect = c("formula", "data", "weights"),
      func = c(pkg = "gpukeras", fun = "gpu_mlp_fit"),
      defaults = c(list(verbose = FALSE), about$defaults, engine_modes[[mode]]$defaults)
    ))
    parsnip$set_encoding(model, mode = mode, eng = "gpukeras", options = list(
      predictor_indicators = "none", compute_intercept = FALSE, remove_intercept = FALSE,
      allow_sparse_x = FALSE
    ))
    register_predictions(parsnip, model, mode)
  }
  register_arguments(parsnip, model, about$arguments)
}

register_arguments <- function(parsnip, model, arguments) {
  for (name in names(arguments)) {
    parsnip$set_model_arg(
      model, eng = "gpukeras", parsnip = name, original = arguments[[name]][[1]],
      func = c(pkg = "dials", arguments[[name]][-1]), has_submodel = FALSE
    )
  }
}

register_predictions <- function(parsnip, model, mode) {
  options <- list(pred_int = quote(level), survival = quote(eval_time))
  for (type in engine_modes[[mode]]$types) {
    args <- list(object = quote(object$fit), new_data = quote(new_data), type = type)
    option <- options[[type]]
    if (!is.null(option)) args[[as.character(option)]] <- option
    parsnip$set_pred(model, mode = mode, eng = "gpukeras", type = type, value = list(
      pre = NULL, post = if (type == "quantile") parsnip$matrix_to_quantile_pred,
      func = c(fun = "predict"), args = args
    ))
  }
}
