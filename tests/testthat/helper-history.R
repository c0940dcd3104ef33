history <- function(...) new_gpu_history(a_report(...))

# One metric for each of `...`, and as many epochs.
history_of <- function(..., epoch_s = NULL) {
  values <- lapply(list(...), as.list)
  count <- length(values[[1]])
  history(history = values, epochs = count, epoch_s = epoch_s %||% as.list(rep(2, count)))
}

no_epochs <- function() {
  history(
    history = list(), epochs = 0L, epoch_s = list(), epoch_rows = list(), samples_per_s = 0,
    stopped = "interrupted"
  )
}

# What the core reports since a training can be resumed, stopped and short of memory.
full_history <- function(...) {
  history(
    epoch_rows = list(1e6, 1e6, 1e6), learning_rate = list(0.01, 0.005, 0.001),
    micro_batch = 512L, skipped_steps = 0L, resumed_epochs = 0L, best_epoch = 0L, notes = list(),
    reasons = list(engine = "measured fastest", batch_size = "about 100 updates an epoch"),
    checkpoint = "", ...
  )
}

local_device <- function(frame = parent.frame()) {
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off(), envir = frame)
}
