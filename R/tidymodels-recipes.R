# Recipes of the package recipes: rows are prepared by a prepped one before gpukeras encodes them.
# The prepped recipe is R's; what Python keeps with dataset and model, in place of a formula, is its
# mark. A mark in a file is harmless: bake() runs code, so only recipes that this session prepped,
# or that the user gives, are looked up by it.

#' @param x A recipe of the package recipes, prepped or not. For `gpu_mlp_fit()`, which is what
#'   parsnip calls, a data frame of predictors.
#' @param data Its rows: a data frame.
#' @param validation,weights,recipe,... See [gpu_dataset()]; for `gpu_mlp_fit()` the arguments of
#'   `set_engine()`.
#' @rdname gpukeras-tidymodels
#' @export
gpu_dataset.recipe <- function(x, data, ..., # nolint: object_name_linter.
                               validation = 0, weights = NULL, recipe = NULL, seed = NULL) {
  rlang::check_installed("recipes", "to prepare rows.")
  check_data_frame(data)
  seed <- seed %||% draw_seed()
  mark <- formula_with(recipe)
  baked <- if (is_mark(mark)) {
    bake_trained(find_prepared(mark), data, mark)
  } else if (isTRUE(recipes::fully_trained(x))) {
    tell_trained(x, data)
    bake_trained(x, data)
  } else {
    bake_parts(x, data, validation, seed, na = list(...)$na)
  }
  gpu_dataset.default(
    baked_source(baked), ...,
    validation = validation, weights = weights %||% baked_weights(baked), recipe = recipe,
    seed = seed
  )
}

# Prepping -----------------------------------------------------------------------------------------

# Steps learn from the training rows: those that the core will draw with this seed. Rows that are
# validated on are baked as new rows are, without the steps that `skip` them.
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

# The core would draw other rows than those that the steps learned from.
abort_share <- function(why, call) {
  abort_gpukeras(
    paste0(why, ": `validation` cannot be a share."),
    code = "data", arg = "validation", call = call,
    hint = "Keep rows apart first, and give them to gpu_fit(validation = )."
  )
}

# Row numbers, from 1, for training and for validation. What is no share, the core refuses later.
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

# A prepped recipe stays as it is, also where that is not what its owner may think.
tell_trained <- function(prepared, data) {
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

step_name <- function(step) sub("^(step|check)_", "", class(step)[1])

# Baking -------------------------------------------------------------------------------------------

bake_trained <- function(prepared, data, mark = NULL, call = caller_env()) {
  list(prepared = prepared, rows = bake_rows(prepared, data, "data", call), mark = mark)
}

bake_rows <- function(prepared, data, arg, call = caller_env()) {
  check_baked(prepared, data, "predictor", arg, "the recipe was prepped with", call)
  try_recipe(
    recipes::bake(prepared, new_data = data),
    sprintf("The recipe cannot be applied to `%s`.", arg), call
  )
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

# What a step says stays there, as the parent of the error.
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

# What bake_*() gave, as gpu_dataset() takes it; a recipe without a mark gets one.
baked_source <- function(baked, call = caller_env()) {
  labels <- baked_labels(baked$prepared, baked$rows)
  new_source(
    as_features(baked_predictors(baked$prepared, baked$rows), "data", call),
    if (!is.null(labels)) as_labels(labels, "y", call),
    scale = TRUE, formula = baked$mark %||% mark_prepared(baked$prepared), arg = "data"
  )
}

baked_predictors <- function(prepared, rows) {
  as.data.frame(rows[columns_of(prepared, "predictor", rows)])
}

# One outcome is the label; several are those of several outputs.
baked_labels <- function(prepared, rows) {
  outcomes <- as.list(rows[columns_of(prepared, "outcome", rows)])
  if (length(outcomes) > 1) outcomes else if (length(outcomes) == 1) outcomes[[1]]
}

baked_weights <- function(baked) {
  column <- columns_of(baked$prepared, "case_weights", baked$rows)
  if (length(column) > 0) as.numeric(baked$rows[[column[1]]])
}

# Marks --------------------------------------------------------------------------------------------

# A prepped recipe is known by its mark as long as the session lasts. No two have the same: what a
# step does may depend on values that only its environment has.
mark_prepared <- function(prepared) {
  steps <- paste(vapply(prepared$steps, step_name, ""), collapse = ", ")
  mark <- sprintf("recipe %s: %s", rlang::hash(list(tempfile(), Sys.time())), steps)
  the$prepared[[mark]] <- prepared
  mark
}

is_mark <- function(formula) grepl("^recipe [0-9a-f]{32}: ", formula %||% "")

# The prepped recipe that a recipe of gpukeras is marked with.
find_prepared <- function(mark, call = caller_env()) {
  the$prepared[[mark]] %||% abort_gpukeras(
    "The model's rows were prepared by a recipe of the package recipes, which is not here.",
    code = "data", arg = "recipe", call = call,
    hint = paste(
      "A model's file has none, as its steps could run any code: save gpu_recipe(model) by",
      "saveRDS() where it was trained, and give it as `recipe`."
    )
  )
}

# The mark, or another formula, that comes with a dataset, a model or a gpu_recipe.
formula_with <- function(recipe, call = caller_env()) {
  if (inherits(recipe, "gpu_recipe")) {
    remember_prepared(recipe)
  } else if (!is.null(recipe) && !inherits(recipe, "gpu_dataset")) {
    model <- as_recipe_source(recipe, call)
    recipe <- call_core("recipe", list(model = model), call)
  }
  recipe$formula %||% ""
}

# One that came with a gpu_recipe, out of a file that the user has read, is known from now on.
remember_prepared <- function(recipe) {
  if (is_mark(recipe$formula) && inherits(recipe$prepared, "recipe")) {
    the$prepared[[recipe$formula]] <- recipe$prepared
  }
}

# The prepped recipe as a gpu_recipe holds it.
hold_prepared <- function(recipe) {
  if (is_mark(recipe$formula)) list(prepared = the$prepared[[recipe$formula]])
}

format_formula <- function(formula) {
  if (!is_mark(formula)) {
    return(paste("formula: ", formula_text(formula)))
  }
  steps <- sub("^[^:]*: ", "", formula)
  paste("prepared: by a recipe", if (nzchar(steps)) paste("of", steps) else "without steps")
}

# New rows -----------------------------------------------------------------------------------------

# Rows whose encoding came after a recipe's steps are no use without them.
check_prepared <- function(recipe, source, call = caller_env()) {
  if (!is.null(recipe) && !is_mark(source$formula) && is_mark(formula_with(recipe, call))) {
    abort_unprepared(source$arg, "Use gpu_dataset(recipe, data = ), with that recipe.", call)
  }
  recipe
}

check_preparable <- function(data, recipe, call) {
  if (is_mark(recipe$formula) && !is.data.frame(data)) {
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

# Features and labels of new rows, by what training had: a formula, or a prepped recipe.
split_new_rows <- function(formula, data, call = caller_env()) {
  if (!is_mark(formula)) {
    return(split_parts(read_formula(formula, call), data, call))
  }
  prepared <- find_prepared(formula, call)
  check_baked(prepared, data, "outcome", "data", "holds the labels", call)
  rows <- bake_rows(prepared, data, "data", call)
  list(x = baked_predictors(prepared, rows), y = baked_labels(prepared, rows))
}

# Features alone.
select_features <- function(formula, data, call = caller_env()) {
  if (!is_mark(formula)) {
    return(take_features(read_formula(formula, call), data, call))
  }
  prepared <- find_prepared(formula, call)
  baked_predictors(prepared, bake_rows(prepared, data, "newdata", call))
}
