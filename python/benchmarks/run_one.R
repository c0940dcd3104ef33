# One run in a process of its own:  Rscript run_one.R JOB.json RESULT.json
# plan.R makes the jobs; `measure` says which of the functions here does one.

here <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)) |>
  normalizePath() |>
  dirname()
ours <- new.env()
sys.source(file.path(here, "methods.R"), ours)

# Rows of any shape with labels that can be learned, so that equal losses show equal training.
make_data <- function(rows, shape, classes = 10) {
  set.seed(1)
  shape <- as.integer(unlist(shape))
  x <- rnorm(rows * prod(shape))
  dim(x) <- c(rows, prod(shape))
  scores <- x %*% matrix(rnorm(prod(shape) * classes), prod(shape))
  dim(x) <- c(rows, shape)
  list(x = x, y = as.array(max.col(scores, "first") - 1L)) # without a dim it crosses as a list
}

some_steps <- 32L

make_model <- function(job) ours$the_models()[[job$model]](job$shape)

seconds_of <- function(f) {
  began <- proc.time()[["elapsed"]]
  f()
  proc.time()[["elapsed"]] - began
}

# Training ----------------------------------------------------------------------------------------

measure_time <- function(job) {
  method <- ours$methods[[job$method]]
  data <- make_data(job$rows, job$shape)
  if (!is.null(method$prepare)) data <- method$prepare(data)
  make <- function() make_model(job)
  found <- if (isTRUE(method$expert)) ours$search_steps(make, data, job$batch)
  model <- make()
  if (!is.null(found)) ours$set_steps(model, found$steps)
  gc()
  result <- NULL
  total_s <- seconds_of(function() result <<- method$fit(model, data, job$batch, job$epochs))
  c(list(total_s = total_s), found, result)
}

# Memory ------------------------------------------------------------------------------------------

# Bytes by which the process grows at most, once TensorFlow, XLA's compiler and their threads and
# arenas are there: a fit on a few batches brings them in. A search of `steps_per_execution` would
# bring in all memory before, so some number of steps stands for the best one.
measure_memory <- function(job) {
  warm_up(job)
  data <- make_data(job$rows, job$shape)
  method <- ours$methods[[job$method]]
  model <- make_model(job)
  if (isTRUE(method$expert)) ours$set_steps(model, some_steps)
  gc()
  known <- reset_peak()
  before <- memory_bytes("VmRSS")
  result <- method$fit(model, data, job$batch, job$epochs)
  extra <- if (known) memory_bytes("VmHWM") - before else NA
  c(list(extra_bytes = extra, data_bytes = 8 * length(data$x)), result)
}

# The chosen engine may be any of the three, and a few batches are too few to try them.
warm_up <- function(job) {
  every <- paste0("engine_", c("keras", "graph_loop", "compiled"))
  data <- make_data(20L * job$batch, job$shape)
  for (name in if (job$method == "auto") every else job$method) {
    ours$methods[[name]]$fit(make_model(job), data, job$batch, 2L)
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

# The first step ----------------------------------------------------------------------------------

# Seconds from the call until the model's weights were updated once: in a session that has imported
# TensorFlow and made data and model, and in the same one for other models later.
measure_start <- function(job) {
  data <- make_data(job$rows, job$shape)
  found <- vapply(1:4, function(i) time_first_step(job, data), 0)
  list(first_s = found[1], later_s = stats::median(found[-1]))
}

time_first_step <- function(job, data) {
  model <- make_model(job)
  if (job$method == "auto") data <- ours$open_array(data, job$batch)
  clock <- ours$the_models()$FirstStep(model)
  if (job$method == "auto") {
    gpukeras::gpu_fit(model, data, epochs = job$epochs, verbose = FALSE)
  } else {
    ours$methods[[job$method]]$fit(model, data, job$batch, job$epochs)
  }
  clock$seconds()
}

# Prediction --------------------------------------------------------------------------------------

# Median seconds for all rows: gpukeras, Keras at its default (some rows, scaled), and at others.
measure_predict <- function(job) {
  data <- make_data(job$rows, job$shape)
  model <- make_model(job)
  part <- list(x = data$x[1:1000, ], y = as.array(data$y[1:1000]))
  gpukeras::gpu_fit(model, ours$open_array(part, 100L), epochs = 1, verbose = FALSE)
  ways <- predict_ways(job, model, data$x)
  for (way in ways) way()
  rounds <- lapply(seq_len(job$reps), function(i) vapply(ways, seconds_of, 0))
  medians <- apply(do.call(rbind, rounds), 2, stats::median)
  medians[["default"]] <- medians[["default"]] * job$rows / job$default_rows
  list(predict_s = as.list(medians))
}

predict_ways <- function(job, model, x) {
  some <- x[seq_len(job$default_rows), ]
  sized <- lapply(job$batches, function(size) {
    function() model$predict(x, batch_size = size, verbose = 0L)
  })
  names(sized) <- format(unlist(job$batches), scientific = FALSE, trim = TRUE)
  c(
    list(
      gpukeras = function() gpukeras::gpu_predict(model, x),
      default = function() model$predict(some, verbose = 0L)
    ), sized
  )
}

# As a user does, before Python starts: only then does XLA find the programs of earlier sessions.
attach_gpukeras <- function(job) {
  label <- ours$methods[[job$method]]$label
  if (is.null(label) || startsWith(label, "gpukeras")) library(gpukeras)
}

main <- function(job_file, result_file) {
  job <- jsonlite::read_json(job_file)
  attach_gpukeras(job)
  measures <- list(
    time = measure_time, memory = measure_memory, start = measure_start, predict = measure_predict
  )
  result <- measures[[job$measure]](job)
  jsonlite::write_json(result, result_file, auto_unbox = TRUE, digits = NA)
}

do.call(main, as.list(commandArgs(trailingOnly = TRUE)))
