# Measures gpukeras against Keras from R:  make bench
#   Rscript python/benchmarks/bench.R [--quick] [--reps N] [--only REGEX] [--json PATH]
# --quick: small data and one repetition, to see that everything runs. --only: runs whose name,
# such as dense_small/auto or cnn/compiled, matches. --json: writes every run's raw record.
#
# Each run has a process of its own, so that memory and TensorFlow's state do not mix, and
# repetitions go round all methods, so that a slow minute of the computer hits all alike.

here <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)) |>
  normalizePath() |>
  dirname()

load_file <- function(name) {
  loaded <- new.env()
  sys.source(file.path(here, name), loaded)
  loaded
}

ours <- load_file("methods.R")
tables <- load_file("tables.R")
methods <- ours$methods

# What is promised for each case: how many times faster than Keras from R.
cases <- list(
  dense_small = list(rows = 100000L, columns = 20L, batch = 32L, total = 8, warm = 20),
  dense_wide = list(rows = 200000L, columns = 200L, batch = 256L, total = 3, warm = 6)
)
# Models of bench_models.py, which are trained without R.
models <- c("batchnorm", "lstm", "cnn")
engines <- c("keras", "superstep", "compiled", "auto")
most_s <- 900 # a run that takes longer hangs

# Plan --------------------------------------------------------------------------------------------

read_options <- function(arguments = commandArgs(trailingOnly = TRUE)) {
  value <- function(flag, default) {
    at <- match(flag, arguments)
    if (is.na(at)) default else arguments[at + 1]
  }
  quick <- "--quick" %in% arguments
  list(
    quick = quick, share = if (quick) 0.25 else 1, epochs = if (quick) 4L else 10L,
    reps = as.integer(value("--reps", if (quick) 1L else 3L)),
    only = value("--only", ""), json = value("--json", NULL)
  )
}

# Every run, in order: repetitions outermost.
plan_jobs <- function(options) {
  installed <- names(Filter(function(method) length(ours$missing_packages(method)) == 0, methods))
  rounds <- lapply(seq_len(options$reps), plan_round, installed, options)
  jobs <- c(plan_memory(installed, options), unlist(rounds, recursive = FALSE))
  Filter(function(job) grepl(options$only, paste0(job$case, "/", job$method)), jobs)
}

# The peak is reached in the first two epochs, and hardly varies: one run each. Only what is left to
# train decides which engines "auto" tries, so it gets all epochs.
plan_memory <- function(installed, options) {
  names <- if (options$quick) "keras" else setdiff(installed, "auto")
  c(
    plan_cases(names, "memory", epochs = 2L, options),
    plan_cases("auto", "memory", epochs = options$epochs, options)
  )
}

plan_round <- function(round, installed, options) {
  again <- Filter(function(name) round == 1 || is.null(methods[[name]]$once), installed)
  jobs <- plan_cases(again, "time", epochs = options$epochs, options)
  # Fewer runs tell the engines apart than are needed for the ratios to Keras.
  c(jobs, if (round <= ceiling(options$reps / 2)) plan_engines(round, options))
}

plan_cases <- function(names, measure, epochs, options) {
  grid <- expand.grid(method = names, case = names(cases), stringsAsFactors = FALSE)
  Map(function(case, method) {
    size <- cases[[case]]
    rows <- as.integer(size$rows * options$share)
    c(
      list(case = case, method = method, measure = measure, rows = rows, epochs = epochs),
      size[c("columns", "batch")]
    )
  }, grid$case, grid$method, USE.NAMES = FALSE)
}

# "auto" gets all epochs, as above. XLA's convolutions on a CPU are so slow that two must do, once.
plan_engines <- function(round, options) {
  grid <- expand.grid(method = engines, case = models, stringsAsFactors = FALSE)
  slow <- grid$case == "cnn" & grid$method == "compiled"
  grid$epochs <- ifelse(slow, 2L, ifelse(grid$method == "auto", options$epochs, 4L))
  grid <- grid[round == 1 | !slow, ]
  Map(function(case, method, epochs) {
    list(case = case, method = method, measure = "engine", share = options$share, epochs = epochs)
  }, grid$case, grid$method, grid$epochs, USE.NAMES = FALSE)
}

# Run ---------------------------------------------------------------------------------------------

run_job <- function(job, index, count) {
  message(sprintf("[%d/%d] %s/%s, %s", index, count, job$case, job$method, job$measure))
  files <- tempfile(c("job", "result", "log"))
  on.exit(unlink(files))
  status <- if (job$measure == "engine") run_python(job, files) else run_r(job, files)
  if (status != 0 || !file.exists(files[2])) {
    lines <- grep("\\S", readLines(files[3], warn = FALSE), value = TRUE)
    why <- paste(utils::tail(lines, 3), collapse = " | ")
    message(sprintf("  failed with status %d: %s", status, why))
    return(c(job, list(error = why)))
  }
  c(job, jsonlite::read_json(files[2], simplifyVector = TRUE))
}

run_r <- function(job, files) {
  jsonlite::write_json(job, files[1], auto_unbox = TRUE)
  rscript <- file.path(R.home("bin"), "Rscript")
  run_child(rscript, c(file.path(here, "run_one.R"), files[1:2]), files[3])
}

run_python <- function(job, files) {
  arguments <- c(job$case, job$method, job$share, job$epochs, files[2])
  python <- Sys.getenv("RETICULATE_PYTHON", "python3")
  run_child(python, c(file.path(here, "bench_engines.py"), arguments), files[3])
}

run_child <- function(program, arguments, log) {
  system2(program, shQuote(arguments), stdout = FALSE, stderr = log, timeout = most_s) |>
    suppressWarnings()
}

set_environment <- function() {
  core <- system.file("python", package = "gpukeras", mustWork = TRUE)
  Sys.setenv(
    KERAS_BACKEND = "tensorflow", TF_CPP_MIN_LOG_LEVEL = "2", PYTHONDONTWRITEBYTECODE = "1",
    PYTHONPATH = paste(here, core, sep = .Platform$path.sep)
  )
}

main <- function() {
  options <- read_options()
  options(width = 200)
  set_environment()
  jobs <- plan_jobs(options)
  runs <- Map(run_job, jobs, seq_along(jobs), length(jobs))
  if (!is.null(options$json)) {
    jsonlite::write_json(runs, options$json, auto_unbox = TRUE, digits = NA, pretty = TRUE)
  }
  plan <- list(cases = cases, models = models, engines = engines, methods = methods)
  absent <- lapply(methods, ours$missing_packages)
  tables$print_tables(runs, c(options, plan, list(absent = absent)))
}

main()
