# Which runs `make bench-fit` does, in which order.

ours <- new.env()
sys.source("methods.R", ours)
measured <- new.env()
sys.source("cases.R", measured)

few_epochs <- 5L

read_options <- function(arguments = commandArgs(trailingOnly = TRUE)) {
  value <- function(flag, default) {
    at <- match(flag, arguments)
    if (is.na(at)) default else arguments[at + 1]
  }
  quick <- "--quick" %in% arguments
  list(
    quick = quick, share = if (quick) 0.05 else 1,
    reps = as.integer(value("--reps", if (quick) 1L else 2L)),
    only = value("--only", ""), json = value("--json", NULL)
  )
}

# What is compared with: keras3 where it is installed.
choose_base <- function() {
  found <- Filter(function(name) isTRUE(ours$methods[[name]]$base), list_installed())
  found[1]
}

list_installed <- function() {
  names(Filter(function(method) length(ours$missing_packages(method)) == 0, ours$methods))
}

# Packages of R that some way needs and that are missing.
list_missing <- function() unique(unlist(lapply(ours$methods, ours$missing_packages)))

# Every run, in order: repetitions outermost.
plan_jobs <- function(options) {
  rounds <- lapply(seq_len(options$reps), plan_round, options)
  jobs <- c(unlist(rounds, recursive = FALSE), plan_memory(options), plan_once(options))
  Filter(function(job) grepl(options$only, paste0(job$case, "/", job$method)), jobs)
}

plan_round <- function(round, options) {
  names <- Filter(function(name) repeats(name, round), list_installed())
  jobs <- unlist(lapply(names(measured$cases), plan_case, names, options, round), recursive = FALSE)
  c(jobs, plan_start(options))
}

# Which of two ways to call Keras is the base decides which one is repeated.
repeats <- function(name, round) {
  method <- ours$methods[[name]]
  once <- isTRUE(method$once) || (isTRUE(method$base) && name != choose_base())
  round == 1 || !once
}

plan_case <- function(case, names, options, round) {
  wanted <- Filter(function(name) has_method(case, name, options), names)
  lapply(wanted, function(name) c(plan_fit(case, name, "time", options), round = round))
}

# --quick shows of one model that all ways run.
has_method <- function(case, name, options) {
  shown <- if (options$quick && case != "dense_small") c(choose_base(), "auto") else name
  case %in% or_else(ours$methods[[name]]$cases, names(measured$cases)) && name %in% shown
}

plan_fit <- function(case, name, measure, options, epochs = count_epochs(case, name, options)) {
  size <- measured$cases[[case]]
  share <- or_else(size$shares[[name]], or_else(ours$methods[[name]]$share, 1))
  list(
    case = case, method = name, measure = measure, model = size$model, shape = as.list(size$shape),
    rows = as.integer(size$rows * options$share * share), full_rows = size$rows * options$share,
    batch = size$batch, epochs = epochs
  )
}

# Keras needs all epochs only where the time of all is promised.
count_epochs <- function(case, name, options) {
  size <- measured$cases[[case]]
  method <- ours$methods[[name]]
  keras <- isTRUE(method$base) || isTRUE(method$expert) || name == "jax_keras"
  few <- isTRUE(method$few) || keras && is.null(size$promises$total)
  if (options$quick) 3L else if (few) min(few_epochs, size$epochs) else size$epochs
}

# The peak is reached in the first two epochs, and hardly varies: one run each. Only what is left to
# train decides which engines "auto" tries, so it gets all epochs. A part of the rows tells nothing.
plan_memory <- function(options) {
  unlist(lapply(names(Filter(function(case) isTRUE(case$memory), measured$cases)), function(case) {
    whole <- setdiff(c(choose_base(), ours$compared), names(measured$cases[[case]]$shares))
    names <- Filter(function(name) has_method(case, name, options), whole)
    lapply(names, function(name) {
      epochs <- if (name == "auto") count_epochs(case, name, options) else 2L
      plan_fit(case, name, "memory", options, epochs)
    })
  }), recursive = FALSE)
}

plan_start <- function(options) {
  size <- measured$others$start
  lapply(c(choose_base(), "auto"), function(name) {
    list(
      case = "start", method = name, measure = "start", model = size$model,
      shape = as.list(size$shape), rows = size$rows, batch = size$batch, epochs = 1L
    )
  })
}

# Within the process of the predictions the ways take turns.
plan_once <- function(options) {
  size <- measured$others$predict
  rows <- as.integer(size$rows * options$share)
  predict <- list(
    case = "predict", method = "all", measure = "predict", model = size$model,
    shape = as.list(size$shape), rows = rows, default_rows = rows * size$default_share,
    batches = as.list(unique(pmin(size$batches, rows))), reps = options$reps
  )
  c(list(predict), lapply(measured$others$fits$models, plan_fits, options))
}

plan_fits <- function(kind, options) {
  fits <- if (options$quick) 12L else measured$others$fits$fits
  list(case = "fits", method = kind, measure = "fits", engine = "auto", fits = fits)
}

or_else <- function(x, other) if (is.null(x)) other else x
