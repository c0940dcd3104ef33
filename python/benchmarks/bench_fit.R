# Measures training, prediction and what is around them against Keras from R:  make bench-fit
#   Rscript python/benchmarks/bench_fit.R [--quick] [--reps N] [--only REGEX] [--json PATH]
# --quick: small data and one repetition, to see that everything runs. --only: runs whose name,
# such as dense_small/auto, cnn/engine_compiled, predict/all or fits/new, matches; a ratio needs
# both of its sides. --json: writes every run's raw record.
#
# Each record has the load of the computer before and after, and the cores that others took: where
# they took some, promises are not judged.
#
# Each run has a process of its own, so that memory and TensorFlow's state do not mix, and
# repetitions go round all methods, so that a slow minute of the computer hits all alike.

here <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)) |>
  normalizePath() |>
  dirname()

load_file <- function(name) {
  loaded <- new.env()
  sys.source(file.path(here, name), loaded, chdir = TRUE)
  loaded
}

plan <- load_file("plan.R")
tables <- load_file("tables.R")
promises <- load_file("promises.R")
busy <- load_file("load.R")
most_s <- 900 # a run that takes longer hangs; methods.R knows of one that does

run_job <- function(job, index, count) {
  message(sprintf("[%d/%d] %s/%s, %s", index, count, job$case, job$method, job$measure))
  files <- tempfile(c("job", "result", "log"))
  on.exit(unlink(files))
  before <- busy$read_moment()
  limit_s <- plan$or_else(plan$ours$methods[[job$method]]$most_s, most_s)
  run <- if (job$measure == "fits") run_fits else run_r
  Sys.setenv(KERAS_BACKEND = plan$ours$backend_of(job$method))
  status <- run(job, files, limit_s)
  after <- busy$read_moment()
  job$load <- busy$compare_moments(before, after)
  if (status != 0 || !file.exists(files[2])) {
    hangs <- status == 124
    log <- readLines(files[3], warn = FALSE)
    why <- if (hangs) sprintf("hangs (stopped after %g s)", limit_s) else find_reason(log, status)
    message(sprintf("  failed with status %d: %s", status, why))
    return(c(job, list(error = why)))
  }
  took <- list(process_s = after$time - before$time)
  c(job, took, jsonlite::read_json(files[2], simplifyVector = TRUE))
}

# The last error that a run's log tells of, or its end; R puts a traceback after it.
find_reason <- function(lines, status) {
  lines <- grep("\\S", lines, value = TRUE)
  if (length(lines) == 0) {
    return(sprintf("ended with status %g and said nothing", status))
  }
  errors <- grep("Error", lines)
  from <- if (length(errors) > 0) max(errors) else length(lines) - 2
  paste(utils::head(lines[seq_along(lines) >= from], 3), collapse = " | ")
}

run_r <- function(job, files, limit_s) {
  jsonlite::write_json(job, files[1], auto_unbox = TRUE)
  rscript <- file.path(R.home("bin"), "Rscript")
  run_child(rscript, c(file.path(here, "run_one.R"), files[1:2]), files[3], limit_s)
}

# A program without R, which prints MiB by number of fits.
run_fits <- function(job, files, limit_s) {
  python <- Sys.getenv("RETICULATE_PYTHON", "python3")
  program <- file.path(here, "fit_memory.py")
  printed <- tempfile()
  on.exit(unlink(printed))
  arguments <- c(program, job$fits, job$method, job$engine)
  # R's own folders there may hold a libpython of another Python.
  status <- run_child(python, arguments, files[3], limit_s, printed, env = "LD_LIBRARY_PATH=")
  if (status == 0) {
    found <- jsonlite::fromJSON(utils::tail(readLines(printed), 1))
    jsonlite::write_json(list(mib = found), files[2], auto_unbox = TRUE, digits = NA)
  }
  status
}

# The status is 124 where time ran out.
run_child <- function(program, arguments, log, limit_s, printed = FALSE, env = character()) {
  system2(
    program, shQuote(arguments),
    stdout = printed, stderr = log, timeout = limit_s, env = env
  ) |>
    suppressWarnings()
}

set_environment <- function() {
  core <- system.file("python", package = "gpukeras", mustWork = TRUE)
  # As any session after the installation's first finds it, and as pip leaves Keras.
  system2(Sys.getenv("RETICULATE_PYTHON", "python3"), c("-m", "compileall", "-q", shQuote(core)))
  Sys.setenv(
    TF_CPP_MIN_LOG_LEVEL = "2", PYTHONDONTWRITEBYTECODE = "1",
    # Empty at first, so that first sessions are first, and the user's own stays as it is.
    GPUKERAS_XLA_CACHE = tempfile("gpukeras-xla-"),
    PYTHONPATH = paste(here, core, file.path(here, "..", "tests"), sep = .Platform$path.sep)
  )
}

main <- function() {
  options <- plan$read_options()
  options(width = 200)
  set_environment()
  began <- proc.time()[["elapsed"]]
  refused <- busy$refuse_all(busy$read_load())
  if (nzchar(refused)) message("No promise will be judged: ", refused, ".")
  jobs <- plan$plan_jobs(options)
  runs <- Map(run_job, jobs, seq_along(jobs), length(jobs))
  if (!is.null(options$json)) {
    jsonlite::write_json(runs, options$json, auto_unbox = TRUE, digits = NA, pretty = TRUE)
  }
  tables$print_tables(runs, options)
  promises$print_promises(runs, options$quick, refused)
  cat(sprintf("\n%.0f s in all.\n", proc.time()[["elapsed"]] - began))
}

main()
