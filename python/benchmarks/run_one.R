# One method on one case, in a process of its own:  Rscript run_one.R JOB.json RESULT.json
# A job has `method`, `measure` ("time" or "memory"), `rows`, `columns`, `batch` and `epochs`.

here <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)) |>
  normalizePath() |>
  dirname()
ours <- new.env()
sys.source(file.path(here, "methods.R"), ours)

# Labels that can be learned, so that equal losses show equal training.
make_data <- function(rows, columns, classes = 10) {
  set.seed(1)
  x <- rnorm(rows * columns)
  dim(x) <- c(rows, columns)
  scores <- x %*% matrix(rnorm(columns * classes), columns)
  list(x = x, y = as.array(max.col(scores, "first") - 1L)) # without a dim it crosses as a list
}

measure_time <- function(fit, job) {
  data <- make_data(job$rows, job$columns)
  model <- ours$the_models()$dense(list(job$columns))
  gc()
  began <- proc.time()[["elapsed"]]
  result <- fit(model, data, job$batch, job$epochs)
  c(list(total_s = proc.time()[["elapsed"]] - began), result)
}

# Bytes by which the process grows at most, once TensorFlow, XLA's compiler and their threads and
# arenas are there: a fit on a few batches brings them in.
measure_memory <- function(fit, job) {
  warm_up(job)
  data <- make_data(job$rows, job$columns)
  model <- ours$the_models()$dense(list(job$columns))
  gc()
  known <- reset_peak()
  before <- memory_bytes("VmRSS")
  result <- fit(model, data, job$batch, job$epochs)
  extra <- if (known) memory_bytes("VmHWM") - before else NA
  c(list(extra_bytes = extra, matrix_bytes = 8 * length(data$x)), result)
}

# The chosen engine may be any of the three, and a few batches are too few to try them.
warm_up <- function(job) {
  every <- paste0("engine_", c("keras", "superstep", "compiled"))
  data <- make_data(20L * job$batch, job$columns)
  for (name in if (job$method == "auto") every else job$method) {
    ours$methods[[name]]$fit(ours$the_models()$dense(list(job$columns)), data, job$batch, 2L)
  }
}

# Linux alone tells; elsewhere the peak is not determined.
memory_bytes <- function(field) {
  if (!file.exists("/proc/self/status")) {
    return(NA)
  }
  line <- grep(paste0("^", field, ":"), readLines("/proc/self/status"), value = TRUE)
  1024 * as.numeric(gsub("\\D", "", line))
}

reset_peak <- function() {
  quiet <- function(condition) FALSE
  tryCatch(
    {
      cat("5", file = "/proc/self/clear_refs")
      TRUE
    },
    error = quiet, warning = quiet
  )
}

main <- function(job_file, result_file) {
  job <- jsonlite::read_json(job_file)
  fit <- ours$methods[[job$method]]$fit
  result <- if (job$measure == "memory") measure_memory(fit, job) else measure_time(fit, job)
  jsonlite::write_json(result, result_file, auto_unbox = TRUE, digits = NA)
}

do.call(main, as.list(commandArgs(trailingOnly = TRUE)))
