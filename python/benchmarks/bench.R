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
source(file.path(here, "methods.R"))
source(file.path(here, "tables.R"))

cases <- list(
  dense_small = list(rows = 100000L, columns = 20L, batch = 32L, total = 8, warm = 20),
  dense_wide = list(rows = 200000L, columns = 200L, batch = 256L, total = 3, warm = 6)
)
engines <- c("keras", "superstep", "compiled", "auto")
limit_s <- 900 # a run that takes longer hangs

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
  installed <- names(Filter(function(method) length(missing_packages(method)) == 0, methods))
  jobs <- c(
    unlist(lapply(names(cases), plan_memory, installed, options), recursive = FALSE),
    unlist(lapply(seq_len(options$reps), plan_repetition, installed, options), recursive = FALSE)
  )
  Filter(function(job) grepl(options$only, paste0(job$case, "/", job$method)), jobs)
}

plan_repetition <- function(repetition, installed, options) {
  again <- Filter(function(name) repetition == 1 || is.null(methods[[name]]$once), installed)
  jobs <- unlist(lapply(names(cases), plan_time, again, options), recursive = FALSE)
  # The engines' differences are seen in fewer runs than those to Keras.
  if (repetition <= ceiling(options$reps / 2)) {
    jobs <- c(jobs, plan_engines(options, repetition))
  }
  lapply(jobs, c, repetition = repetition)
}

plan_time <- function(case, installed, options) {
  lapply(installed, plan_run, case = case, measure = "time", epochs = options$epochs, options)
}

# The peak is reached in the first two epochs, and does not vary.
plan_memory <- function(case, installed, options) {
  lapply(installed, plan_run, case = case, measure = "memory", epochs = 2L, options)
}

plan_run <- function(method, case, measure, epochs, options) {
  size <- cases[[case]]
  list(
    case = case, method = method, measure = measure, rows = as.integer(size$rows * options$share),
    columns = size$columns, batch = size$batch, epochs = epochs
  )
}

plan_engines <- function(options, repetition) {
  grid <- expand.grid(method = engines, case = other_models, stringsAsFactors = FALSE)
  slow <- grid$case == "cnn" & grid$method == "compiled" # XLA's convolutions on a CPU
  grid <- grid[repetition == 1 | !slow, ]
  Map(function(case, method) {
    few <- case == "cnn" && method == "compiled" || options$quick
    list(
      case = case, method = method, measure = "engine", share = options$share,
      epochs = if (few) 3L else 5L
    )
  }, grid$case, grid$method, USE.NAMES = FALSE)
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
    message("  failed: ", why)
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
  system2(program, shQuote(arguments), stdout = FALSE, stderr = log, timeout = limit_s) |>
    suppressWarnings()
}

main <- function() {
  options <- read_options()
  Sys.setenv(
    KERAS_BACKEND = "tensorflow", TF_CPP_MIN_LOG_LEVEL = "2",
    PYTHONPATH = system.file("python", package = "gpukeras", mustWork = TRUE)
  )
  jobs <- plan_jobs(options)
  runs <- Map(run_job, jobs, seq_along(jobs), length(jobs))
  if (!is.null(options$json)) {
    jsonlite::write_json(runs, options$json, auto_unbox = TRUE, digits = NA, pretty = TRUE)
  }
  print_tables(runs, options)
}

main()
