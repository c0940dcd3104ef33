# The devices of this computer, and TensorFlow's settings for them.

#' Set TensorFlow up
#'
#' Chooses the device, its memory, the number format and more, before TensorFlow starts, and reports
#' its choices and their reasons. Call it before the first model: making a layer or a tensor starts
#' TensorFlow. A setting that comes too late is marked with `!` and the value that is in effect
#' instead.
#'
#' You can call it again: seed, precision (for layers made from then on) and `jit` can change at any
#' time.
#'
#' @param device `"auto"` (a GPU if TensorFlow finds one, otherwise the CPU, with a message),
#'   `"gpu"` (an error without one), `"cpu"`, or one device by its name in [gpu_devices()], such as
#'   `"GPU:1"`; the other GPUs then stay free.
#' @param memory How much of a GPU's memory TensorFlow takes: `"growth"` (only what it needs, so
#'   that other sessions can use the rest), `"all"`, or a number of MiB.
#' @param precision `"auto"` (`"mixed_bfloat16"` from compute capability 8.0, `"mixed_float16"` from
#'   7.0, otherwise `"float32"`, as on cards of 7.5 that have no tensor cores: GTX 16xx, MX450,
#'   T400 to T1200; with several GPUs the weakest decides), or one of these or `"float64"` by name.
#'   Under a mixed precision layers compute in 16 bits: numbers of bfloat16 have 2 to 3 digits,
#'   those of float16 have 3. Give the last layer `dtype = "float32"`, as [gpu_mlp()] does, where
#'   more digits of predictions count.
#' @param tf32 Whether float32 products and convolutions may run on tensor cores, as TF32 with 10 of
#'   the 23 bits of the mantissa. This needs compute capability 8.0. `"auto"` is TensorFlow's
#'   default, which is yes. Use `FALSE` if the digits matter more than the speed.
#' @param jit Whether to compile by XLA. With `"auto"`, [gpu_fit()] measures whether it pays, unless
#'   there is a seed; on a GPU on which this TensorFlow's XLA would crash R, `"auto"` means `FALSE`.
#'   `FALSE` applies to everything that gpukeras runs, whatever `compile(jit_compile = )` says.
#' @param threads Threads on the CPU, within one operation and across operations; `NULL` does not
#'   change them (initially, all cores).
#' @param seed Seed of R, Python, NumPy and TensorFlow. With a seed, no choice that changes results,
#'   such as that of an engine, depends on measured times: the same script repeats a training bit by
#'   bit on a CPU, see the section on seeds of [gpu_fit()]. To repeat a training within a session,
#'   call `gpu_setup()` again before it.
#' @param deterministic Whether TensorFlow uses only deterministic kernels, so that trainings with a
#'   seed repeat on a GPU too. This is slower there, and cannot be switched off again. Without a
#'   seed the seed is 0.
#' @param backend The library that Keras runs on: `"tensorflow"`, `"jax"`, or `"auto"` for the one
#'   that Keras is configured with (the variable `KERAS_BACKEND`, or `keras3::use_backend()`). It
#'   cannot change once Keras has started. See the section on JAX.
#' @param wait `NULL`, or the GiB of a card that must be free: waits until a card has them and
#'   nobody computes on it, and reserves it; or a list of `free_gib` (1) and `seconds` (3600, after
#'   which it gives up). See the section on shared cards.
#' @section Shared cards:
#' Where no scheduler lends the cards of a computer, `wait` lets sessions take turns. It chooses
#' among the cards that `device` allows, and reserves one to the end of the R process, in whatever
#' way that ends. Other sessions wait for it with `wait`, too; sessions without `wait` and other
#' programs know nothing of reservations, but what the driver tells of them counts: a card on which
#' another process computes is not free.
#'
#' With a number of MiB as `memory`, sessions share a card: each reserves its MiB and 512 more,
#' which CUDA itself takes, TensorFlow keeps to the limit, and a further session waits until its own
#' part is free. What the others have reserved and do not use yet is not free.
#'
#' Meanwhile messages say who holds which card: your own processes by their number, those of others
#' as "another user's"; only root sees names. After `seconds`, or at an interrupt, an error of class
#' `gpukeras_error_device_busy` says so. Reservations are locked files in `/tmp`, so sessions in
#' containers with a `/tmp` of their own do not see them. There is no `wait` on Windows. This was
#' tested with stand-ins for the driver, and was not run on a GPU yet.
#' @section JAX:
#' On JAX, models train, evaluate, predict, are saved and are loaded, and give the same numbers as
#' Keras' own `fit()` on JAX; on a computer without TensorFlow too. Rows come from data frames,
#' matrices, files of numbers and R functions. Schedules, clipping, averages, early stopping,
#' checkpoints, callbacks, half precision and the searches [gpu_batch_size()] and
#' [gpu_learning_rate()] work, and XLA's programs are kept between sessions.
#'
#' If TensorFlow is installed too, it does for JAX, on the CPU: reading image files, texts, TFRecord
#' files and tf.data pipelines, and writing the TensorBoard files of [gpu_fit()]; and
#' [gpu_profile()] reads the kernels of JAX's trace. Without it, a profile has times without
#' kernels.
#'
#' An error of class `gpukeras_error_backend` names what needs Keras on TensorFlow, and what to do
#' instead: models of texts, tf.data pipelines of texts or of rows whose shape varies, `map` of
#' [gpu_dataset()], several devices, [gpu_cluster()], and the formats of [gpu_export()] other than
#' StableHLO. This has run on CPUs only.
#' @section Errors:
#' `gpukeras_error_no_device` for a device that does not exist, `gpukeras_error_device_busy` if no
#' card was free in time.
#' @return A `gpu_setup` object, a list with `device`, `precision`, `settings`
#'   (a data frame: `name`, `value`, `status`, `reason`), `already_started` and
#'   `notes` (settings that came too late, CUDA libraries that gpukeras loaded
#'   before TensorFlow). The status is `"applied"`, `"unchanged"`, `"too late"` or
#'   `"not needed"`.
#' @export
#' @examplesIf gpukeras:::can_run_examples()
#' gpu_setup(seed = 1)
#'
#' # Fails if no GPU can be used, whereas "auto" takes the CPU and says so.
#' try(gpu_setup(device = "gpu"))
gpu_setup <- function(device = "auto", memory = "growth", precision = "auto", jit = "auto",
                      threads = NULL, seed = NULL, deterministic = FALSE, tf32 = "auto",
                      backend = "auto", wait = NULL) {
  check_flag(deterministic)
  seed <- plain_number(seed)
  if (!identical(jit, "auto")) {
    check_flag(jit)
  }
  if (!identical(tf32, "auto")) {
    check_flag(tf32)
  }
  options <- list(
    device = device, memory = memory, precision = precision, jit = jit,
    threads = threads, seed = seed, deterministic = deterministic, tf32 = tf32, backend = backend,
    wait = wait, on_wait = waiting_listener()
  )
  record <- suspendInterrupts(call_core("setup", check_no_na_options(options)))
  # Seeds that gpukeras draws for datasets and models are R's.
  if (!is.null(seed) || deterministic) set.seed(as.integer(seed %||% 0L))
  new_gpu_setup(record)
}

# Shows why a card is waited for, each time that the reason changes. TRUE after an interrupt.
waiting_listener <- function() {
  before <- ""
  listen <- interruptible(function(event) {
    if (!identical(event$reason, before)) inform_gpukeras(paste("Waiting:", event$reason))
    before <<- event$reason
  })
  function(reason) listen(list(kind = "card", reason = reason))
}

new_gpu_setup <- function(record) {
  settings <- records_frame(record$settings, c("name", "value", "status", "reason"))
  settings$value <- vapply(
    record$settings, function(setting) format_value(setting$value), character(1)
  )
  record$settings <- settings
  new_result(record, "gpu_setup")
}

#' @export
format.gpu_setup <- function(x, ...) {
  marks <- c(applied = cli::symbol$tick, `too late` = "!")
  marks <- ifelse(
    x$settings$status %in% names(marks), marks[x$settings$status], cli::symbol$bullet
  )
  late <- x$settings$status == "too late"
  value <- paste0(ifelse(late, "still ", ""), x$settings$value)
  reason <- paste0(ifelse(late, "too late: ", ""), x$settings$reason)
  c(
    sprintf("gpukeras uses %s in %s", x$device, x$precision),
    sprintf("%s %s: %s (%s)", marks, x$settings$name, value, reason),
    if (length(x$notes) > 0) paste("!", x$notes)
  )
}

#' @export
as.data.frame.gpu_setup <- function(x, ...) {
  x$settings
}

#' List the devices
#'
#' Neither function starts TensorFlow's devices, so [gpu_setup()] still works afterwards.
#'
#' @return A data frame with one row per device.
#'
#'   `gpu_devices()`: `name` (such as `"GPU:0"`), `kind`, `label` (the maker's name),
#'   `compute_capability` (such as `"8.6"`, `""` for a CPU), `memory_bytes` (`NA` if not determined)
#'   and `visible` (whether TensorFlow may use it).
#'
#'   `gpu_memory()`: `device`, `current_bytes`, `peak_bytes` and `limit_bytes`. For a GPU, the
#'   memory that TensorFlow holds on it, `NA` before TensorFlow has started; for the CPU, the memory
#'   of this R session.
#' @export
#' @examplesIf gpukeras:::can_run_examples()
#' gpu_devices()
#' gpu_memory()
gpu_devices <- function() {
  columns <- c("name", "kind", "label", "compute_capability", "memory_bytes", "visible")
  frame <- numeric_columns(records_frame(call_core("devices"), columns), "memory_bytes")
  new_result_frame(frame, "gpu_devices")
}

#' @rdname gpu_devices
#' @export
gpu_memory <- function() {
  columns <- c("device", "current_bytes", "peak_bytes", "limit_bytes")
  frame <- numeric_columns(records_frame(call_core("memory"), columns), columns[-1])
  new_result_frame(frame, "gpu_memory")
}

#' @export
format.gpu_devices <- function(x, ...) {
  format_frame(x)
}

#' @export
format.gpu_memory <- format.gpu_devices

#' Run code on a device
#'
#' Turns soft placement off: an operation that cannot run on the device is an error, whereas
#' TensorFlow would silently move it to the CPU. Starts TensorFlow.
#'
#' @param device A device by its name in [gpu_devices()], `"gpu"` for the first GPU, or `"cpu"`. If
#'   it does not exist, an error of class `gpukeras_error_no_device` is raised.
#' @param code Code to run there.
#' @return The value of `code`.
#' @export
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' with_device("cpu", gpu_fit(gpu_mlp(train), train, epochs = 1, verbose = FALSE))
with_device <- function(device, code) {
  check_string(device)
  handle <- call_core("enter_device", list(device = device))
  on.exit(call_core("exit_device", list(handle = handle)), add = TRUE)
  code
}
