# Epochs from a generator that R wrote, against the array path and keras3's own generator:
#   Rscript data_generator.R ROWS OUT
# Writes one JSON record of seconds to OUT. Called by bench_data.py.

here <- sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)) |>
  normalizePath() |>
  dirname()
ours <- new.env()
sys.source(file.path(here, "methods.R"), ours)

columns <- 50L
batch <- 256L
epochs <- 6L

make_data <- function(rows) {
  set.seed(1)
  x <- matrix(rnorm(rows * columns), rows)
  list(x = x, y = as.numeric(x %*% rnorm(columns)))
}

fit_rows <- function(make_dataset) {
  began <- proc.time()[["elapsed"]]
  data <- make_dataset()
  made_s <- proc.time()[["elapsed"]] - began
  model <- gpukeras::gpu_mlp(data, units = 64, seed = 1)
  fit <- gpukeras::gpu_fit(model, data, epochs = epochs, engine = "graph_loop", verbose = FALSE)
  # The second epoch may still trace the short last batch.
  list(first_s = made_s + fit$epoch_s[1], later_s = stats::median(fit$epoch_s[-(1:2)]))
}

# keras3 has no end of an epoch but `steps_per_epoch`, and its function must never end.
fit_keras3 <- function(data) {
  clock <- reticulate::import("bench_models")$EpochClock()
  make <- ours$make_generator(data, batch)
  endless <- function() {
    repeat {
      rows <- make()
      if (!is.null(rows)) {
        return(rows)
      }
    }
  }
  model <- gpukeras::gpu_mlp(
    gpukeras::gpu_dataset(data$x[1:batch, ], data$y[1:batch]), units = 64, seed = 1
  )
  keras3::fit(
    model, endless,
    steps_per_epoch = ceiling(nrow(data$x) / batch), epochs = 2L, verbose = 0L,
    callbacks = list(clock)
  )
  list(first_s = clock$epoch_s[1], later_s = clock$epoch_s[2])
}

main <- function(rows, out) {
  data <- make_data(rows)
  arrays <- function() gpukeras::gpu_dataset(data$x, data$y, batch_size = batch)
  drained <- function() {
    gpukeras::gpu_dataset(ours$make_generator(data, batch), batch_size = batch, cache = TRUE)
  }
  called <- function() gpukeras::gpu_dataset(ours$make_generator(data, batch), batch_size = batch)
  fit_rows(arrays) # imports and starts what all share
  record <- list(
    arrays = fit_rows(arrays), drained = fit_rows(drained), called = fit_rows(called)
  )
  if (requireNamespace("keras3", quietly = TRUE)) {
    record$keras3 <- fit_keras3(data)
  }
  jsonlite::write_json(record, out, auto_unbox = TRUE, digits = NA)
}

arguments <- commandArgs(trailingOnly = TRUE)
main(as.integer(arguments[1]), arguments[2])
