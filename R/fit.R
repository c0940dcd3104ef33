#' Train a Keras model
#'
#' Trains the model in place, through Keras' own `fit()` (callbacks, metrics, validation and history
#' are Keras'), but with many batches in a single call: R and Python stay out of the step.
#'
#' @section Engines:
#' Three engines run the same Keras step. `"superstep"` loops over many batches inside a TensorFlow
#' graph. `"compiled"` is that loop compiled by XLA to a single program. `"keras"` calls Keras' own
#' function once a batch. With `"auto"` each trains real batches for a moment in the first epochs
#' (they are updates of the model: nothing is wasted) and the fastest goes on. The superstep comes
#' first, as it is never far from the best. Keras' own function is only tried where a batch takes
#' longer than a millisecond, since a call a batch cannot win below that; it can where large
#' convolutions take most of the time. The program of `"compiled"` is built in a thread beside the
#' steps of the fastest engine so far, so that nothing waits for the compiler; it is only built
#' where the batches that are left can pay for it, and a model with operations that XLA refuses goes
#' on without. The history says which engine was chosen, why, and the times measured. Dropout draws
#' other numbers in the compiled engine, so force an engine where runs must repeat bit for bit.
#'
#' What was traced and compiled stays with the model, and later trainings start at once. As in
#' Keras, compile the model again after changing a number inside a layer, such as a dropout's rate.
#' A layer that is frozen after a training (`trainable`) stays as it is in the next one, where Keras
#' trains it until the model is compiled again; one that is unfrozen needs that, and an error names
#' it.
#'
#' Programs are built anew in each session, unless the environment variable `GPUKERAS_XLA_CACHE`
#' names a folder before TensorFlow starts: XLA keeps them there, in a subfolder for each TensorFlow
#' and kind of CPU, and loads them several times faster than it builds them. It deletes none: the
#' folder grows until you empty it. On some CPUs XLA's log then says that `prefer-no-gather` is not
#' supported on the host machine. That is a preference of the compiler, not an instruction that the
#' CPU lacks (<https://github.com/openxla/xla/issues/44565>).
#'
#' Callbacks that work on every batch (a class of your own with `on_train_batch_end()`), or on every
#' so many (`save_freq = 100` of Keras' `ModelCheckpoint`), switch to `"keras"`; Keras' other
#' callbacks see several batches as one, as with its `steps_per_execution`. With an engine that is
#' given they see every batch too, a call each, or as many a call as the model was compiled for
#' (`steps_per_execution`). Validation rows are one batch to all callbacks. Where
#' the loss becomes no number, Keras callbacks see the end of that epoch, and no functions do.
#'
#' @param model A Keras 3 model: from keras3, from reticulate, or from [gpu_mlp()]. It is compiled,
#'   or `loss` is given.
#' @param data A [gpu_dataset()], `list(x, y)` or `list(x, y, weights)` (names are honoured, in any
#'   order), or a `tf.data.Dataset` such as tfdatasets makes.
#'   Matrices, arrays, data frames, paths of files and functions are made a dataset of, as by
#'   [gpu_dataset()].
#' @param y Labels of such rows; of a data frame or of files the name of their column.
#' @param epochs Passes over the training rows. Of a function or `tf.data.Dataset` without `steps`,
#'   the first pass tells how many there are.
#' @param validation Rows to validate on after each epoch: a [gpu_dataset()] made with
#'   `recipe = data`, a data frame, `list(x, y)`, `list(x, y, weights)`, or a
#'   `tf.data.Dataset`. Or a share of the rows, where `data` is no dataset yet. By default those
#'   that `data` kept apart.
#' @param batch_size Rows a step; or what [gpu_batch_size()] gave. `"auto"` is what
#'   [gpu_batch_size()] found for this model in this session, or else the dataset's own. More than
#'   there are rows is one batch of all. A stateful recurrent model takes the length of batches
#'   that it was made for (`batch_shape`).
#' @param engine `"auto"`, `"keras"`, `"superstep"` or `"compiled"`.
#' @param schedule The learning rate over time: [schedule_one_cycle()], [schedule_cyclic()],
#'   [schedule_warmup_cosine()], [schedule_exponential()], [schedule_plateau()],
#'   [schedule_constant()]. `NULL` is the optimizer's own rate, which it has again afterwards.
#' @param clip_norm,clip_value,clip_global_norm Bounds of the gradients in this training, one of
#'   them: the norm of each variable's gradient, the absolute value of each number, or the norm of
#'   all gradients together.
#' @param ema Momentum of moving averages of the weights, such as 0.999: the averages are validated,
#'   and the model has them in the end. See the section on averages.
#' @param early_stopping Epochs without improvement after which training ends with the best weights;
#'   or a list of `patience`, `monitor` (the validation loss, or the loss without validation),
#'   `min_delta`, `mode` (`"min"`, `"max"`), `restore_best` and `start_epoch`.
#' @param checkpoint A folder in which the training is saved after each epoch, and every 5 minutes
#'   within one; or a list of `folder`, `every_s` (seconds) and `keep` (3). Called again with the
#'   same folder, `gpu_fit()` goes on where the process ended. See the section on checkpoints.
#' @param tensorboard A folder for the files that [gpu_tensorboard()] shows; or a list of `folder`,
#'   `histograms` (`TRUE` to count the weights after each epoch, or the number of epochs from one
#'   count to the next) and `profile` (`TRUE` to trace the first two seconds of the second epoch).
#'   The package tensorboard is only needed to look at them.
#' @param monitor Whether GPU and computer are sampled, as by [gpu_monitor()]: `TRUE`, or the
#'   seconds between two samples. The history has the samples in `$monitor`.
#' @param devices Devices that train together: `"all"` GPUs, a number of them, or names such as
#'   `c("GPU:0", "GPU:1")`. `NULL` is the one that [gpu_setup()] chose; in a [gpu_cluster()] all
#'   GPUs of every worker. See the section on several devices.
#' @param rate_scaling What several devices do to the learning rate: `"none"`; `"linear"`, it is
#'   multiplied by their number (Goyal et al. 2017); or `"sqrt"`, by its square root (Krizhevsky
#'   2014). Of use where `batch_size` was made larger with the number of devices.
#' @param on_oom What happens when the device's memory runs out: `"halve"` the rows that go through
#'   the model at once until they fit, and add up their gradients, so that the batch size stays; or
#'   `"stop"`.
#' @param callbacks A list of Keras callbacks, and of R functions named by when they are called.
#' @param on_epoch_end A function of epoch and metrics, called after each epoch.
#' @param optimizer,loss,metrics What the model is compiled with before it is trained, as by
#'   keras3's `compile()`: names, keras3's objects, R functions, or lists of them for several
#'   outputs. `loss` is needed, `optimizer` is `"adam"` by default. A model that is compiled already
#'   is compiled anew: its optimizer starts afresh. `NULL`, all three, leaves it as it is.
#' @param verbose Whether progress is shown: a bar in a terminal, a line for an epoch elsewhere.
#' @param ... Arguments of keras3's `fit()`: `x`, `validation_data` and `validation_split` (drawn at
#'   random, as by `gpu_dataset(validation = )`), and for rows that are no dataset yet
#'   `sample_weight`, `class_weight`, `shuffle` and `steps_per_epoch`.
#' @return A `gpu_history`, with `print()`, `summary()`, `plot()`, `as.data.frame()`, `rbind()` and
#'   `ggplot2::autoplot()`. It says where the model ran, through which engine and why, rows a
#'   second, the share of time spent waiting for rows, and the GPU's peak memory. Interrupting
#'   (Ctrl-C, Esc) stops after the current call and returns the history so far; the model keeps what
#'   it has learned.
#' @seealso [gpu_batch_size()] and [gpu_learning_rate()] before a training, [gpu_history] after it;
#'   [gpu_cluster()] for several computers; `vignette("training-well", package = "gpukeras")` and
#'   `vignette("more-than-one-gpu", package = "gpukeras")`.
#' @section When something goes wrong:
#' A loss that is no finite number ends the training with the weights of before, at most a second or
#' an epoch back: `$stopped` is `"non_finite"`, a warning names epoch and step, and NaN never
#' spreads to the end. Under `mixed_float16` steps that loss scaling skips are counted in
#' `$skipped_steps`.
#'
#' When the device's memory runs out, the model has the state of before the step that failed, and
#' the step is done again in smaller parts; `$notes` and `$micro_batch` tell. Layers that work
#' across rows, such as batch normalisation, then see the parts. Models with a `train_step()` of
#' their own cannot be split: there it is an error.
#' @section Losses:
#' The loss of an epoch is the mean over its rows. The loss of each of several outputs is so too:
#' times the loss weights they add up to the total. (Keras' own `fit()` gives another number where
#' the last batch is short: it weighs losses of outputs by batches there, or by both.)
#'
#' Validation takes large batches, as nothing is learned. Where the loss may depend on the batch it
#' takes those of the training's size, as Keras does: with `reduction = "sum"`, and with losses,
#' layers and test steps that are not Keras' own.
#' @section Several devices:
#' Each device takes its part of every batch and adds its gradients to those of the others
#' (`tf.distribute`). `batch_size` counts the rows of all devices together, so a training on several
#' is that on one, but for the order in which numbers are added: the same rows in the same order,
#' short last batches too, gradients clipped as a whole, batch normalisation over the whole batch.
#' Random numbers inside the model, such as dropout, are others on each device. `batch_size` must be
#' a multiple of the number of devices. The model is trained in place, as on one.
#'
#' `engine = "compiled"` and `on_oom = "halve"` are for one device; a model whose loss adds up its
#' rows (`reduction = "sum"`) and has regularisers gets theirs once. Losses that are means over
#' something else than rows, such as tokens that are not masked, are averaged over devices.
#' @section Averages:
#' With `ema`, average = m * average + (1 - m) * weight after each step, where m is at most
#' (1 + t) / (10 + t) at step t, so that a short training is not an average of its first weights
#' (Polyak and Juditsky 1992; TensorFlow's `ExponentialMovingAverage`). Validation, early stopping
#' and functions between epochs see the averages.
#' @section Checkpoints:
#' A checkpoint holds the weights, the optimizer, the epoch and batch, the random state, schedule,
#' averages, early stopping and the history, with checksums, and is written beside and renamed: a
#' process that is killed at any moment leaves a good one. With
#' `gpu_setup(seed = , deterministic = TRUE)` the resumed training ends on a CPU with the same
#' weights, bit for bit. A folder that
#' holds another training (model, rows, batch size, seed, schedule) is an error, so give
#' [gpu_dataset()] a `seed`, or call `set.seed()` before it; more `epochs` are fine, unless the
#' schedule spans them. A damaged checkpoint is skipped for the one before. When saving fails,
#' as on a full disk, training goes on and `$notes` says so. Keras callbacks keep no state of their
#' own: they begin anew.
#' @section Errors:
#' `gpukeras_error_model` for a model that is not compiled or does not fit the data,
#' `gpukeras_error_data` for labels out of the output's range, `gpukeras_error_out_of_memory`,
#' `gpukeras_error_checkpoint`.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' model <- gpu_mlp(train, units = c(16, 8))
#' schedule <- schedule_one_cycle(max_rate = 0.01)
#' fit <- gpu_fit(model, train, epochs = 20, schedule = schedule, verbose = FALSE)
#' fit
#' plot(fit)
#'
#' # Stops when the validation loss gets no better, and goes on there if the process ends before.
#' gpu_fit(
#'   gpu_mlp(train, seed = 1), train,
#'   epochs = 20, early_stopping = 5, checkpoint = tempfile("run-"), verbose = FALSE,
#'   on_epoch_end = function(epoch, metrics) if (metrics[["val_loss"]] < 5) "stop"
#' )
#' @export
gpu_fit <- function(model, data, y = NULL, epochs = 10, validation = NULL, batch_size = "auto",
                    engine = "auto", schedule = NULL, clip_norm = NULL, clip_value = NULL,
                    clip_global_norm = NULL, ema = NULL, early_stopping = NULL, checkpoint = NULL,
                    tensorboard = NULL, monitor = FALSE, devices = NULL, rate_scaling = "none",
                    on_oom = "halve", callbacks = list(), on_epoch_end = NULL, optimizer = NULL,
                    loss = NULL, metrics = NULL, verbose = TRUE, ...) {
  words <- check_keras_arguments(list(...), c(names(keras_row_arguments), "x", "validation_data"))
  model <- check_model(model)
  given <- if (missing(data)) NULL else data
  rows <- as_fit_rows(given, y, epochs, validation, words, model)
  data <- rows$data
  options <- list(
    epochs = rows$epochs, engine = engine, schedule = as_options(schedule), clip_norm = clip_norm,
    clip_value = clip_value, clip_global_norm = clip_global_norm, ema = ema,
    early_stopping = as_options(early_stopping), checkpoint = expand_folder(checkpoint),
    tensorboard = expand_folder(tensorboard), on_oom = on_oom, rate_scaling = rate_scaling
  )
  hooks <- as_callbacks(callbacks, on_epoch_end)
  # The listener handles interrupts between two calls of the engine, so that the history is kept.
  warn_stopped(fit_with_monitor(monitor, suspendInterrupts(call_core("fit", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_validation(rows$validation, data, model),
    batch_size = as_batch_size(batch_size),
    callbacks = hooks$keras, functions = hooks$functions, on_event = progress_listener(verbose),
    devices = as_devices(devices), compiling = as_compiling(optimizer, loss, metrics)
  )))))
}

# Arguments of compile(); NULL leaves the model as it is. Keras requires metrics as a list.
as_compiling <- function(optimizer, loss, metrics) {
  given <- list(optimizer = optimizer, loss = loss, metrics = metrics)
  if (all(vapply(given, is.null, NA))) {
    return(NULL)
  }
  several <- rlang::is_bare_list(metrics) || is.null(metrics) || is.character(metrics)
  given["loss"] <- list(named_list(loss)) # reticulate drops the names of a vector
  given["metrics"] <- list(if (several) as.list(metrics) else list(metrics))
  given
}

# The history of a training, with samples of a monitor; `report`, the training, is evaluated here.
fit_with_monitor <- function(monitor, report, call = caller_env()) {
  sampler <- start_fit_monitor(monitor, call)
  on.exit(sampler$abandon())
  history <- new_gpu_history(report)
  samples <- sampler$stop()
  if (!is.null(samples)) history$monitor <- new_gpu_monitor(samples)
  history
}

# Several names as a list; a single name or number as it is.
as_devices <- function(devices, call = caller_env()) {
  check_no_na_options(list(devices = devices), call)
  if (length(devices) > 1) as.list(unname(devices)) else devices
}

# The handle of the validation rows, encoded as the training rows.
as_validation <- function(validation, data, model = NULL, call = caller_env()) {
  if (is.null(validation)) {
    return(NULL)
  }
  if (is.function(validation)) {
    validation <- gpu_dataset(validation, recipe = data)
  }
  as_dataset(
    validation, data$handle, data,
    arg = "validation", model = model, call = call
  )$handle
}

# A gpu_schedule or a list of options as a plain list.
as_options <- function(x) if (is.list(x)) unclass(x) else x

# Expands the path of a folder, given by itself or in a list of options.
expand_folder <- function(given) {
  if (is.list(given) && rlang::is_string(given$folder)) {
    given$folder <- path.expand(given$folder)
  }
  if (rlang::is_string(given)) path.expand(given) else given
}

# Warns of a training that ended early; no error, because its history and model are valid.
warn_stopped <- function(history) {
  if (identical(history$stopped, "non_finite")) {
    why <- grep("^Stopped: ", unlist(history$notes), value = TRUE)
    warn_gpukeras(why, "non_finite")
  }
  history
}
