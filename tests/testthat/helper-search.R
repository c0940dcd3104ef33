# What the core reports of a search.

a_trace_row <- function(trial, epochs, units, optimizer, val_loss, ..., std_err = 0.01) {
  row <- list(
    trial = trial, epochs = epochs, settings = list(units = units, optimizer = optimizer),
    metrics = list(val_loss = val_loss), std_err = std_err, seconds = 0.5, error = ""
  )
  changes <- list(...)
  row[names(changes)] <- changes
  row
}

# Trial 1 is best after one epoch of three; trial 3 fails.
a_tuning_record <- function(...) {
  record <- list(
    metric = "val_loss", mode = "min",
    best = list(
      trial = 1L, epochs = 1L, value = 0.25, std_err = 0.0123,
      settings = list(units = 8L, optimizer = "adam")
    ),
    trace = list(
      a_trace_row(1L, 1L, 8L, "adam", 0.25), a_trace_row(1L, 3L, 8L, "adam", 0.5),
      a_trace_row(2L, 1L, 32L, "sgd", 0.75),
      a_trace_row(3L, 1L, 2L, "sgd", NULL, metrics = list(), std_err = NULL, error = "too few"),
      a_trace_row(4L, 1L, 16L, "sgd", 1.25)
    ),
    settings = list(
      units = list(kind = "range", low = 2, high = 32, log = TRUE, integer = TRUE),
      optimizer = list(kind = "values", values = list("adam", "sgd"))
    ),
    trials = 4L, failed = 1L, rungs = list(1L, 3L), resamples = list("Fold1", "Fold2"),
    epochs_spent = 10L, found = 0L, stopped = "completed", seed = 1L, folder = "",
    unsaved = "",
    together = "3 trials in stacks of up to 6 models; 1 alone: it runs eagerly",
    elapsed_s = 2.5, notes = list("1 trial failed, first trial 3: too few.")
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

a_tuning <- function(...) {
  build <- function(units, optimizer) NULL
  new_gpu_tuning(a_tuning_record(...), build, c("units", "optimizer"))
}

# One that was ended before its first result.
no_tuning <- function() {
  record <- a_tuning_record(
    trace = list(), failed = 0L, epochs_spent = 0L, stopped = "interrupted",
    notes = list(), together = ""
  )
  record["best"] <- list(NULL)
  new_gpu_tuning(record, function(...) NULL, c("units", "optimizer"))
}
