# Smaller and faster models: quantization and distillation.

#' Quantize the weights of a model
#'
#' Quantizes a copy of a model with Keras' own `quantize()`, and measures the gains and losses. The
#' original model does not change.
#'
#' - `"int8"`: integers of 8 bits with a scale for each output; layers of float16 compute in float32
#'   in the copy. Inputs of a layer are rounded too,
#'   by the largest value of each row at prediction time, so no calibration is needed.
#' - `"int4"`: integers of 4 bits, with a scale and a zero point for each output and block of
#'   inputs. Inputs are not rounded.
#' - `"float8"`: weights stay in float32, on disk and in memory, and each product is computed in 8
#'   bits, on GPUs that support it (NVIDIA H100 and later). Its scales are calibrated in one pass
#'   over the training rows of `data`, which does not change the weights.
#'
#' Keras can quantize dense layers (also those inside attention layers) and embeddings (not to
#' `"float8"`). `$listed` lists the layers that are not quantized, such as convolutions. Fewer bits
#' need not be faster: rounding takes time too, on a CPU often more than it saves.
#'
#' @param model A Keras 3 model that has weights.
#' @param mode `"int8"`, `"int4"` or `"float8"`.
#' @param data A [gpu_dataset()] or `list(x, y)` to measure on, and for `"float8"` to calibrate on.
#'   `NULL` measures size and speed only.
#' @param exclude Names of layers that do not change.
#' @param max_drop By how much the metric may get worse, in its own unit: 0.01 is one point of
#'   accuracy. If it gets worse by more, an error is raised and there is no new model. `NULL` sets
#'   no limit.
#' @param metric Name of the metric for `max_drop`; `NULL` is the first one that is not a loss.
#'   For metrics such as accuracy or AUC, higher is better; for losses and errors, lower is better.
#'   One of your own says it by its name, such as `"my_error"`.
#' @param validation Rows to evaluate on, as in [gpu_fit()]; `NULL` uses those that `data` holds
#'   out, or all of its rows if it holds out none.
#' @param batch_size Rows of the batch that is timed in addition to a single row; `NULL` uses the
#'   batch size of `data`, or 32.
#' @return A [gpu_compression] with the new model in `$model`.
#' @section Errors:
#' `gpukeras_error_compression` if the metric gets worse by more than `max_drop`,
#' `gpukeras_error_model` if none of the layers can be quantized, or the model cannot be copied.
#' @seealso [gpu_distill()] and [gpu_prune()].
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(Species ~ ., data = iris, validation = 0.2, seed = 1)
#' model <- gpu_mlp(train, units = c(64, 64), seed = 1)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' small <- gpu_quantize(model, "int8", train, max_drop = 0.1)
#' small
#' plot(small)
#' head(gpu_predict(small$model, iris, type = "class"))
#' @export
gpu_quantize <- function(model, mode = "int8", data = NULL, exclude = NULL, max_drop = NULL,
                         metric = NULL, validation = NULL, batch_size = NULL) {
  model <- check_model(model)
  data <- as_measured(data)
  options <- list(
    mode = mode, exclude = as_listed(exclude), max_drop = max_drop, metric = metric,
    batch_size = batch_size
  )
  new_gpu_compression(call_core("quantize", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_measured_on(validation, data)
  )))
}

#' Distill a large model into a small one
#'
#' Trains a student on the labels and on its teacher's predictions for the same rows (Hinton et al.
#' 2015). The teacher's predictions carry more information than the labels: for example, which wrong
#' class is the least wrong.
#'
#' The student's loss is `alpha` times its own loss plus `1 - alpha` times its distance from the
#' teacher. For classes, the distance is the Kullback-Leibler divergence of both distributions,
#' softened by the temperature T and multiplied by T^2. Models may end in probabilities (a softmax
#' or a sigmoid) or in logits, as their loss says. For numbers, the distance is the student's own
#' loss with the teacher's predictions as labels. Row weights count in both parts. Losses and
#' metrics of validation rows are the student's own.
#'
#' gpukeras does not use Keras' own `keras.distillation.Distiller`: it mistakes probabilities for
#' logits, ignores row weights and regularisers, and leaves its teacher frozen.
#' @section When it pays:
#' Distillation helps if the teacher knows more than the labels of these rows show, and if there is
#' time. A teacher that is no better than the student can become does harm, and softened classes are
#' learned slowly (Beyer et al. 2022): after a few epochs, a student is often worse than one trained
#' alone. Train the same student alone for as long, and compare; `vignette("a-model-that-fits")`
#' does so.
#'
#' @section A student from its teacher:
#' Without `student`, gpukeras builds one like the teacher, with `width` times the units and filters
#' of each hidden layer, and new weights. Layers whose outputs are added or multiplied get the same
#' width. Layers whose output is combined with an input, or with a layer that gpukeras does not
#' know, keep their width. Frozen layers and weights, and what they take in, stay as they are.
#' Constraints and regularizers that you have set for single weights are the student's too, but not
#' the zeros of [gpu_prune()]. This works for sequential and functional teachers.
#'
#' @param teacher A trained, compiled Keras 3 model. It does not change.
#' @param data The [gpu_dataset()] to learn from, encoded like the teacher's (`recipe = teacher`),
#'   or `list(x, y)`.
#' @param student A Keras 3 model with the same outputs as its teacher. A copy of it is trained,
#'   starting from its weights; the student itself does not change. If the student is not compiled,
#'   the copy is compiled like the teacher. `NULL` builds a student.
#' @param temperature T, above 0. Higher values give more weight to the teacher's probabilities of
#'   the wrong classes.
#' @param alpha Share of the labels' loss: 0 uses the teacher only, 1 the labels only.
#' @param width Share of the teacher's units and filters, between 0 and 1.
#' @param epochs Passes over the training rows.
#' @param ... Further arguments of [gpu_fit()] by name: `engine`, `schedule`, `clip_norm`,
#'   `clip_value`, `clip_global_norm`, `ema`, `early_stopping`, `checkpoint`, `tensorboard`,
#'   `on_oom`.
#' @inheritParams gpu_quantize
#' @param max_drop By how much the student's metric may be worse than the teacher's; see
#'   [gpu_quantize()].
#' @param verbose Whether to show progress, as in [gpu_fit()].
#' @return A [gpu_compression] with the student in `$model`; "before" is the teacher.
#' @section Errors:
#' `gpukeras_error_compression` if the student is worse by more than `max_drop`,
#' `gpukeras_error_model` if its outputs differ from those of its teacher.
#' @references Hinton, G., Vinyals, O. and Dean, J. (2015). Distilling the knowledge in a neural
#'   network. *arXiv* 1503.02531. \doi{10.48550/arXiv.1503.02531}
#'
#'   Beyer, L. et al. (2022). Knowledge distillation: a good teacher is patient and consistent.
#'   *CVPR*. \doi{10.48550/arXiv.2106.05237}
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(Species ~ ., data = iris, validation = 0.2, seed = 1)
#' teacher <- gpu_mlp(train, units = c(64, 64), seed = 1)
#' fit <- gpu_fit(teacher, train, epochs = 5, verbose = FALSE)
#' small <- gpu_distill(teacher, train, width = 0.1, epochs = 5, verbose = FALSE)
#' small
#' @export
gpu_distill <- function(teacher, data, student = NULL, temperature = 3, alpha = 0.5, width = 0.5,
                        epochs = 100, ..., max_drop = NULL, metric = NULL, validation = NULL,
                        batch_size = NULL, verbose = TRUE) {
  teacher <- check_model(teacher)
  data <- as_training(data)
  options <- list(
    temperature = temperature, alpha = alpha, width = width, epochs = epochs,
    fit = fit_options(...), max_drop = max_drop, metric = metric, batch_size = batch_size
  )
  new_gpu_compression(ending_preempted(suspendInterrupts(call_core("distill", list(
    teacher = teacher, data = data$handle, options = check_no_na_options(options),
    student = if (!is.null(student)) check_model(student),
    validation = as_measured_on(validation, data), on_event = progress_listener(verbose)
  )))))
}

# The rows to measure on: a dataset, list(x, y), or none.
as_measured <- function(data, call = caller_env()) {
  if (!is.null(data)) as_training(data, call = call)
}

# Rows to evaluate on, encoded as `data`; without `data` they must be a dataset.
as_measured_on <- function(validation, data, call = caller_env()) {
  if (is.null(data) && !is.null(validation)) {
    return(check_dataset(validation, "validation", call)$handle)
  }
  as_validation(validation, data, call = call)
}

# Arguments of gpu_fit() in `...`, as the core takes them.
fit_options <- function(..., call = caller_env()) {
  given <- list(...)
  if (length(given) > 0 && (is.null(names(given)) || !all(nzchar(names(given))))) {
    abort_gpukeras(
      "An argument has no name.", code = "spec", call = call,
      hint = "What is passed on to gpu_fit() is named."
    )
  }
  lapply(check_no_na_options(given, call), function(value) expand_folder(as_options(value)))
}
