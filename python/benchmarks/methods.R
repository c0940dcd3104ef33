# The methods that are compared: each trains `model` on an R matrix and gives the seconds and the
# loss of its epochs. What a method needs beyond Keras is named in `needs`. The Python files beside
# this one are found through PYTHONPATH, which bench.R sets.

keras_from_r <- function(model, data, batch, epochs) {
  clock <- the_models()$EpochClock()
  model$fit(
    data$x, data$y,
    batch_size = batch, epochs = epochs, verbose = 0L, callbacks = list(clock)
  )
  read_clock(clock)
}

keras3_fit <- function(model, data, batch, epochs) {
  clock <- the_models()$EpochClock()
  keras3::fit(
    model, data$x, data$y,
    batch_size = batch, epochs = epochs, verbose = 0L, callbacks = list(clock)
  )
  read_clock(clock)
}

tfdatasets_fit <- function(model, data, batch, epochs) {
  clock <- the_models()$EpochClock()
  rows <- tfdatasets::tensor_slices_dataset(list(data$x, data$y)) |>
    tfdatasets::dataset_shuffle(nrow(data$x)) |>
    tfdatasets::dataset_batch(batch) |>
    tfdatasets::dataset_prefetch()
  keras3::fit(model, rows, epochs = epochs, verbose = 0L, callbacks = list(clock))
  read_clock(clock)
}

gpukeras_fit <- function(engine) {
  function(model, data, batch, epochs) {
    rows <- gpukeras::gpu_dataset(data$x, data$y, batch_size = batch, scale = FALSE, seed = 1)
    fit <- gpukeras::gpu_fit(model, rows, epochs = epochs, engine = engine, verbose = FALSE)
    list(
      epoch_s = fit$epoch_s, loss = fit$history$loss,
      engine = fit$engine$engine, reason = fit$engine$reason
    )
  }
}

bare_xla <- function(model, data, batch, epochs) {
  limit <- reticulate::import("bench_limit")
  limit$train(data$x, data$y, batch, epochs)
}

the_models <- function() reticulate::import("bench_models")

read_clock <- function(clock) list(epoch_s = clock$epoch_s, loss = clock$loss)

# The first is what the others are compared with. `once`: slow, and no promise rests on it.
methods <- list(
  keras = list(label = "Keras fit() from R", fit = keras_from_r),
  keras3 = list(label = "keras3 fit()", fit = keras3_fit, needs = "keras3", once = TRUE),
  tfdatasets = list(
    label = "tfdatasets, keras3 fit()", fit = tfdatasets_fit, once = TRUE,
    needs = c("keras3", "tfdatasets")
  ),
  auto = list(label = "gpukeras, engine chosen", fit = gpukeras_fit("auto")),
  engine_keras = list(label = "gpukeras, keras", fit = gpukeras_fit("keras"), once = TRUE),
  engine_superstep = list(label = "gpukeras, superstep", fit = gpukeras_fit("superstep")),
  engine_compiled = list(label = "gpukeras, compiled", fit = gpukeras_fit("compiled")),
  limit = list(label = "bare XLA loop (limit)", fit = bare_xla, once = TRUE)
)

# Packages that a method needs and R does not find.
missing_packages <- function(method) {
  needs <- as.character(method$needs)
  needs[!vapply(needs, requireNamespace, logical(1), quietly = TRUE)]
}
