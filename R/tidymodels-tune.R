# gpu_tune_grid(): the loop of the package tune, whose models train together.
#
# tune asks for one model after another. Its loop runs twice: in the first run gpu_mlp_fit() only
# notes what is asked for, and ends with an error, which tune expects of models. Then all of them
# train as few programs. In the second run gpu_mlp_fit() returns them. R's random numbers are those
# of the first run again, so that all else is the same.

#' tune's `tune_grid()` with all models trained together
#'
#' Takes what `tune::tune_grid()` takes and returns what it returns, so that `collect_metrics()`,
#' `show_best()`, `select_best()`, `finalize_workflow()`, `autoplot()` and others of tune go on from
#' there. But the models of all resamples and candidates with the engine `"gpukeras"` train as
#' [gpu_fit_many()] trains them: those of one structure as one program, not one after another.
#'
#' The candidates, the resamples, the recipe and its steps, the metrics and the predictions are
#' tune's own: it prepares the rows of each resample by what that resample's analysis rows teach,
#' and with the same [set.seed()] the result is that of `tune::tune_grid()`, but for the last digits
#' of sums that are added in another order. Dropout draws other numbers. Without parameters to tune
#' it is `tune::fit_resamples()`.
#'
#' Candidates of other `hidden_units`, `activation` or `epochs` make another program, and so do
#' recipes that give other numbers of columns; `learn_rate`, `penalty` and `dropout` share one, but
#' for zeros of the last two. Compiling a program takes seconds, so a few short trainings of a
#' structure are done one after another, as by `tune::tune_grid()`, or by `workers`.
#'
#' The preprocessing runs twice: once to know what is to be trained, and once for the predictions.
#' The encoded rows of all resamples are in memory at a time. tune's loop runs in this process:
#' workers of future or mirai are not used. `workers` trains models that do not stack, and those of
#' which there are too few, in processes of their own, several at a time, as in [gpu_fit_many()].
#' Models that cannot be trained beside others, such as those with callbacks or `ema`, train alone,
#' and a message says how many and why.
#'
#' @param object,... See `tune::tune_grid()`: a model with the engine `"gpukeras"` and a
#'   preprocessor, or a workflow; `resamples`, `grid`, `metrics` and others.
#' @param control See `tune::control_grid()`.
#' @param workers Processes that train models which do not stack, several at a time. `"auto"` is one
#'   for each GPU where there are several, and none elsewhere.
#' @param verbose Whether to show the progress of the training.
#' @return As of `tune::tune_grid()`.
#' @section Errors:
#' `gpukeras_error_spec` for a model of another engine, or `workers` that cannot be; tune's own
#' errors. A model that fails is among tune's notes: `tune::show_notes()`.
#' @seealso [gpukeras-tidymodels] for the engine, [gpu_tune()] for a search that leaves bad
#'   candidates behind early.
#' @examplesIf rlang::is_installed(c("tune", "yardstick")) && gpukeras:::can_run_examples()
#' spec <- parsnip::mlp(hidden_units = 8, penalty = tune::tune(), epochs = 5) |>
#'   parsnip::set_engine("gpukeras") |>
#'   parsnip::set_mode("regression")
#' found <- gpu_tune_grid(
#'   spec, mpg ~ ., rsample::vfold_cv(mtcars, v = 3), grid = data.frame(penalty = c(0.001, 0.1)),
#'   verbose = FALSE
#' )
#' tune::show_best(found, metric = "rmse")
#' @export
gpu_tune_grid <- function(object, ..., control = NULL, workers = "auto", verbose = TRUE) {
  check_engine(object)
  check_workers(workers)
  rlang::check_installed("tune", "for `gpu_tune_grid()`.")
  list(...) # draws folds that are drawn in the call before the seed of both runs is kept
  control <- control %||% tune::control_grid()
  control$allow_par <- FALSE # what gpu_mlp_fit() notes lies in this process
  run_together(function(quiet) {
    if (quiet) control$verbose <- TRUE # tune shows no bar then, and its messages are held back
    tune::tune_grid(object, ..., control = control)
  }, verbose, workers)
}

check_engine <- function(object, call = caller_env()) {
  if (inherits(object, "workflow")) object <- parsnip::extract_spec_parsnip(object)
  if (!inherits(object, "model_spec")) {
    abort_spec(object, "object", "a model of parsnip, or a workflow with one", call)
  }
  if (!identical(object$engine, "gpukeras")) {
    abort_gpukeras(
      if (is.null(object$engine)) {
        "`object` has no engine."
      } else {
        sprintf("`object` has the engine %s.", encode_value(object$engine))
      },
      code = "spec", hint = "Only models of set_engine(\"gpukeras\") train together.",
      arg = "object", call = call
    )
  }
}

# Before tune prepares any rows: the core checks it where it trains no model.
check_workers <- function(workers, call = caller_env()) {
  core_together(list(), workers, NULL, call)
}

# Runs a loop that asks for models, trains them, and runs it again. `run` takes whether it is quiet.
run_together <- function(run, verbose, workers = "auto",
                         listener = progress_listener(verbose, call), call = caller_env()) {
  force(listener)
  the$together <- rlang::env(recording = TRUE, asked = list(), rows = list(), alone = character())
  on.exit(the$together <- NULL)
  if (!exists(".Random.seed", globalenv(), inherits = FALSE)) draw_seed()
  keep_seed({ # both runs draw the same, and an error or an interrupt leaves no trace
    suppressWarnings(suppressMessages(run(TRUE)))
    train_asked(the$together, workers, listener, call)
  })
  found <- run(FALSE)
  if (verbose) tell_alone(the$together$alone)
  found
}

# What gpu_mlp_fit() asks, with the arguments of a dataset, a model and its training. In the first
# run an error ends it; in the second the trained model is returned, or NULL if it trains alone.
ask_together <- function(rows, model, fit) {
  together <- the$together
  kept <- if (is.null(rows$validation)) setdiff(names(rows), "seed") else names(rows)
  data <- rlang::hash(list(deparse(rows[[1]]), rows[[2]], rows[setdiff(kept, "")]))
  model_key <- replace(model, "family", list(as_family(model$family)))
  key <- rlang::hash(list(data, rows$seed, model_key, fit))
  if (together$recording) {
    if (is.null(together$asked[[key]])) {
      together$asked[[key]] <- tryCatch(
        note_asked(together, data, rows, model, fit),
        error = function(condition) list(failed = TRUE) # it fails again, for tune to tell
      )
    }
    rlang::abort("It is not trained yet.", class = "gpukeras_asked")
  }
  found <- together$asked[[key]]
  if (is.null(found$history)) {
    why <- found$refused %||% if (is.null(found)) "the first run did not ask for them"
    together$alone <- c(together$alone, why)
    return(NULL)
  }
  list(model = found$model, history = warn_stopped(found$history))
}

# A model to be trained with others, with its rows and options, or why it cannot be.
note_asked <- function(together, key, rows, model, fit) {
  refused <- refuse_together(fit)
  if (!is.null(refused)) {
    return(list(refused = refused))
  }
  data <- together$rows[[key]] %||% rlang::exec(formula_dataset, !!!rows)
  together$rows[[key]] <- data
  options <- list(
    epochs = fit$epochs, schedule = as_options(fit$schedule),
    early_stopping = as_options(fit$early_stopping)
  )
  list(
    model = inform_labels_once(rlang::exec(gpu_mlp, data, !!!model)), data = data$handle,
    seed = rows$seed,
    options = check_no_na_options(options)
  )
}

refuse_together <- function(fit) {
  own <- setdiff(names(fit), c("epochs", "engine", "verbose", "schedule", "early_stopping"))
  if (length(own) > 0) {
    return(sprintf("`%s` is for one training at a time", own[1]))
  }
  if (!fit$engine %in% c("graph_loop", "compiled", "auto", "repeatable")) {
    sprintf("`fit_engine` is %s", encode_value(fit$engine))
  }
}

# Trains all that was asked for, and remembers histories, or why a model was left alone.
train_asked <- function(together, workers, listener, call) {
  together$recording <- FALSE
  together$rows <- list()
  asked <- Filter(function(one) !is.null(one$model), together$asked)
  if (length(asked) == 0) {
    return(invisible())
  }
  trained <- suspendInterrupts(core_together(asked, workers, listener, call))
  for (place in seq_along(asked)) {
    one <- trained[[place]]
    key <- names(asked)[place]
    if (identical(one$report$stopped, "interrupted")) rlang::interrupt()
    together$asked[[key]]$data <- NULL
    together$asked[[key]]$refused <- one$refused
    if (!is.null(one$report)) together$asked[[key]]$history <- new_gpu_history(one$report)
  }
}

core_together <- function(asked, workers, listener, call) {
  each <- function(name) unname(lapply(asked, `[[`, name))
  args <- list(
    models = each("model"), datasets = each("data"), seeds = each("seed"),
    options = each("options"), workers = workers, on_event = listener
  )
  check_no_na_options(args, call)
  call_core("fit_together", args, call)
}

tell_alone <- function(alone) {
  if (length(alone) > 0) {
    inform_gpukeras(i = sprintf(
      "%s had to be trained alone: %s.", count_of(length(alone), "models"),
      paste(unique(sub("[.]$", "", alone)), collapse = "; ")
    ))
  }
}
