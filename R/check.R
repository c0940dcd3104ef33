# The diagnosis: is the GPU used, and if not, why not.

#' Is the GPU used, and why not?
#'
#' Proves that the GPU computes and trains, or names the one root cause why it does not, with
#' evidence and a fix to copy. The checks run in layers, the cheapest first, and end at the first
#' proven cause:
#'
#' 1. files, environment variables and package metadata, without TensorFlow or JAX;
#' 2. the driver's own libraries, in a separate process;
#' 3. TensorFlow's list of GPUs, in a separate process that logs the loader, and again with one
#'    change at a time: the change that brings the GPU back is the cause;
#' 4. a matrix product, a convolution and a small training with and without XLA, in a separate
#'    process, so that a crash or hang does not affect R;
#' 5. what this session sees, without starting TensorFlow's devices in it.
#'
#' This takes less than a second without a GPU, and some 10 to 20 s with one. `gpu_check()` states a
#' cause only if an error code or such a change proves it; otherwise the result is "not determined",
#' never "no".
#'
#' If Keras runs on JAX (`gpu_setup(backend = "jax")`), the same layers ask JAX: the versions of
#' jax, jaxlib and the CUDA plugin, the devices that JAX starts and what it says if it cannot, and
#' the test computation, with XLA as always on JAX. JAX starts its devices to list them, so that
#' happens in the separate process alone. With `model` and `data` the check then reports where the
#' results of training steps are, the memory that their rows take and the kernels, but not the
#' operations one by one. The causes in JAX were proven on JAX's own CUDA packages over a simulated
#' driver, or on recorded and published messages; the check of JAX was never run on a GPU.
#'
#' @param model A compiled Keras model. With `data`, `gpu_check()` runs and traces some of its real
#'   training steps in this session (which starts TensorFlow's devices). It reports where the
#'   model's weights and operations are, the memory of a step, which kernels ran, and whether the
#'   GPU waits. Weights, optimizer and metrics are restored.
#' @param data A [gpu_dataset()] that fits `model`, or `list(x, y)`. If it is a function that
#'   returns batches, the batches of these steps are not trained on later.
#' @return A `gpu_check` object, a list with
#'   * `verdict`: `"CONFIRMED"` (correct results, memory and kernels of a training step were seen on
#'     the GPU: of `model` if given, otherwise of a small model in a separate process), `"PARTIAL"`
#'     (a part of the training computes on the CPU), `"UNPROVEN"` (the GPU is there, but a part of
#'     the proof is missing) or `"NOT USED"`;
#'   * `cause` and `cause_id`: the root cause, `NA` if none is proven;
#'   * `fix`: how to fix it, or `""`;
#'   * `evidence`: sentences;
#'   * `findings`: a data frame of all checks (`id`, `status`: `"ok"`, `"note"` or `"problem"`,
#'     `title`, `evidence`, `fix`), which `as.data.frame()` returns too. It includes inefficient
#'     uses of the GPU;
#'   * `facts`: a nested list.
#' @section Errors:
#' None for an unusual computer. `gpukeras_error_spec`, `gpukeras_error_model` or
#' `gpukeras_error_data` if `model` cannot be trained on `data`.
#' @seealso [gpu_report()] for a text to paste into a bug report, and
#'   `vignette("is-my-gpu-used", package = "gpukeras")`.
#' @export
#' @examplesIf gpukeras:::can_run_examples()
#' gpu_check()
#'
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' check <- gpu_check(gpu_mlp(train), train)
#' check$facts$use$device
gpu_check <- function(model = NULL, data = NULL) {
  args <- list(session = read_session())
  if (!is.null(model) || !is.null(data)) {
    model <- check_model(model)
    use_recipe(model, NULL) # an error for anything but a Keras 3 model
    args$model <- model
    args$data <- as_training(data)$handle
  }
  new_gpu_check(tryCatch(
    call_core("check", args),
    gpukeras_error_runtime_missing = function(error) error$check %||% rlang::cnd_signal(error)
  ))
}

# Facts that only R has: its Python, its environment variables, the packages loaded.
read_session <- function() {
  variables <- c(
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "KERAS_BACKEND",
    "TF_FORCE_GPU_ALLOW_GROWTH", "XLA_FLAGS", "RETICULATE_PYTHON", "JAX_PLATFORMS",
    "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"
  )
  environment <- Sys.getenv(variables, unset = NA, names = TRUE)
  facts <- list(
    r = as.character(getRversion()),
    tensorflow_r_loaded = isNamespaceLoaded("tensorflow"),
    keras3_r_loaded = isNamespaceLoaded("keras3"),
    rstudio = identical(Sys.getenv("RSTUDIO"), "1"),
    requested_python = Sys.getenv("RETICULATE_PYTHON"),
    python_before = the$python_before,
    forked = is_fork(),
    ldpaths = read_ldpaths(),
    environment = as.list(environment[!is.na(environment)])
  )
  c(read_python(), facts)
}

# The folders that R's own start script puts in front of LD_LIBRARY_PATH, or "".
read_ldpaths <- function(script = file.path(R.home("etc"), "ldpaths")) {
  if (!file.exists(script)) {
    return("")
  }
  # A shell script, read as R's front end does.
  show <- sprintf("unset LD_LIBRARY_PATH; . %s; printf %%s \"$R_LD_LIBRARY_PATH\"", shQuote(script))
  run <- c("-c", shQuote(show))
  folders <- suppressWarnings(system2("sh", run, stdout = TRUE, stderr = FALSE))
  if (length(folders) == 1) folders else ""
}

new_gpu_check <- function(record) {
  findings <- records_frame(record$findings, c("id", "status", "title", "evidence", "fix"))
  new_result(
    list(
      verdict = record$verdict,
      cause = record$cause %||% NA_character_,
      cause_id = record$cause_id %||% NA_character_,
      fix = record$fix,
      evidence = as_chr(record$evidence),
      findings = findings,
      facts = record$facts
    ),
    "gpu_check"
  )
}

#' @export
format.gpu_check <- function(x, ...) {
  shown <- c(
    paste("GPU:", x$verdict),
    paste("Cause:", format_cause(x)),
    paste("Evidence:", x$evidence),
    if (nzchar(x$fix)) paste("Fix:", x$fix)
  )
  others <- x$findings[!x$findings$id %in% x$cause_id, ]
  parts <- c(
    "platform", "hardware", "driver", "python", "tensorflow", "jax", "gpus", "memory", "compute"
  )
  notes <- others$status == "note" & !others$id %in% parts
  shown <- c(shown, format_findings(others[!notes, ]))
  fit_screen(shown, format_findings(others[notes, ]))
}

format_findings <- function(findings) {
  marks <- c(ok = cli::symbol$tick, note = cli::symbol$bullet, problem = cli::symbol$cross)
  titles <- sub("\\.$", "", findings$title)
  found <- sprintf("%s %s: %s", marks[findings$status], titles, findings$evidence)
  fixes <- ifelse(findings$status == "problem", paste("  Fix:", findings$fix), NA)
  listed <- c(rbind(found, fixes))
  listed[!is.na(listed)]
}

# The lines `shown`, then as many notes as fit on a screen.
fit_screen <- function(shown, notes, height = 24) {
  free <- max(0, height - length(shown))
  if (length(notes) <= free) {
    return(c(shown, notes))
  }
  kept <- max(0, free - 1)
  c(shown, notes[seq_len(kept)], format_more(length(notes) - kept, "as.data.frame()", indent = ""))
}

format_cause <- function(x) {
  if (!is.na(x$cause)) {
    return(sprintf("%s [%s]", x$cause, x$cause_id))
  }
  if (x$verdict == "NOT USED") "not determined" else "none found"
}

#' @export
as.data.frame.gpu_check <- function(x, ...) {
  x$findings
}
