# The ways to train that are compared: `fit` trains `model` on an R array and gives the seconds and
# the loss of its epochs. The Python files beside this one are found through PYTHONPATH, which
# bench_fit.R sets.

# Keras ------------------------------------------------------------------------------------------

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

# Keras as it is called best from R here: by keras3 where that is installed.
usual_fit <- function(model, data, batch, epochs) {
  fit <- if (requireNamespace("keras3", quietly = TRUE)) keras3_fit else keras_from_r
  fit(model, data, batch, epochs)
}

# An expert's setting of Keras: the `steps_per_execution` that is fastest, and what was tried.
search_steps <- function(make, data, batch) {
  searching <- reticulate::import("steps_search")
  seconds <- searching$search(make, data$x, data$y, as.integer(batch))
  list(steps = searching$best_of(seconds), searched_s = seconds)
}

set_steps <- function(model, steps) {
  reticulate::import("steps_search")$set_steps(model, as.integer(steps))
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

# Keras has no end of an epoch but `steps_per_epoch`, and its generator must never end.
keras_generator <- function(model, data, batch, epochs) {
  clock <- the_models()$EpochClock()
  make <- make_generator(data, batch)
  endless <- function() {
    rows <- make()
    if (is.null(rows)) make() else rows
  }
  model$fit(
    the_models()$draw_forever(reticulate::py_iterator(endless)),
    steps_per_epoch = as.integer(ceiling(nrow(data$x) / batch)), epochs = epochs, verbose = 0L,
    callbacks = list(clock)
  )
  read_clock(clock)
}

the_models <- function() reticulate::import("bench_models")

read_clock <- function(clock) list(epoch_s = clock$epoch_s, loss = clock$loss)

# gpukeras ---------------------------------------------------------------------------------------

# `open` makes the dataset of the data.
gpukeras_fit <- function(engine = "auto", open = open_array) {
  function(model, data, batch, epochs) {
    rows <- open(data, batch)
    fit <- gpukeras::gpu_fit(model, rows, epochs = epochs, engine = engine, verbose = FALSE)
    list(
      epoch_s = fit$epoch_s, loss = fit$history$loss,
      engine = fit$engine$engine, reason = fit$engine$reason
    )
  }
}

open_array <- function(data, batch) {
  gpukeras::gpu_dataset(data$x, data$y, batch_size = batch, scale = FALSE, seed = 1)
}

open_parquet <- function(data, batch) {
  gpukeras::gpu_dataset(data$path, y = "y", batch_size = batch, scale = FALSE, seed = 1)
}

open_generator <- function(data, batch) {
  gpukeras::gpu_dataset(
    make_generator(data, batch),
    batch_size = batch, cache = TRUE, scale = FALSE, seed = 1
  )
}

# Batches in the order of the rows; NULL after the last, then from the start again.
make_generator <- function(data, batch) {
  first <- 1L
  function() {
    if (first > nrow(data$x)) {
      first <<- 1L
      return(NULL)
    }
    taken <- first:min(first + batch - 1L, nrow(data$x))
    first <<- first + batch
    list(data$x[taken, , drop = FALSE], as.array(data$y[taken]))
  }
}

# The same rows in a file that goes with the process.
write_parquet <- function(data) {
  path <- tempfile(fileext = ".parquet")
  reticulate::import("bench_files")$write_rows(path, data$x, data$y)
  list(path = path)
}

# Compiles in front of the first compiled step, and not beside the steps before it.
compile_in_front <- function(data) {
  compiling <- reticulate::import("gpukeras.engine.async_compile")
  compiling$STAND_IN_BYTES <- 0L
  data
}

# The limit --------------------------------------------------------------------------------------

bare_xla <- function(model, data, batch, epochs) {
  limit <- reticulate::import("bench_limit")
  limit$train(data$x, data$y, batch, epochs, dropout = 0.1, metrics = TRUE)
}

bare_scan <- function(model, data, batch, epochs) {
  limit <- reticulate::import("bench_limit_jax")
  limit$train(data$x, data$y, batch, epochs, dropout = 0.1, metrics = TRUE)
}

# All --------------------------------------------------------------------------------------------

dense <- c("dense_small", "dense_wide")

# `cases`: those that it is for. `needs`: R packages beyond gpukeras. `base`: may be what the others
# are compared with. `few`: its first epochs are all that counts. `once`: not in every repetition.
# `expert`: Keras at its best `steps_per_execution`, which is searched before the clock starts.
# `backend`: of Keras, TensorFlow if not named. `share`: of the rows, where that must do; its epochs
# are scaled. `most_s`: where it may hang. `prepare`: makes of the data what `fit` gets, before the
# clock starts.
methods <- list(
  keras3 = list(label = "keras3 fit()", fit = keras3_fit, needs = "keras3", base = TRUE),
  keras = list(label = "Keras fit() from R", fit = keras_from_r, base = TRUE),
  tfdatasets = list(
    label = "tfdatasets, keras3 fit()", fit = tfdatasets_fit, needs = c("keras3", "tfdatasets"),
    cases = dense, once = TRUE, few = TRUE
  ),
  # R's main thread waits for TensorFlow's pipeline, and a thread of the pipeline, which holds a
  # lock of TensorFlow's, for R's main thread: now and then that is for ever.
  keras_generator = list(
    label = "Keras fit(), R generator", fit = keras_generator, cases = dense, share = 0.1,
    once = TRUE, few = TRUE, most_s = 120
  ),
  steps = list(label = "Keras fit(), best steps", fit = usual_fit, expert = TRUE),
  jax_keras = list(label = "Keras on JAX fit()", fit = usual_fit, backend = "jax"),
  jax_steps = list(
    label = "Keras on JAX fit(), best steps", fit = usual_fit, backend = "jax", expert = TRUE
  ),
  auto = list(label = "gpukeras", fit = gpukeras_fit()),
  jax_auto = list(label = "gpukeras on JAX", fit = gpukeras_fit(), backend = "jax"),
  parquet = list(
    label = "gpukeras, Parquet", fit = gpukeras_fit(open = open_parquet), cases = dense,
    prepare = write_parquet, once = TRUE
  ),
  generator = list(
    label = "gpukeras, R generator cached", fit = gpukeras_fit(open = open_generator),
    cases = dense, once = TRUE
  ),
  in_front = list(
    label = "gpukeras, compiled in front", fit = gpukeras_fit(), cases = "dense_small",
    prepare = compile_in_front, once = TRUE
  ),
  engine_keras = list(
    label = "gpukeras, keras", fit = gpukeras_fit("keras"), once = TRUE, few = TRUE
  ),
  engine_graph_loop = list(
    label = "gpukeras, graph_loop", fit = gpukeras_fit("graph_loop"), once = TRUE, few = TRUE
  ),
  engine_compiled = list(
    label = "gpukeras, compiled", fit = gpukeras_fit("compiled"), once = TRUE
  ),
  limit = list(label = "bare XLA loop (limit)", fit = bare_xla, cases = dense),
  jax_limit = list(
    label = "bare lax.scan (limit)", fit = bare_scan, cases = dense, backend = "jax"
  )
)

# What is compared in memory too.
compared <- c("steps", "jax_keras", "jax_steps", "auto", "jax_auto", "limit", "jax_limit")

backend_of <- function(name) {
  backend <- methods[[name]]$backend
  if (is.null(backend)) "tensorflow" else backend
}

# Packages that a method needs and R does not find.
missing_packages <- function(method) {
  needs <- as.character(method$needs)
  needs[!vapply(needs, requireNamespace, logical(1), quietly = TRUE)]
}
