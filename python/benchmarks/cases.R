# What `make bench-fit` measures: each model with its data, and what is promised of it. In times
# faster than Keras at its best `steps_per_execution`: `steps` a warm epoch on TensorFlow, `jax`
# than Keras on JAX, `total` from the R data to the last epoch, on TensorFlow. At most: `limit` of a
# warm epoch to that of the bare loop of the same backend, `same` to that of Keras on the same
# backend, `memory` of the R data, `best` of the best engine. `memory`: whether it is measured.

cases <- list(
  dense_small = list(
    label = "dense 100,000 x 20, batch 32", model = "dense", rows = 100000L, shape = 20L,
    batch = 32L, epochs = 10L, memory = TRUE,
    promises = list(steps = 15, jax = 6, total = 8, limit = 1.1, best = 1.1)
  ),
  dense_wide = list(
    label = "dense 200,000 x 200, batch 256", model = "dense", rows = 200000L, shape = 200L,
    batch = 256L, epochs = 10L, memory = TRUE,
    promises = list(steps = 4, jax = 2, total = 3.5, limit = 1.1, best = 1.1, memory = 0.6)
  ),
  batchnorm = list(
    label = "BatchNorm, AdamW 64,000 x 64, batch 64", model = "normalised", rows = 64000L,
    shape = 64L, batch = 64L, epochs = 10L, promises = list(best = 1.1)
  ),
  lstm = list(
    label = "LSTM 12,800 x 30 x 8, batch 64", model = "lstm", rows = 12800L, shape = c(30L, 8L),
    batch = 64L, epochs = 10L, promises = list(same = 1.05, best = 1.1)
  ),
  transformer = list(
    label = "transformer 12,800 x 30 x 8, batch 64", model = "transformer", rows = 12800L,
    shape = c(30L, 8L), batch = 64L, epochs = 10L, promises = list(same = 1.05, best = 1.1)
  ),
  # XLA's convolutions on a CPU are so slow that a part of the rows must do there.
  cnn = list(
    label = "CNN 20,000 x 32 x 32 x 3, batch 64", model = "convolutional", rows = 20000L,
    shape = c(32L, 32L, 3L), batch = 64L, epochs = 6L, memory = TRUE,
    shares = list(
      engine_compiled = 0.1, engine_graph_loop = 0.3, jax_keras = 0.1, jax_steps = 0.1,
      jax_auto = 0.1
    ),
    promises = list(same = 1.05, memory = 0.6, best = 1.1)
  )
)

# What is measured besides training. A prediction by Keras at its default batch size takes minutes
# for all rows, so a tenth is measured. `start` is a small dataset whose first step counts.
others <- list(
  predict = list(
    label = "prediction, 1,000,000 x 20", model = "dense", rows = 1000000L, shape = 20L,
    default_share = 0.1, batches = c(1024L, 8192L, 32768L, 131072L, 1000000L),
    promises = list(default = 20, best = 3)
  ),
  start = list(
    label = "start, 3,200 x 20, batch 32", model = "dense", rows = 3200L, shape = 20L,
    batch = 32L, promises = list(extra_s = 1.5)
  ),
  # fit_memory.py trains one model again and again, or a new one each time.
  fits = list(label = "fits in one session", fits = 100L, models = c("one", "new"))
)
