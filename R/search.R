# gpu_tune(): searches settings of models.

#' Search settings of a model
#'
#' Tries combinations of settings, called trials: learning rates, layer sizes, optimizers, anything
#' that a function of yours takes to build a model. Each trial is measured on rows that its model
#' was not trained on. Trials that do badly after few epochs are left behind (successive halving),
#' so that most of the time goes to the good ones.
#'
#' @section Trials:
#' Settings are drawn as a Latin hypercube (McKay et al. 1979): with 20 trials, each twentieth of a
#' range is tried once. `design = "random"` draws them independently. `grid` gives all trials as
#' rows of a data frame.
#'
#' The builder is called with the settings of a trial and must return a compiled model. A setting
#' called `batch_size` sets the batch size of the training, too, and the builder need not take it.
#' R's and Keras' random generators are seeded for each call, so that a trial has the same initial
#' weights whenever it is built. A trial whose builder or training fails, or whose loss is not
#' finite, counts as failed: the result tells of it, and the search goes on.
#'
#' @section Successive halving:
#' All trials train `min_epochs`; the best of them, one in `eta`, train `eta` times as many; and so
#' on up to `epochs`. The rule is that of ASHA (Li et al. 2020): a trial goes on as soon as it is
#' among the best of those that have come so far. When no new trial is left, the best one goes on
#' alone, so that the search ends with a trial of all `epochs`. `min_epochs = epochs` trains each
#' trial to the end. The best result may be one of fewer epochs: `epochs` of the result says so.
#'
#' @section Models at a time:
#' Models of all trials and resamples that have one structure train together, as by
#' [gpu_fit_many()], and so do those that go on to more epochs. Settings that change shapes, such as
#' units, make other structures: then the resamples of a trial train together. Trials for which that
#' is no gain or not possible train one after another; `$together` says how many, and why. The
#' results are the same but for the last digits. `most = 1` trains one model after another.
#'
#' `workers` trains trials that do not stack in processes of their own, several models at a time, as
#' in [gpu_fit_many()]. The builder runs in this session, and each model crosses as a file; models
#' with functions or classes of your own train one after another. If a worker dies, its trial counts
#' as failed, and another worker takes its place. Workers on GPUs were never run.
#'
#' @section Resamples:
#' Without `resamples`, trials are measured on the validation rows of `data`. A number makes so many
#' folds, of which each holds out as many rows of each class as others, or one more: labels that are
#' levels, logical, or whole numbers of at most five values are classes. With `group`, whole groups
#' are held out; with `time`, each fold trains on rows before those that it holds out. Splits of the
#' package rsample are taken as they are. Rows encoded by [gpu_dataset()] stay so: means, standard
#' deviations and levels of features come from all its training rows, not from those of each fold.
#' What is learned from labels is learned from the rows that train, as by [gpu_fit_many()].
#'
#' @section Folders:
#' With `folder`, each result is written to plain JSON files as soon as it is known, and the same
#' call goes on where an earlier one ended: interrupted, out of time, or killed. Nothing that was
#' finished is trained again, and what was being trained goes on from its last epoch, or from one of
#' the last 20 seconds where models train together. More `trials`
#' or `seconds` continue a search; other settings, rows, resamples or another builder are refused.
#'
#' @param data A [gpu_dataset()] with labels, or `list(x, y)`; rows of functions and pipelines,
#'   which have no numbers, cannot be resampled.
#' @param builder A function of the settings that returns a compiled Keras model, such as
#'   `function(units, rate) gpu_mlp(train, units = units, learning_rate = rate)`.
#' @param ... Settings by the names of the builder's arguments: [tune_range()], [tune_values()],
#'   parameters of the package dials, one by one or as a `dials::parameters()` object without a
#'   name, or a plain value, which is the same for all trials.
#' @param grid A data frame whose rows are the trials, instead of settings that vary in `...`.
#' @param trials Number of trials to draw; `NULL` is 20.
#' @param seconds Time after which the search ends, also within a training; `NULL` for none.
#' @param epochs,min_epochs Epochs of the trials that go furthest, and of all trials.
#' @param eta Of so many trials one goes on, to so many times the epochs.
#' @param resamples `NULL`, a number of folds, a list of the row numbers that each fold holds out, a
#'   list of `list(train = , validation = )`, or splits of the package rsample.
#' @param group One value for each row, such as `frame$patient`: rows of one group are never on both
#'   sides of a split. Resamples that are given are refused if they split a group.
#' @param time One value for each row, such as `frame$date`: no row is trained on that is later than
#'   the rows held out.
#' @param metric The metric to compare: `"val_loss"`, or one that the model is compiled with. It is
#'   always that of the rows held out, so `"accuracy"` means `"val_accuracy"`.
#' @param maximize Whether larger values are better; `NULL` decides by the name: accuracies and
#'   their like are maximized, losses and errors minimized, other names refused.
#' @param design `"latin"` or `"random"`.
#' @param fit Options of the trainings, as in [gpu_fit()]: a list of `engine`, `clip_norm`,
#'   `clip_value`, `clip_global_norm` or `on_oom`.
#' @param folder Where to keep the search: a folder, or a list of `folder` and `grace_s` (seconds
#'   from a queue's signal to its kill); `NULL` for nowhere. With `grace_s`, a save of the trials
#'   that train together is measured before they do; if it takes too long, none of them is trained.
#' @param seed Seed of settings, folds and models; drawn from R's generator by default, or that of
#'   the folder. If you give it, engines are chosen without measuring, so that the search repeats.
#' @param most Models that train at a time; `"auto"` are as many as memory allows, where that is
#'   faster.
#' @param workers Processes that train trials which do not stack, several models at a time. `"auto"`
#'   is the workers of a plan of future, if you have set one (see [gpu_fit_many()]), else one for
#'   each GPU where there are several.
#' @param verbose Whether to print a line for each result; at a terminal, a bar with the last one
#'   and the time left.
#' @return A `gpu_tuning` with `$best` (`$settings`, `$epochs`, `$value`, `$std_err` over the
#'   resamples, `$trial`; `NULL` if no trial succeeded), `$metric`, `$stopped` (`"completed"`,
#'   `"time"` or `"interrupted"`) and others; with `print()`, `plot()` and `ggplot2::autoplot()`
#'   (parallel coordinates) and `as.data.frame()` (the trace: a row a trial and number of epochs).
#'   `summary()` adds `$trials` to what is printed: the best result of each trial, the best first.
#'   An interrupt ends the search and returns what is known. With `folder`, a signal of a queue ends
#'   it saved, as in the section Queues of [gpu_fit()].
#' @references Li, L., Jamieson, K., Rostamizadeh, A., Gonina, E., Ben-tzur, J., Hardt, M., Recht,
#'   B. and Talwalkar, A. (2020). A system for massively parallel hyperparameter tuning. *MLSys*.
#'
#'   McKay, M. D., Beckman, R. J. and Conover, W. J. (1979). A comparison of three methods for
#'   selecting values of input variables in the analysis of output from a computer code.
#'   *Technometrics*, 21(2). \doi{10.2307/1268522}
#' @section Errors:
#' `gpukeras_error_spec` for settings, resamples or a metric that cannot be, before anything trains;
#' `gpukeras_error_checkpoint` for a folder of another search; `gpukeras_error_preempted` if the
#' process is asked to end; the builder's own error if no trial has a model. If a folder takes no
#' more, as on a full disk, the search goes on, with `gpukeras_warning_checkpoint` at the end and
#' the first reason in `$unsaved`.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8)
#' build <- function(rate) gpu_mlp(train, units = 8, learning_rate = rate)
#' found <- gpu_tune(
#'   train, build,
#'   rate = tune_range(1e-3, 1e-1, log = TRUE),
#'   trials = 4, epochs = 4, eta = 4, resamples = 2, verbose = FALSE
#' )
#' found
#' model <- do.call(build, found$best$settings)
#' history <- gpu_fit(model, train, epochs = found$best$epochs, verbose = FALSE)
#' @order 1
#' @export
gpu_tune <- function(data, builder, ..., grid = NULL, trials = NULL, seconds = NULL, epochs = 27,
                     min_epochs = 1, eta = 3, resamples = NULL, group = NULL, time = NULL,
                     metric = "val_loss", maximize = NULL, design = "latin", fit = list(),
                     folder = NULL, seed = NULL, most = "auto", workers = "auto", verbose = TRUE) {
  data <- as_training(data)
  settings <- as_settings(list(...), rlang::current_env())
  check_builder(builder, settings, grid)
  check_flag(verbose)
  check_options(fit, "fit", "a list of options by their names")
  options <- list(
    trials = trials, seconds = seconds, epochs = epochs, min_epochs = min_epochs, eta = eta,
    metric = metric, maximize = maximize, design = design, folder = expand_folder(folder),
    seed = seed, most = most, workers = as_workers(workers)
  )
  new_gpu_tuning(ending_preempted(suspendInterrupts(call_core("search", list(
    data = data$handle, build = builder_caller(builder), options = check_no_na_options(options),
    settings = settings, grid = as_grid(grid, rlang::current_env()),
    resamples = as_resamples(resamples, data), groups = as_group_codes(group),
    times = as_times(time), fit = check_no_na_options(fit), builder = deparse_builder(builder),
    new_seed = draw_seed(), on_event = trial_listener(verbose)
  )))), builder, c(names(settings), names(grid)))
}

# Refuses settings that the builder does not take, and arguments that it would lack.
check_builder <- function(builder, settings, grid, call = caller_env()) {
  check_given(builder, "builder", call)
  if (!is.function(builder) || inherits(builder, "python.builtin.object")) {
    abort_spec(builder, "builder", "a function of the settings that returns a model", call)
  }
  takes <- formals(args(builder))
  given <- c(names(settings), names(grid))
  unknown <- setdiff(given, c(names(takes), "batch_size"))
  if (length(unknown) > 0 && !"..." %in% names(takes)) {
    abort_gpukeras(
      sprintf("`builder` has no argument `%s`.", unknown[1]),
      code = "spec", hint = sprintf("It has %s.", shorten(names(takes), 8)), arg = unknown[1],
      call = call
    )
  }
  check_defaults(takes, settings, names(grid), call)
}

check_defaults <- function(takes, settings, columns, call) {
  always <- c(names(Filter(function(setting) length(setting$when) == 0, settings)), columns)
  needed <- setdiff(names(takes)[vapply(takes, rlang::is_missing, NA)], c("...", always))
  if (length(needed) > 0) {
    sometimes <- needed[1] %in% names(settings)
    abort_gpukeras(
      if (sometimes) {
        sprintf("`%s` does not always apply, and `builder` has no default for it.", needed[1])
      } else {
        sprintf("`builder` needs `%s`, which is no setting.", needed[1])
      },
      code = "spec", hint = "Give the argument a default, or a value in `...`.",
      arg = needed[1], call = call
    )
  }
}

# The function that Python calls for a trial: a model, or why there is none.
builder_caller <- function(builder) {
  home <- rlang::new_environment(list(builder = builder))
  function(settings, seed) {
    answer <- keep_condition({
      values <- taken_settings(builder, settings)
      build <- function() rlang::exec("builder", !!!values, .env = home)
      list(model = with_seed(seed, inform_labels_once(build())))
    })
    if (isTRUE(answer$failed)) answer$message <- said_by(the$condition)
    answer
  }
}

# The settings that a builder takes: `batch_size` may be the training's alone.
taken_settings <- function(builder, settings) {
  takes <- names(formals(args(builder)))
  if ("..." %in% takes) settings else settings[names(settings) %in% takes]
}

# Evaluates code with R's generator seeded, and leaves the generator as it was.
with_seed <- function(seed, code) {
  keep_seed({
    set.seed(seed)
    code
  })
}

# Evaluates code, and leaves R's generator as it was, however the code ends.
keep_seed <- function(code) {
  home <- globalenv()
  before <- get0(".Random.seed", home, inherits = FALSE)
  on.exit(if (is.null(before)) {
    suppressWarnings(rm(".Random.seed", envir = home))
  } else {
    assign(".Random.seed", before, envir = home)
  })
  code
}

# A builder as text, without comments and spaces, by which a folder's search is recognised.
deparse_builder <- function(builder) {
  gsub("\\s+", " ", paste(deparse(utils::removeSource(builder)), collapse = " "))
}

trial_listener <- function(verbose, call = caller_env()) {
  show <- if (!verbose) identity else if (can_draw()) trial_bar(call) else show_trial
  interruptible(show)
}

# It counts epochs: those of trials that go on, too.
trial_bar <- function(frame) {
  new_bar(frame, function(event) {
    list(verb = "", total = event$steps, done = event$step, status = format_trial(event))
  })
}

show_trial <- function(event) cat_lines(format_trial(event))

format_trial <- function(event) {
  value <- if (nzchar(event$error)) {
    paste("failed:", event$error)
  } else {
    sprintf(
      "%s: %s  best: %s", event$metric, format_number(event$value), format_number(event$best)
    )
  }
  counts <- sprintf("trial %d/%d", event$trial, event$trials)
  show_controls(paste(counts, count_of(event$epochs, "epochs"), value, sep = "  "))
}

# The result ---------------------------------------------------------------------------------------

new_gpu_tuning <- function(record, builder, names) {
  record$names <- names
  record$resamples <- as_chr(record$resamples)
  record$rungs <- as.integer(unlist(record$rungs))
  if (!is.null(record$best)) {
    settings <- record$best$settings
    record$best$settings <- taken_settings(builder, settings)
    record$best$batch_size <- settings[["batch_size"]]
  }
  warn_unsaved_search(warn_failed(new_result(record, "gpu_tuning")))
}

warn_unsaved_search <- function(tuning) {
  if (nzchar(tuning$unsaved %||% "")) {
    told <- paste("The search was not saved to its end:", tuning$unsaved)
    kept <- "Trials that are not in the folder are trained anew by the same call."
    warn_gpukeras(c(told, i = kept), "checkpoint")
  }
  tuning
}

warn_failed <- function(tuning) {
  if (tuning$failed > 0 && tuning$failed == tuning$trials) {
    reason <- sub("^.*?: ", "", utils::tail(tuning$notes, 1), perl = TRUE)
    warn_gpukeras(sprintf("All %d trials failed: %s", tuning$trials, reason), "search")
  }
  tuning
}

#' @rdname gpu_tune
#' @param x,object A `gpu_tuning`.
#' @param row.names,optional Not used.
#' @export
as.data.frame.gpu_tuning <- function(x, row.names = NULL, optional = FALSE, ...) { # nolint
  column <- function(name, empty) {
    vapply(x$trace, function(row) as.vector(row[[name]] %||% NA, typeof(empty)), empty)
  }
  settings <- records_frame(lapply(x$trace, `[[`, "settings"), x$names)
  metrics <- as_chr(unique(unlist(lapply(x$trace, function(row) names(row$metrics)))))
  values <- lapply(rlang::set_names(metrics), function(name) {
    vapply(x$trace, function(row) as.numeric(row$metrics[[name]] %||% NA), 0)
  })
  parts <- list(
    trial = column("trial", 0L), settings, epochs = column("epochs", 0L), values,
    std_err = column("std_err", 0), seconds = column("seconds", 0), error = column("error", "")
  )
  do.call(data.frame, c(parts[lengths(parts) > 0 | nzchar(names(parts))], check.names = FALSE))
}

#' @rdname gpu_tune
#' @export
summary.gpu_tuning <- function(object, ...) {
  trace <- as.data.frame(object)
  value <- as.numeric(trace[[object$metric]] %||% rep(NA, nrow(trace)))
  places <- order(if (object$mode == "max") -value else value, na.last = NA)
  trials <- trace[places[!duplicated(trace$trial[places])], names(trace) != "error"]
  rownames(trials) <- NULL
  new_result(list(text = format(object), trials = trials), "summary.gpu_tuning")
}

#' @export
format.summary.gpu_tuning <- function(x, ...) {
  best <- utils::head(x$trials, 5)
  c(
    x$text,
    if (nrow(best) > 0) utils::capture.output(print(best, row.names = FALSE, digits = 4)),
    format_more(nrow(x$trials) - 5, "$trials")
  )
}

#' @export
format.gpu_tuning <- function(x, ...) {
  last <- tapply(vapply(x$trace, `[[`, 0L, "epochs"), vapply(x$trace, `[[`, 0L, "trial"), max)
  reached <- vapply(x$rungs, function(rung) sum(last >= rung), 0L)
  ends <- c(completed = "", time = ", ended by `seconds`", interrupted = ", interrupted")
  format_fields(
    sprintf("<gpu_tuning> %s%s", format_best(x), ends[[x$stopped]]),
    best = if (!is.null(x$best)) format_settings(x$best),
    trials = paste0(
      format_count(x$trials), if (x$failed > 0) sprintf(", %s failed", format_count(x$failed)),
      ": ", paste(sprintf("%d to %s", reached, count_of_each(x$rungs)), collapse = ", ")
    ),
    spent = sprintf(
      "%s on %s, %s", count_of(x$epochs_spent, "epochs"), format_resamples(x$resamples),
      format_time(sum(vapply(x$trace, function(row) as.numeric(row$seconds), 0)))
    ),
    together = if (nzchar(x$together)) x$together,
    folder = if (nzchar(x$folder)) {
      paste0(x$folder, if (nzchar(x$unsaved %||% "")) ", which lacks some trials")
    },
    format_notes(x$notes),
    width = 10
  )
}

count_of_each <- function(rungs) {
  c(count_of(rungs[1], "epochs"), as.character(rungs[-1]))
}

format_best <- function(x) {
  if (is.null(x$best)) {
    return("no trial has a result")
  }
  std_err <- if (!is.null(x$best$std_err)) {
    sprintf(" (standard error %s)", format_number(x$best$std_err, 2))
  }
  sprintf("%s %s%s", x$metric, format_number(x$best$value), std_err %||% "")
}

format_settings <- function(best) {
  settings <- c(best$settings, list(batch_size = best$batch_size)["batch_size" %in% names(best)])
  settings <- settings[!duplicated(names(settings))]
  shown <- sprintf("%s %s", names(settings), vapply(settings, format_choice, ""))
  sprintf(
    "trial %d after %s: %s", best$trial, count_of(best$epochs, "epochs"),
    paste(shown, collapse = ", ")
  )
}

format_resamples <- function(names) {
  if (identical(names, "validation")) "the validation rows" else count_of(length(names), "folds")
}
