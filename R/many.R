# gpu_fit_many(): many models at once.

#' Train many models at once
#'
#' Trains a model for each combination of settings, seeds, folds and groups. Models of one structure
#' are stacked and trained by one program, so that many small models take the time of a few. Each
#' ends as [gpu_fit()] would train it alone, with its own rows, first weights, shuffles, settings
#' and early stopping.
#'
#' @section What shares a program:
#' Models whose layers have equal shapes. Their learning rate, weight decay, `beta_1`, `beta_2`,
#' `rho` and `epsilon` of the optimizer, the rates of their dropout and the L1 and L2 penalties of
#' their layers may differ. Other settings, such as the units of a layer, make another structure,
#' which has a program of its own; compiling it takes a few seconds. If memory does not suffice for
#' all models of a structure, they train in turns. `$plan$reason` says what was done, and why.
#'
#' Some models train one after another, as [gpu_fit()] trains them: those with their own
#' `train_step()`, `test_step()`, `predict_step()` or `compute_metrics()`, stateful layers, texts or
#' an optimizer that averages weights (`use_ema`), on TensorFlow with recurrent layers, gradients
#' that the optimizer accumulates, or the optimizers Nadam and ScheduleFreeAdamW, and those of a
#' kind that a stack makes slower. On a CPU these are models with convolutions, and large ones;
#' `most` as a number stacks them all the same. Where rows are not known to pass a check that XLA
#' would drop (an assertion, a lookup, codes of an embedding), models train alone, and wrong rows
#' are refused, as by [gpu_fit()]. What is faster on a GPU was never measured. On a CPU the models
#' of a program are divided among its cores.
#'
#' `workers` trains models that do not stack in processes of their own, several at a time: each on a
#' share of the CPU's cores, or on a GPU. More workers than GPUs share cards, each with a limit of
#' its memory. The rows are written to a temporary folder once, and each model crosses as a file;
#' models with functions or classes of your own stay in this process. A worker takes some seconds
#' to start. If one dies, its model counts as `"failed"`, with a warning, and the others go on.
#' Workers on GPUs were never run.
#'
#' Where you have set a plan of the package future, `workers = "auto"` are its workers, on other
#' computers too: `future::plan("cluster", workers = c("node1", "node2"))`, queues by
#' future.batchtools, daemons of mirai by future.mirai. Each needs gpukeras, and Python under the
#' same path; the folder of temporary files (`TMPDIR`, set before R starts) must be one that all of
#' them reach. That was run on one computer only.
#'
#' The rows are in memory once.
#'
#' @section What a model learns from:
#' What is learned from labels is learned from the rows that train a model: weights, the mean and
#' the standard deviation in the output layer of [gpu_mlp()] and [gpu_tabular()], the values with
#' which a [gpu_family()] starts, the ends of its intervals, and the class weights of
#' [gpu_dataset()]. Labels of held out rows change nothing but what is measured, and, with
#' `early_stopping`, the epoch that is kept. The kind of the labels, their levels, and the number of
#' intervals of `"discrete_time"` are those of all rows, and a saved dataset keeps the class weights
#' that it was saved with. A model that has trained before keeps what
#' it has learned, unless `seeds` begin anew.
#'
#' Rows are encoded once: means, standard deviations, levels and imputed values of the features were
#' learned from all training rows of `data`, also from those that a fold holds out, and so were the
#' quantiles in a [gpu_tabular()]. `tune::fit_resamples()` with the engine of [gpukeras-tidymodels]
#' learns these anew for each split. With `group`, numbers are standardised by the training rows of
#' their group, so that each model is that of [gpu_fit()] with the rows of the group; a
#' [gpu_tabular()] scales by quantiles of the group. Levels, imputed values and the bins of a
#' [gpu_tabular()] stay those of all groups. Groups that vary little beside others lose digits
#' thereby; `$notes` names them.
#'
#' @section What differs from training alone:
#' Sums are added in another order, so numbers differ in their last digits. The optimizer's averages
#' (`ema`), gradient clipping by [gpu_fit()] and callbacks are not available; clipping of the
#' optimizer itself is. Dropout draws the numbers of the engine `"compiled"`, and augmentation of
#' images other numbers.
#'
#' @param data A [gpu_dataset()] with rows in memory or in files, or a data frame if `model` is a
#'   formula. Rows in sequence (functions, `tf.data`) are refused.
#' @param model A compiled Keras model; or a function that returns one, with the columns of `grid`
#'   as its arguments, and `seed` if it has an argument of that name; or a formula, which makes a
#'   [gpu_dataset()] of `data` and a [gpu_mlp()].
#' @param ... For a formula: further arguments of [gpu_dataset()].
#' @param folds A number of folds, drawn so that each holds out as many rows of each class as the
#'   others, or one more; a list of the row numbers that each fold holds out; or an `rset` of the
#'   package rsample. `NULL` for none. `data` must not hold out validation rows itself then.
#' @param seeds A number of seeds, or the seeds. With them engines are chosen without measuring, so
#'   that the result repeats. Each gives its own first weights, dropout and order of rows; weights
#'   of frozen layers and of adapted ones stay those of `model`. A function with an argument `seed`
#'   makes weights and dropout itself, and rows are in the order of `data`. `NULL` for the first
#'   weights of `model`, and the order of `data`.
#' @param grid A data frame with a row for each setting, such as [expand.grid()] makes.
#' @param group A group for each row, as a vector or as the name of a column of a data frame: each
#'   group has a model of its own.
#' @param epochs Passes of each model over its training rows.
#' @param batch_size Rows per step of each model. `"auto"` is the `batch_size` of `data`; where that
#'   is `"auto"` too, it is chosen by the rows of the median model.
#' @param schedule,early_stopping As for [gpu_fit()]; for each model by itself. A model that has
#'   stopped changes no more.
#' @param together,time One value a row, to check and make folds by: rows with the same value of
#'   `together` are in one fold, and no row of `time` trains that is later than one held out.
#'   Without `folds`, the validation rows of `data` are checked.
#' @param most Models that train at a time. `"auto"` are as many as fit into half of the free
#'   memory, 128 at most.
#' @param workers Processes that train models which do not stack, several at a time. `"auto"` is the
#'   workers of a plan of future, if you have set one, else one for each GPU where there are
#'   several.
#' @param checkpoint A folder in which the models are kept while they train, or a list of `folder`
#'   and `grace_s` (seconds from a queue's signal to its kill); `NULL` for none. The folder is
#'   created if it is missing. The same call goes on from it after a kill or an interrupt, and
#'   trains nothing again that has ended; models that stack are saved every 20 seconds. A queue's
#'   signal ends the call saved, as in the section Queues of [gpu_fit()]; with `grace_s`, a save of
#'   the most models that train together is measured first. A folder with other
#'   trainings is refused: a function `model` must build the same models again, and
#'   [gpu_dataset()] have the same `seed`, such as after [set.seed()].
#' @param verbose Whether to show progress.
#' @return A `gpu_fits`: a table of models.
#' - `as.data.frame()` has a row for each model: its settings, seed, fold and group, the numbers of
#'   its rows, its epochs, how it ended, and its metrics after the last epoch, or after the best one
#'   with early stopping.
#' - `summary()` has a row for each setting and group: mean, standard error and rank of a metric.
#'   The mean is `NaN`, and the rank `NA`, if a model of the setting ended without a finite value;
#'   the rank is `NA` too where the metric's name does not say whether higher values are better.
#' - `fits[[3]]` is the third model, an ordinary compiled Keras model for [gpu_predict()],
#'   [gpu_save()] and [gpu_fit()]; `fits[["best"]]` the one with the best metric.
#' - `$notes` names folds and groups in which a class has no row to train or to measure on; they are
#'   printed too.
#' - `$histories` has each metric of each epoch, by model; `$predictions` the predictions for the
#'   rows that the models held out.
#' - [gpu_predict()] of all of them is the mean of their predictions, with its spread. Models
#'   without a whole epoch, such as one whose worker died, do not count, and of a `grid` only those
#'   of the setting with the best mean of `$metric`. With `group` each row is predicted by the
#'   models of its own group: by the column of that name in `newdata`, or
#'   `gpu_predict(fits, newdata, group = )`. A group that has no trained model is an error.
#' @section Errors:
#' `gpukeras_error_spec` for folds that leak, bad grids and seeds, and too short a `grace_s`;
#' `gpukeras_error_model` for models that do not fit the rows or cannot be copied;
#' `gpukeras_error_checkpoint` for a folder of other trainings: all before anything is trained.
#' `gpukeras_error_preempted` if the process is asked to end.
#' @examplesIf gpukeras:::can_run_examples()
#' cars <- gpu_dataset(mpg ~ ., data = mtcars)
#' fits <- gpu_fit_many(
#'   cars, function(rate) gpu_mlp(cars, units = 8, learning_rate = rate),
#'   folds = 4, grid = data.frame(rate = c(0.01, 0.1)), epochs = 20, verbose = FALSE
#' )
#' fits
#' summary(fits)
#' gpu_predict(fits, mtcars[1:3, ])
#' @order 1
#' @export
gpu_fit_many <- function(data, model, ..., folds = NULL, seeds = NULL, grid = NULL, group = NULL,
                         epochs = 10, batch_size = "auto", schedule = NULL, early_stopping = NULL,
                         together = NULL, time = NULL, most = "auto", workers = "auto",
                         checkpoint = NULL, verbose = TRUE) {
  given <- as_many_rows(data, model, group, ...)
  check_settings_grid(grid, given$builder)
  seeds <- as_seeds(seeds, given$builder)
  built <- build_settings(given$builder, grid, seeds)
  options <- list(
    epochs = epochs, batch_size = as_batch_size(batch_size) %||% "auto",
    schedule = as_options(schedule),
    early_stopping = as_options(early_stopping), most = most, workers = as_workers(workers),
    repeats = !is.null(seeds)
  )
  column <- if (rlang::is_string(group) && rlang::is_formula(model) && nrow(data) != 1) group
  new_gpu_fits(ending_preempted(suspendInterrupts(call_core("fit_many", list(
    models = built$models, data = given$data$handle, options = check_no_na_options(options),
    seeds = if (!built$seeded && !is.null(seeds)) as.list(seeds),
    folds = as_resamples(folds, given$data),
    groups = as_groups_of_rows(given$group), together = as_group_codes(together),
    times = as_times(time), on_event = progress_listener(verbose),
    checkpoint = check_no_na_options(list(checkpoint = expand_folder(checkpoint)))$checkpoint
  )))), built$settings, column)
}

# The dataset, the function that builds a model, and the group of each row.
as_many_rows <- function(data, model, group, ..., call = caller_env()) {
  check_given(data, "data", call)
  check_given(model, "model", call)
  if (rlang::is_formula(model)) {
    if (!is.data.frame(data)) {
      abort_spec(data, "data", "a data frame, as `model` is a formula", call)
    }
    column <- if (rlang::is_string(group) && nrow(data) != 1) group
    check_group_column(column, data, call)
    values <- if (is.null(column)) group else data[[column]]
    rows <- gpu_dataset(model, data[setdiff(names(data), column)], ...)
    return(list(data = rows, group = values, builder = function() gpu_mlp(rows)))
  }
  rlang::check_dots_empty(call = call)
  if (!inherits(data, "gpu_dataset")) abort_spec(data, "data", "a gpu_dataset()", call)
  builder <- model
  if (inherits(model, "python.builtin.object") || !is.function(model)) {
    kept <- check_model(model)
    builder <- function() kept
  }
  list(data = check_alive(data), group = group, builder = builder)
}

check_group_column <- function(column, data, call) {
  if (!is.null(column) && !column %in% names(data)) {
    abort_gpukeras(
      sprintf("`data` has no column `%s`.", column),
      code = "spec", hint = "`group` is the name of a column, or one group a row.",
      arg = "group", call = call
    )
  }
}

# What the table says of each model besides its settings, its seed and its metrics.
table_columns_of_fits <- c(
  "model", "fold", "group", "rows", "held_out", "epochs", "best_epoch", "stopped"
)

check_settings_grid <- function(grid, builder, call = caller_env()) {
  if (is.null(grid)) {
    return(invisible())
  }
  if (!is.data.frame(grid) || nrow(grid) == 0) {
    abort_spec(grid, "grid", "a data frame with a row for each setting", call)
  }
  taken <- intersect(names(grid), table_columns_of_fits)
  if (length(taken) > 0) {
    abort_gpukeras(
      sprintf("`grid` has a column `%s`, which the table of models has too.", taken[1]),
      code = "spec", hint = "Give the setting another name.", arg = "grid", call = call
    )
  }
  takes <- names(formals(builder))
  unknown <- if ("..." %in% takes) character() else setdiff(names(grid), takes)
  if (length(unknown) > 0) {
    abort_gpukeras(
      sprintf("`grid` has a column `%s`, which `model` has no argument for.", unknown[1]),
      code = "spec", hint = "Give a function of the settings that returns a compiled model.",
      arg = "grid", call = call
    )
  }
}

# Seeds by number are 1, 2, ...
as_seeds <- function(seeds, builder, call = caller_env()) {
  if (is.null(seeds)) {
    return(NULL)
  }
  seeds <- plain_number(seeds, call = call)
  whole <- is.numeric(seeds) && all(is.finite(seeds) & seeds == round(seeds) & seeds >= 0)
  if (!whole || any(seeds > .Machine$integer.max)) {
    abort_spec(seeds, "seeds", "a number of seeds, or whole numbers from 0 to 2147483647", call)
  }
  if (identical(as.double(seeds), 0)) abort_spec(seeds, "seeds", "at least one seed", call)
  if (length(seeds) == 1) seq_len(seeds) else seeds
}

# A model for each setting; for each seed too, if the function has an argument `seed`.
build_settings <- function(builder, grid, seeds, call = caller_env()) {
  settings <- if (is.null(grid)) list(list()) else rows_of(grid)
  seeded <- !is.null(seeds) && "seed" %in% names(formals(builder)) && !"seed" %in% names(grid)
  if (seeded) {
    settings <- unlist(lapply(settings, function(one) {
      lapply(seeds, function(seed) c(one, list(seed = seed)))
    }), recursive = FALSE)
  }
  models <- lapply(settings, function(one) check_model(do.call(builder, one), "model()", call))
  list(models = models, settings = settings, seeded = seeded)
}

rows_of <- function(frame) {
  lapply(seq_len(nrow(frame)), function(row) {
    lapply(frame, function(column) {
      value <- if (is.list(column)) column[[row]] else column[row]
      if (is.factor(value)) as.character(value) else value
    })
  })
}

as_groups_of_rows <- function(group, call = caller_env()) {
  if (is.null(group)) {
    return(NULL)
  }
  if (!is.atomic(group) || anyNA(group)) {
    abort_spec(group, "group", "one group a row, without missing values", call)
  }
  group <- plain_key(group, "group", call)
  found <- sort(unique(group))
  names <- name_groups(found)
  if (anyDuplicated(names) > 0) {
    abort_gpukeras(
      "`group` has different values that are the same as text, such as dates of one day.",
      code = "spec", hint = "Give the groups as text.", arg = "group", call = call
    )
  }
  list(names = as.list(names), codes = as.array(match(group, found) - 1L))
}

# The text of each group; of a number all its digits, the same whether it is an integer or not.
name_groups <- function(group) {
  texts <- as.character(group)
  if (is.double(group) && !is.object(group)) {
    whole <- which(group == round(group) & abs(group) < 2^53)
    texts[whole] <- sprintf("%.0f", group[whole])
    cut <- which(as.numeric(texts) != group)
    texts[cut] <- sprintf("%.17g", group[cut])
  }
  texts
}

# The group of each new row as text, NULL for models that have none.
as_new_groups <- function(fits, newdata, group, call) {
  if (is.null(fits$table[["group"]])) {
    if (!is.null(group)) {
      abort_gpukeras(
        "`group` is for models of gpu_fit_many(group = ).",
        code = "spec", hint = "Leave it out.", arg = "group", call = call
      )
    }
    return(NULL)
  }
  if (is.null(group) && !is.null(fits$group_column) && is.data.frame(newdata)) {
    group <- newdata[[fits$group_column]]
    if (is.null(group)) {
      abort_gpukeras(
        sprintf("`newdata` lacks the column `%s`, the group of each row.", fits$group_column),
        code = "data", hint = "Each group has a model of its own. Add it, or give `group`.",
        arg = "newdata", call = call
      )
    }
  }
  if (!is.null(group)) {
    lapply(name_groups(plain_key(group, "group", call)), function(one) if (!is.na(one)) one)
  }
}

# The numbers of the models of the best setting, in each group; NULL if there is one setting.
as_best_models <- function(fits) {
  table <- fits$table
  columns <- intersect(setdiff(fits$settings, "seed"), names(table))
  setting <- setting_of(table, columns)
  if (nlevels(setting) < 2) {
    return(NULL)
  }
  values <- metric_of(table, fits$metric)
  if (metric_direction(fits$metric) > 0) values <- -values
  groups <- split(seq_len(nrow(table)), table[["group"]] %||% rep("", nrow(table)))
  best <- lapply(groups, function(rows) {
    means <- tapply(values[rows], setting[rows], function(each) mean(counted_values(each)))
    rows[setting[rows] %in% names(means)[c(which.min(means), 1)[1]]]
  })
  as.list(sort(unlist(best, use.names = FALSE)))
}

# Predictions --------------------------------------------------------------------------------------

# The mean of all models' predictions with its spread, as a data frame; classes as a factor.
predict_fits <- function(fits, newdata, type = "response", interval = NULL, group = NULL,
                         call = caller_env()) {
  handle <- live_fits(fits, call)
  recipe <- use_recipe(fits[[1]], NULL, call)
  args <- list(
    fits = handle, type = type, interval = interval %||% 0.9,
    models = as_best_models(fits), groups = as_new_groups(fits, newdata, group, call)
  )
  if (inherits(newdata, "gpu_dataset")) {
    args$data <- check_alive(newdata, call)$handle
  } else {
    args$features <- as_new_features(newdata, recipe, call)
  }
  record <- call_core("fits_predict", args, call)
  values <- as_prediction(record, NULL)
  if (is.null(record$sd)) {
    return(values)
  }
  parts <- list(mean = values, sd = record$sd, lower = record$lower, upper = record$upper)
  parts <- lapply(parts, as.matrix)
  names <- colnames(parts$mean)
  frames <- Map(function(part, name) {
    colnames(part) <- if (ncol(part) == 1) name else paste(names %||% seq_len(ncol(part)), name)
    part
  }, parts, names(parts))
  as.data.frame(do.call(cbind, unname(frames)), optional = TRUE)
}
