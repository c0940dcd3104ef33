# Recipes of the package recipes: a prepped recipe bakes rows before gpukeras encodes them. The
# prepped recipe stays in R; Python keeps its key with dataset and model, in place of a formula.
# bake() runs code, so a key finds only recipes that this session prepped or that the user gave: a
# key in a file is harmless.

#' @param x A recipe of the package recipes, prepped or not.
#' @param validation,weights,recipe,... See [gpu_dataset()]; for `gpu_mlp_fit()` the arguments of
#'   `set_engine()`.
#' @rdname gpukeras-tidymodels
#' @export
gpu_dataset.recipe <- function(x, data, ..., # nolint: object_name_linter.
                               validation = 0, weights = NULL, recipe = NULL, seed = NULL) {
  rlang::check_installed("recipes", "to prepare rows.")
  check_data_frame(data)
  if (!is.null(weights)) check_unmoved(x)
  seed <- seed %||% draw_seed()
  key <- formula_of(recipe)
  baked <- if (is_recipe_key(key)) {
    bake_trained(find_prepared(key), data, key)
  } else if (isTRUE(recipes::fully_trained(x))) {
    inform_prepped(x, data)
    bake_trained(x, data)
  } else {
    bake_parts(x, data, validation, seed, na = list(...)$na)
  }
  gpu_dataset.default(
    baked_source(baked, zones_of(recipe)), ...,
    validation = validation, weights = weights %||% baked_weights(baked), recipe = recipe,
    seed = seed
  )
}

# Prepping -----------------------------------------------------------------------------------------

# Preps on the training rows, which the core will draw with the same seed. Validation rows are baked
# as new rows, without steps that have `skip = TRUE`.
bake_parts <- function(x, data, validation, seed, na = NULL, call = caller_env()) {
  parts <- draw_parts(nrow(data), validation, seed, call)
  train <- parts[[1]]
  prepared <- prep_rows(x, data[train, , drop = FALSE], call)
  rows <- trained_rows(prepared)
  prepared$template <- prepared$template[0, ] # the rows are not needed any more
  if (length(parts[[2]]) == 0) {
    return(list(prepared = prepared, rows = rows))
  }
  if (nrow(rows) != length(train)) {
    abort_share("A step of the recipe changes which rows there are", call)
  }
  kept <- bake_rows(prepared, data[parts[[2]], , drop = FALSE], "data", call)
  rows <- rbind(rows, kept[names(rows)])[order(unlist(parts)), ] # each in its place again
  if (identical(na, "drop") && anyNA(rows)) {
    abort_share("`na = \"drop\"` leaves out rows after the recipe's steps", call)
  }
  list(prepared = prepared, rows = rows)
}

# The core would draw other training rows than those that the recipe was prepped on.
abort_share <- function(why, call) {
  abort_gpukeras(
    paste0(why, ": `validation` cannot be a share."),
    code = "data", arg = "validation", call = call,
    hint = "Keep rows apart first, and give them to gpu_fit(validation = )."
  )
}

# Row numbers, from 1, for training and for validation. The core refuses an invalid share later.
draw_parts <- function(rows, validation, seed, call) {
  shared <- is_between(validation, 0, 1) && validation > 0 && validation < 1
  if (!shared || !is_between(seed, 0, .Machine$integer.max) || rows == 0) {
    return(list(seq_len(rows), integer()))
  }
  drawn <- call_core("split_rows", list(
    rows = rows, validation = validation, seed = as.integer(seed)
  ), call)
  lapply(drawn, function(part) as.integer(part) + 1L)
}

is_between <- function(x, low, high) {
  rlang::is_bare_numeric(x, n = 1) && isTRUE(x >= low) && x <= high
}

prep_rows <- function(x, training, call) {
  try_recipe(
    recipes::prep(x, training = training, fresh = TRUE, retain = TRUE, verbose = FALSE),
    "The recipe cannot be prepped on `data`.", call
  )
}

# The training rows as prep() left them: with all steps.
trained_rows <- function(prepared) recipes::bake(prepared, new_data = NULL)

# Reports what a recipe that was prepped before does not do.
inform_prepped <- function(prepared, data) {
  learned <- prepared$tr_info$nrows
  skipped <- Filter(function(step) isTRUE(step$skip), prepared$steps)
  said <- c(
    if (!identical(as.integer(learned), nrow(data))) {
      sprintf("The recipe was prepped on %s; `data` has %d.", count_of(learned, "rows"), nrow(data))
    },
    if (length(skipped) > 0) {
      sprintf(
        "Steps that `skip` new rows are not applied: %s.",
        paste(vapply(skipped, step_name, ""), collapse = ", ")
      )
    }
  )
  if (length(said) > 0) {
    inform_gpukeras(
      i = paste(said, collapse = " "), i = "Give the recipe as it was before prep()."
    )
  }
}

# Steps of recipes and themis after which as many rows may be others.
moving_steps <- c(
  "arrange", "sample", "slice", "upsample", "downsample", "smote", "smotenc", "bsmote", "adasyn",
  "rose", "nearmiss", "tomek"
)

# Weights that are no column stay where they are when a step moves rows.
check_unmoved <- function(x, call = caller_env()) {
  moved <- intersect(vapply(x$steps, step_name, ""), moving_steps)
  if (length(moved) > 0) {
    abort_gpukeras(
      sprintf("The recipe's step `%s` moves rows, and `weights` are no column of them.", moved[1]),
      code = "data", hint = "Make them a column of `data`, by hardhat::importance_weights().",
      arg = "weights", call = call
    )
  }
}

step_name <- function(step) sub("^(step|check)_", "", class(step)[1])

# Baking -------------------------------------------------------------------------------------------

bake_trained <- function(prepared, data, key = NULL, call = caller_env()) {
  list(prepared = prepared, rows = bake_rows(prepared, data, "data", call), key = key)
}

bake_rows <- function(prepared, data, arg, call = caller_env()) {
  check_baked(prepared, data, "predictor", arg, "the recipe was prepped with", call)
  try_recipe(
    recipes::bake(prepared, new_data = data),
    sprintf("The recipe cannot be applied to `%s`.", arg), call
  )
}

# Bakes rows whose predictions are asked for, which must be those of the same rows.
bake_in_place <- function(prepared, data, call = caller_env()) {
  mark <- ".gpukeras_row"
  seen <- rlang::env(rows = NULL)
  about <- prepared$var_info[c(seq_len(nrow(prepared$var_info)), 1L), ]
  about$variable[nrow(about)] <- mark
  prepared$var_info <- about
  last <- structure(
    list(mark = mark, seen = seen, skip = FALSE, trained = TRUE, id = mark),
    class = c("step_gpukeras_row", "step")
  )
  prepared$steps <- c(prepared$steps, list(last))
  data[[mark]] <- seq_len(nrow(data))
  rows <- bake_rows(prepared, data, "newdata", call)
  if (!is.null(seen$rows) && !identical(seen$rows, seq_len(nrow(data)))) {
    abort_gpukeras(
      "A step of the recipe moves or leaves out rows of `newdata`: predictions are one a row.",
      code = "data", hint = "Give such a step `skip = TRUE`, and arrange or filter rows before.",
      arg = "newdata", call = call
    )
  }
  rows
}

# Sees which rows are left after all steps.
#' @exportS3Method recipes::bake
bake.step_gpukeras_row <- function(object, new_data, ...) { # nolint: object_name_linter.
  object$seen$rows <- new_data[[object$mark]]
  new_data[[object$mark]] <- NULL # recipes from 1.1.0 on refuses columns that prep() did not see
  new_data
}

check_baked <- function(prepared, data, role, arg, what, call) {
  info <- prepared$var_info
  lacking <- setdiff(info$variable[info$role %in% role], names(data))
  if (length(lacking) > 0) {
    abort_gpukeras(
      sprintf("`%s` lacks the column `%s` that %s.", arg, lacking[1], what),
      code = "data", arg = arg, column = lacking[1], call = call
    )
  }
}

# Raises a step's error as the parent of ours.
try_recipe <- function(code, problem, call) {
  rlang::try_fetch(code, error = function(condition) {
    abort_gpukeras(problem, code = "data", arg = "data", parent = condition, call = call)
  })
}

# Columns of a role after all steps.
columns_of <- function(prepared, role, rows) {
  info <- prepared$term_info
  intersect(info$variable[info$role %in% role], names(rows))
}

# The result of bake_*() as a source of gpu_dataset(); a recipe without a key gets one.
baked_source <- function(baked, zones, call = caller_env()) {
  labels <- baked_labels(baked$prepared, baked$rows)
  new_source(
    as_features(baked_predictors(baked$prepared, baked$rows), "data", call, zones),
    if (!is.null(labels)) as_labels(labels, "y", call),
    scale = TRUE, formula = baked$key %||% store_prepared(baked$prepared), arg = "data"
  )
}

baked_predictors <- function(prepared, rows) {
  as.data.frame(rows[columns_of(prepared, "predictor", rows)])
}

# One outcome is the label; several are labels of several outputs.
baked_labels <- function(prepared, rows) {
  outcomes <- as.list(rows[columns_of(prepared, "outcome", rows)])
  if (length(outcomes) > 1) outcomes else if (length(outcomes) == 1) outcomes[[1]]
}

baked_weights <- function(baked) {
  column <- columns_of(baked$prepared, "case_weights", baked$rows)
  if (length(column) > 0) as.numeric(baked$rows[[column[1]]])
}

# Keys ---------------------------------------------------------------------------------------------

# Stores a prepped recipe for the session under a unique key. Equal recipes get different keys,
# because a step may depend on values in its environment.
store_prepared <- function(prepared) {
  steps <- paste(vapply(prepared$steps, step_name, ""), collapse = ", ")
  key <- sprintf("recipe %s: %s", rlang::hash(list(tempfile(), Sys.time())), steps)
  the$prepared[[key]] <- prepared
  key
}

is_recipe_key <- function(formula) grepl("^recipe [0-9a-f]{32}: ", formula %||% "")

# The prepped recipe of a key.
find_prepared <- function(key, call = caller_env()) {
  the$prepared[[key]] %||% abort_gpukeras(
    "The model's rows were prepared by a recipe of the package recipes, which is not here.",
    code = "data", arg = "recipe", call = call,
    hint = paste(
      "A model's file has none, as its steps could run any code: save gpu_recipe(model) by",
      "saveRDS() where it was trained, and give it as `recipe`."
    )
  )
}

# The key or formula of a dataset, a model or a gpu_recipe.
formula_of <- function(recipe, call = caller_env()) {
  if (inherits(recipe, "gpu_recipe")) {
    remember_prepared(recipe)
  } else if (!is.null(recipe) && !inherits(recipe, "gpu_dataset")) {
    model <- as_recipe_source(recipe, call)
    recipe <- call_core("recipe", list(model = model), call)
  }
  recipe$formula %||% ""
}

# Stores the prepped recipe of a gpu_recipe that the user has read from a file.
remember_prepared <- function(recipe) {
  if (is_recipe_key(recipe$formula) && inherits(recipe$prepared, "recipe")) {
    the$prepared[[recipe$formula]] <- recipe$prepared
  }
}

# The prepped recipe as an element of a gpu_recipe.
prepared_record <- function(recipe) {
  if (is_recipe_key(recipe$formula)) list(prepared = the$prepared[[recipe$formula]])
}

format_formula <- function(formula) {
  if (!is_recipe_key(formula)) {
    return(paste("formula: ", show_formula(formula)))
  }
  steps <- sub("^[^:]*: ", "", formula)
  paste("prepared: by a recipe", if (nzchar(steps)) paste("of", steps) else "without steps")
}

# New rows -----------------------------------------------------------------------------------------

# Refuses rows that were not baked, for an encoding that was learned after baking.
check_prepared <- function(recipe, source, call = caller_env()) {
  baked <- is_recipe_key(source$formula)
  if (!is.null(recipe) && !baked && is_recipe_key(formula_of(recipe, call))) {
    abort_unprepared(source$arg, "Use gpu_dataset(recipe, data = ), with that recipe.", call)
  }
  recipe
}

check_preparable <- function(data, recipe, call) {
  if (is_recipe_key(recipe$formula) && !is.data.frame(data)) {
    abort_unprepared("data", "Give a data frame.", call)
  }
  data
}

abort_unprepared <- function(arg, hint, call) {
  abort_gpukeras(
    "Rows for this model are prepared by a recipe of the package recipes first.",
    code = "data", hint = hint, arg = arg, call = call
  )
}

# Features and labels of new rows, by the formula or prepped recipe of the training. `weights` is a
# function, as rows that have weights of their own need no column of weights. `y` has labels in the
# place of the formula's: values, or the name of their column.
split_new_rows <- function(formula, data, call = caller_env(), y = NULL) {
  parts <- if (!is_recipe_key(formula)) read_formula(formula, call)
  if (!is.null(y)) check_plain_labels(parts, call)
  if (!is.null(parts)) {
    weights <- function() take_row_weights(parts, data, call)
    if (rlang::is_string(y)) {
      check_column(y, data, "y", call)
      parts$label <- as.name(y)
    } else if (!is.null(y)) {
      return(list(x = take_features(parts, data, call), y = y, label = "y", weights = weights))
    }
    return(c(split_parts(parts, data, call), weights = weights))
  }
  prepared <- find_prepared(formula, call)
  check_baked(prepared, data, "outcome", "data", "holds the labels", call)
  rows <- bake_rows(prepared, data, "data", call)
  weights <- function() baked_weights(list(prepared = prepared, rows = rows))
  list(x = baked_predictors(prepared, rows), y = baked_labels(prepared, rows), weights = weights)
}

# Labels that training computed cannot be given as they are: nobody knows whether `y` is computed.
check_plain_labels <- function(parts, call) {
  if (is.null(parts) || !all(vapply(parts$labels, is.name, NA))) {
    abort_gpukeras(
      "`y` is not taken: labels are computed from `data`, as in training.",
      code = "spec", hint = "Change the columns of `data` that they are computed from.", arg = "y",
      call = call
    )
  }
}

# Features alone.
select_features <- function(formula, data, call = caller_env()) {
  if (!is_recipe_key(formula)) {
    return(take_features(read_formula(formula, call), data, call))
  }
  prepared <- find_prepared(formula, call)
  baked_predictors(prepared, bake_in_place(prepared, data, call))
}
