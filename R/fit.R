#' Train a Keras model
#'
#' Trains the model in place as Keras' own `fit()` does, with Keras' training step, callbacks,
#' metrics and history, but runs many batches in a single call: R and Python stay out of the step.
#'
#' @section Engines:
#' Three engines run the same Keras training step. `"graph_loop"` loops over many batches inside a
#' TensorFlow graph. `"compiled"` is that loop, compiled by XLA to a single program. `"keras"` calls
#' Keras' own train function once per batch.
#'
#' With `"auto"`, each engine trains real batches for a short time in the first epochs, and the
#' fastest one continues. These trials update the model, so no work is lost. The graph loop comes
#' first because it is never far from the fastest. `"auto"` tries Keras' own function only if a
#' batch takes longer than a millisecond: one call per batch cannot win below that, but it can where
#' large convolutions take most of the time. A separate thread builds the program of `"compiled"`
#' while the fastest engine so far trains, so training never waits for the compiler. The program is
#' built only if the remaining batches, and as many as equal models of the session were given
#' before, can make up for the build time: so many short trainings, such as folds, pay for it
#' together. Where the winner is known, nothing is measured: on a CPU, small batches of dense layers
#' (25 MFLOP a step at most, 7,000 steps or more) are trained by `"compiled"` from the start. A
#' model with operations that XLA rejects trains without it. If XLA's program won, a later training
#' of an equal model on this computer starts with it, as far as the batches pay for its start. The
#' history reports which engine was chosen, why, and the measured times. Dropout draws different
#' numbers in the compiled engine, so results depend on which engine was measured fastest, unless a
#' seed was given: see the section on seeds.
#'
#' Where Keras runs on JAX, nothing is measured: `"compiled"` trains all models but those with
#' convolutions on a CPU. XLA's convolutions are slow inside a loop there, so `"keras"` trains them.
#'
#' On a GPU, XLA waits for the host in each step of a program whose number of steps it does not
#' know. There `"compiled"` consists of programs of 1, 8, 64 and 512 steps, as far as calls are that
#' long, and a call runs the largest that fit. They run to their end, so a loss that is not finite
#' is found after the call. On a CPU, and after `gpu_setup(deterministic = TRUE)`, one program runs
#' any number of steps. XLA can also record a whole loop as a CUDA graph: set the environment
#' variable `XLA_FLAGS` to `--xla_gpu_enable_command_buffer=+WHILE` before TensorFlow starts.
#'
#' Traced and compiled programs stay with the model, so later trainings start at once. As in Keras,
#' compile the model again after you change a number inside a layer, such as a dropout rate. If you
#' freeze a layer after a training (`trainable`), the next training leaves it unchanged, whereas
#' Keras trains it until you compile the model again. If you unfreeze a layer, compile the model
#' again; otherwise an error names the layer. A new model that is provably equal to an earlier one
#' of the session (Keras' own layers, losses, metrics and optimizers, with the same settings, shapes
#' and batches, on one device) uses its programs; the last 8 programs are kept. Learning rates may
#' differ, unless they follow a schedule.
#'
#' XLA keeps its programs for later sessions in the folder `xla` of `tools::R_user_dir("gpukeras",
#' "cache")`, in a subfolder for each version of TensorFlow or JAX and kind of CPU and GPU, and
#' loads them several times faster than it builds them. When TensorFlow or JAX starts, the programs
#' that were not used for longest are removed until the rest takes at most 128 MiB. To remove
#' all, delete the folder. The environment variable `GPUKERAS_XLA_CACHE`, set before TensorFlow or
#' JAX starts, names another folder, or is `"off"`. No programs are kept if the folder cannot be
#' written to, the disk is almost full, others may write to the folder, or you set `TF_XLA_FLAGS`.
#' JAX uses the folder in `JAX_COMPILATION_CACHE_DIR` where you name one.
#'
#' Callbacks that work on every batch (a custom class with `on_train_batch_end()`) or on every n-th
#' batch (`save_freq = 100` of Keras' `ModelCheckpoint`) switch to `"keras"`. Keras' other callbacks
#' see several batches as one, as with Keras' `steps_per_execution`. If you set `engine`, batch
#' callbacks still see every batch: one per call, or as many per call as the model was compiled for
#' (`steps_per_execution`). All callbacks see the validation rows as one batch, and may themselves
#' call the model's own `evaluate()`, `predict()` or `fit()`. If the loss becomes NaN or infinite,
#' Keras callbacks see the end of that epoch, but R functions do not.
#'
#' @param model A Keras 3 model from keras3, from reticulate or from [gpu_mlp()]. It must be
#'   compiled, unless you give `loss`.
#' @param data A [gpu_dataset()], `list(x, y)` or `list(x, y, weights)` (named elements may be in
#'   any order), a `tf.data.Dataset`, such as one from tfdatasets, or a `PyDataset`. Matrices,
#'   arrays, data frames, paths of files and functions are converted by [gpu_dataset()].
#' @param y Labels of such rows; for a data frame or files, the name of the label column.
#' @param epochs Passes over the training rows. For a function or `tf.data.Dataset` without `steps`,
#'   the first pass counts the batches.
#' @param validation Rows to validate on after each epoch: a [gpu_dataset()] made with
#'   `recipe = data`, a data frame, `list(x, y)`, `list(x, y, weights)`, or a `tf.data.Dataset`. If
#'   `data` is not a dataset yet, it may also be a share of the rows. The default is the rows that
#'   `data` holds out for validation.
#' @param batch_size Rows per step, or a [gpu_batch_size()] result. `"auto"` is the size that
#'   [gpu_batch_size()] found for this model in this session, unless a seed was given, or else the
#'   dataset's own. A size
#'   larger than the number of rows makes one batch of all rows. A stateful recurrent model uses the
#'   batch size that it was built for (`batch_shape`).
#' @param engine `"auto"`, `"repeatable"`, `"keras"`, `"graph_loop"` or `"compiled"`.
#' @param schedule The learning rate over time: [schedule_one_cycle()], [schedule_cyclic()],
#'   [schedule_warmup_cosine()], [schedule_exponential()], [schedule_plateau()],
#'   [schedule_constant()]. `NULL` uses the optimizer's own rate. The optimizer has its own rate
#'   again after the training.
#' @param clip_norm,clip_value,clip_global_norm Bounds of the gradients in this training. Give one
#'   of them: the norm of each variable's gradient, the absolute value of each number, or the norm
#'   of all gradients together.
#' @param ema Momentum of moving averages of the weights, such as 0.999. Validation uses the
#'   averages, and the model has them at the end. See the section on averages.
#' @param early_stopping Epochs without improvement after which training ends with the best weights;
#'   or a list of `patience`, `monitor` (the validation loss, or the loss without validation),
#'   `min_delta`, `mode` (`"min"` or `"max"`, needed for a metric that does not say which of its
#'   values are better, as in Keras), `restore_best` and `start_epoch`.
#' @param checkpoint A folder in which to save the training after each epoch, and every 5 minutes
#'   within one; or a list of `folder`, `every_s` (seconds), `keep` (3) and `grace_s` (seconds from
#'   a queue's signal to its kill). If you call `gpu_fit()` again with the same folder, it resumes
#'   where the process ended. See the sections on checkpoints and on queues.
#' @param tensorboard A folder for the files that [gpu_tensorboard()] shows; or a list of `folder`,
#'   `histograms` (`TRUE` for weight histograms after each epoch, or the number of epochs between
#'   them) and `profile` (`TRUE` to trace the first two seconds of the second epoch). You need the
#'   package tensorboard only to view the files.
#' @param track Where the training is recorded: a folder, or [gpu_track()].
#' @param monitor Whether to sample the GPU and the computer, as [gpu_monitor()] does: `TRUE`, or
#'   the seconds between two samples. The history has the samples in `$monitor`.
#' @param devices Devices that train together: `"all"` GPUs, a number of them, or names such as
#'   `c("GPU:0", "GPU:1")`. `NULL` is the device that [gpu_setup()] chose; in a [gpu_cluster()], all
#'   GPUs of every worker. See the section on several devices.
#' @param rate_scaling How the number of devices changes the learning rate: `"none"`; `"linear"`
#'   multiplies it by the number (Goyal et al. 2017); `"sqrt"` multiplies it by the square root
#'   (Krizhevsky 2014). Use it if you increased `batch_size` with the number of devices.
#' @param on_oom What to do when the device runs out of memory: `"halve"` halves the rows that go
#'   through the model at once until they fit, and adds up their gradients, so that the batch size
#'   stays the same; `"stop"` raises an error.
#' @param callbacks A list of Keras callbacks, and of R functions named by when they are called.
#' @param on_epoch_end A function of epoch and metrics, called after each epoch.
#' @param optimizer,loss,metrics Arguments to compile the model with before training, as in keras3's
#'   `compile()`: names, keras3 objects, R functions, or lists of them for several outputs. `loss`
#'   is required; `optimizer` is `"adam"` by default. R functions are called as the list names them,
#'   such as `metrics = list(largest = function(y, p) max(abs(y - p)))` with Keras' operations: in
#'   the history, for early stopping, and in `custom_objects` of [gpu_load()]. A compiled model is
#'   compiled again with a new optimizer. If all three are `NULL`, the model stays as it is.
#' @param verbose Whether to show progress: a bar in a terminal, one line per epoch elsewhere.
#'   `"auto"` is `TRUE`.
#' @param ... Arguments of keras3's `fit()`:
#'   - `x`, `validation_data` and `validation_split` (drawn at random, as in
#'     `gpu_dataset(validation = )`); for rows that are not a dataset yet, also `sample_weight`,
#'     `class_weight` and `shuffle`;
#'   - `initial_epoch`: epochs that an earlier training has done (0). Callbacks, schedules and the
#'     history count on from there, up to `epochs`;
#'   - `steps_per_epoch`: steps of an epoch; `NULL` for all rows. The next epoch goes on where one
#'     ended, and the last epoch of a pass over the rows has the steps that are left, as in Keras;
#'   - `validation_freq`: the number of epochs between validations (1), or `list(5, 8)` for the
#'     epochs to validate;
#'   - `validation_batch_size`: rows per batch of the validation; `NULL` for large batches, see the
#'     section on losses;
#'   - `validation_steps`: batches of a validation, from its first row on; `NULL` for all rows;
#'   - `view_metrics`: has no effect; `plot()` draws the history.
#' @return A `gpu_history`, with `print()`, `summary()`, `plot()`, `as.data.frame()`, `rbind()` and
#'   `ggplot2::autoplot()`. It reports where the model ran, which engine ran it and why, rows per
#'   second, the share of time spent waiting for rows, and the GPU's peak memory. An interrupt
#'   (Ctrl-C, Esc) stops the training after the current call and returns the history so far; the
#'   model keeps what it has learned.
#' @seealso [gpu_batch_size()] and [gpu_learning_rate()] before a training, [gpu_history] after it;
#'   [gpu_cluster()] for several computers; `vignette("training-well", package = "gpukeras")` and
#'   `vignette("more-than-one-gpu", package = "gpukeras")`.
#' @section When something goes wrong:
#' A loss of NaN or infinity, or an update that makes such weights, ends the training and restores
#' earlier weights, at most a second or an epoch old. `$stopped` is then `"non_finite"`, a warning
#' names the epoch and the step, and NaN never reaches the final weights. Under `mixed_float16`,
#' `$skipped_steps` counts the steps that loss scaling skips.
#'
#' When the device runs out of memory, the model returns to its state before the failed step, and
#' the step runs again in smaller parts; `$notes` and `$micro_batch` report it. Layers that work
#' across rows, such as batch normalisation, then see the parts; `$notes` say so of losses that are
#' no means over rows. Models with a custom `train_step()`, and losses with `reduction = "sum"`,
#' cannot be split, so they raise an error.
#'
#' Rows that TensorFlow refuses, such as codes outside of an embedding, are an error of class
#' `gpukeras_error_data`, and the model has its state from before the call. JAX and GPUs
#' check no code, so gpukeras looks at the rows of a model's input, or of a column of it, that an
#' embedding looks up. It cannot see codes that are computed in a layer of your own, or in
#' `ops.take`: check these yourself on JAX.
#' @section Losses:
#' The loss of an epoch is the mean over its rows. With several outputs, the loss of each output is
#' such a mean too: multiplied by the loss weights, they add up to the total. (Keras' own `fit()`
#' returns another number if the last batch is short: it then weighs the losses of the outputs by
#' batches, or by both.)
#'
#' Validation uses large batches because nothing is learned. If the loss or a metric may depend on
#' the batch, validation uses the batch size of the training, as Keras does, and `$notes` say why.
#' So it is with losses and metrics of your own, since no few rows can prove that they are means
#' over rows; with `reduction = "sum"`, masked steps, `ignore_class`, and losses that take 0 for -1
#' (`"hinge"`) or compare rows (`"dice"`, `"tversky"`, `"circle"`); and with a `test_step()` of the
#' model's own. Layers of Keras' own are known to give each row outputs of its own, but for an
#' `axis` that may be that of the rows. Functions and layers of your own are asked: once a model, up
#' to 64 rows run beside other rows and in two sizes of batches. If a row's outputs change, or the
#' layers draw random numbers or count their calls, all batches are Keras'. What mixes rows only if
#' they are rare ones is not found so.
#' @section Several devices:
#' Each device processes its part of every batch and adds its gradients to those of the others
#' (`tf.distribute`). `batch_size` counts the rows of all devices together, so a training on several
#' devices equals that on one except for the order in which numbers are added: the same rows in the
#' same order, also in short last batches, gradients clipped as a whole, and batch normalisation
#' over the whole batch. Random numbers inside the model, such as dropout, differ between devices.
#' `batch_size` must be a multiple of the number of devices. The model is trained in place, as on
#' one device.
#'
#' `engine = "compiled"` and `on_oom = "halve"` need a single device. If a model's loss sums over
#' its rows (`reduction = "sum"`) and the model has regularisers, their loss is added once. Losses
#' that are means over something other than rows, such as unmasked tokens, are averaged over
#' devices. Metrics of your own see whole batches, as on one device, but those of layers, and of
#' models with a `train_step()` of their own, are added up. `$notes` name a loss or a metric that
#' may differ by that from one device.
#' @section Seeds:
#' After `gpu_setup(seed = )`, `keras3::set_random_seed()` or `tensorflow::set_random_seed()`,
#' nothing that changes results is decided by a clock, by what an earlier training measured, or by
#' what XLA's folder holds: in `gpu_fit()`, [gpu_fit_many()], [gpu_tune()] and parsnip's engine
#' alike. `"auto"` then is `"repeatable"`: the graph loop (`"compiled"` for long trainings of small
#' dense layers on a CPU, see above; on JAX as ever), and Keras' own function where that cannot
#' train the model. The batch size that [gpu_batch_size()] found is not used unless you give it. The
#' same script, run anew on the same computer, device and number of threads, with the same versions
#' of the packages, ends with the same weights, bit for bit, on a CPU. On a GPU, kernels add numbers
#' up in varying order: there it takes `gpu_setup(deterministic = TRUE)` too. Another computer,
#' another engine or other versions round otherwise. What you limit by time (`seconds` of
#' [gpu_tune()]) or interrupt depends on the clock.
#'
#' Where this costs speed, the history says so: an engine that you name repeats too, and
#' `"compiled"` is often faster. `engine = "repeatable"` is for sessions without such a seed: R's
#' [set.seed()] seeds [gpu_dataset()] and [gpu_mlp()], but gpukeras cannot see that it was called.
#' @section Averages:
#' With `ema`, average = m * average + (1 - m) * weight after each step, where m is at most (1 + t)
#' / (10 + t) at step t, so that a short training is not an average of its first weights (Polyak and
#' Juditsky 1992; TensorFlow's `ExponentialMovingAverage`). Validation, early stopping and functions
#' between epochs see the averages, and so would Keras' BackupAndRestore, which is refused beside
#' `ema`: `checkpoint` saves the weights too.
#' @section Checkpoints:
#' A checkpoint holds the weights, the optimizer, the epoch and batch, the random state, schedule,
#' averages, early stopping and the history, with checksums, in a `.npz` file that `numpy.load()`
#' reads too. It is written under another name and then renamed, so a process that is killed at any
#' moment leaves a valid checkpoint. With `gpu_setup(seed = , deterministic = TRUE)`, the resumed
#' training ends on a CPU with the same weights, bit for bit.
#'
#' If the folder holds another training (model, rows, batch size, seed, schedule), `gpu_fit()`
#' raises an error, so give [gpu_dataset()] a `seed`, or call `set.seed()` before it. You may
#' increase `epochs`, unless the schedule spans them. If a checkpoint is damaged, `gpu_fit()` skips
#' it and uses the previous one. If saving fails, for example on a full disk, training continues and
#' `$notes` reports it. Keras callbacks keep no state of their own: they start again.
#' @section Queues:
#' Slurm at the time limit of a job, Kubernetes and the owners of spot instances send a signal, wait
#' for a grace period, and kill the process. With `checkpoint`, the signals SIGTERM and SIGUSR1 end
#' a training after the call in progress, which takes a fraction of a second, or within the
#' validation: it is saved, and a session that is not interactive ends with the exit status 75
#' (`EX_TEMPFAIL` of sysexits.h: try again). When the job runs again, the same script goes on there.
#' In an interactive session, an error of class `gpukeras_error_preempted` is raised. In a
#' [gpu_cluster()] all workers end at the same step if one of them gets the signal.
#'
#' With `grace_s`, a save is measured before the first step. If twice its time and two seconds are
#' more than that, the training does not start, with an error that says how long it takes;
#' `checkpoint` of [gpu_fit_many()] and `folder` of [gpu_tune()] take it as well. The
#' first call, in which the model is traced and compiled, and a step that takes long are not cut
#' short: after the kill, the last checkpoint serves.
#'
#' Outside of such a training, the signals do what they always do to R: SIGTERM ends it without
#' cleaning up (status 143 in a shell), and SIGUSR1 saves the workspace and ends it. So let the
#' queue send SIGTERM, and run a job again for 75 and for 143. [gpu_tune()] with `folder` and
#' [gpu_fit_many()] with `checkpoint` are saved by these signals in the same way. Recipes for
#' Slurm and for Kubernetes are in `vignette("more-than-one-gpu", package = "gpukeras")`. There are
#' no such signals on Windows.
#' @section Errors:
#' `gpukeras_error_model` for a model that is not compiled or does not fit the data,
#' `gpukeras_error_data` for labels out of the output's range, `gpukeras_error_out_of_memory`,
#' `gpukeras_error_checkpoint`, `gpukeras_error_preempted`.
#'
#' A save that fails while the training runs (a full disk, a quota, a disk that became read-only)
#' does not end it. A warning of Python says so at once, and one of class
#' `gpukeras_warning_checkpoint` at the end, with the first reason (`$unsaved` of the history).
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' model <- gpu_mlp(train, units = c(16, 8))
#' schedule <- schedule_one_cycle(max_rate = 0.01)
#' fit <- gpu_fit(model, train, epochs = 20, schedule = schedule, verbose = FALSE)
#' fit
#' plot(fit)
#'
#' # Stops when the validation loss stops improving, and resumes there if the process ends earlier.
#' gpu_fit(
#'   gpu_mlp(train, seed = 1), train,
#'   epochs = 20, early_stopping = 5, checkpoint = tempfile("run-"), verbose = FALSE,
#'   on_epoch_end = function(epoch, metrics) if (metrics[["val_loss"]] < 5) "stop"
#' )
#' @export
gpu_fit <- function(model, data, y = NULL, epochs = 10, validation = NULL, batch_size = "auto",
                    engine = "auto", schedule = NULL, clip_norm = NULL, clip_value = NULL,
                    clip_global_norm = NULL, ema = NULL, early_stopping = NULL, checkpoint = NULL,
                    tensorboard = NULL, track = NULL, monitor = FALSE, devices = NULL,
                    rate_scaling = "none", on_oom = "halve", callbacks = list(),
                    on_epoch_end = NULL, optimizer = NULL, loss = NULL, metrics = NULL,
                    verbose = TRUE, ...) {
  words <- check_keras_arguments(list(...), c(
    names(keras_row_arguments), keras_fit_arguments, "x", "validation_data", "view_metrics"
  ))
  refuse_marshalled(model)
  model <- check_model(model)
  given <- if (missing(data)) NULL else data
  listener <- progress_listener(verbose)
  rows <- as_fit_rows(given, y, epochs, validation, words, model, verbose)
  data <- rows$data
  options <- list(
    epochs = rows$epochs, engine = engine, schedule = as_options(schedule), clip_norm = clip_norm,
    clip_value = clip_value, clip_global_norm = clip_global_norm, ema = ema,
    early_stopping = as_options(early_stopping), checkpoint = expand_folder(checkpoint),
    tensorboard = expand_folder(tensorboard), on_oom = on_oom, rate_scaling = rate_scaling
  )
  options <- c(options, rows$options)
  hooks <- as_callbacks(callbacks, on_epoch_end)
  tell_counting(data, verbose)
  tracking <- open_tracking(track, model, options)
  # The listener handles interrupts between two calls of the engine, so that the history is kept.
  record <- function(report) fit_with_tracking(tracking, fit_with_monitor(monitor, report))
  warn_stopped(ending_preempted(record(suspendInterrupts(call_core("fit", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_validation(rows$validation, data, model, verbose),
    batch_size = as_batch_size(batch_size),
    callbacks = c(hooks$keras, tracking$callback), functions = hooks$functions,
    on_event = listener, devices = as_devices(devices),
    compiling = as_compiling(optimizer, loss, metrics, model)
  ))))))
}

# The history of a training, with the samples of a monitor. `report`, the training, is evaluated
# here.
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
as_validation <- function(validation, data, model = NULL, verbose = TRUE, call = caller_env()) {
  if (is.null(validation)) {
    return(NULL)
  }
  if (is.function(validation) || is_py_dataset(validation)) {
    validation <- gpu_dataset(validation, recipe = data)
  }
  as_dataset(
    validation, data$handle, data,
    arg = "validation", model = model, verbose = verbose, call = call
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

# Warns about a training that ended early; not an error, because its history and model are valid.
warn_stopped <- function(history) {
  if (identical(history$stopped, "non_finite")) {
    why <- grep("^Stopped: ", unlist(history$notes), value = TRUE)
    warn_gpukeras(why, "non_finite")
  }
  if (nzchar(history$unsaved %||% "")) {
    kept <- if (nzchar(history$checkpoint)) "An earlier checkpoint is kept." else "None is there."
    warn_gpukeras(
      c(paste("The training was not saved to its end:", history$unsaved), i = kept), "checkpoint"
    )
  }
  history
}
