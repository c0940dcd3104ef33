# Smaller and faster models: quantization, distillation, separable convolutions.

#' Fewer bits for the weights of a model
#'
#' Quantizes a copy of a model by Keras' own `quantize()`, and measures what was gained and lost.
#' The model given stays as it is.
#'
#' - `"int8"`: whole numbers of 8 bits with a scale for each output. Inputs of a layer are rounded
#'   too, by the largest value of each row as it comes: there is nothing to calibrate.
#' - `"int4"`: whole numbers of 4 bits, with a scale and a zero for each output and block of inputs.
#'   Inputs stay as they are.
#' - `"float8"`: weights stay in float32, on disk and in memory, and each product is computed in 8
#'   bits, on GPUs that can (NVIDIA H100 and later). Its scales are calibrated in one pass over the
#'   training rows of `data`, in which the weights stay.
#'
#' Keras can quantize dense layers (also those that attention is made of) and embeddings (not to
#' `"float8"`). What stays as it is, convolutions for one, is listed in `$listed`. Fewer bits need
#' not be faster: rounding takes time too, which on a CPU is often more than what it saves.
#'
#' @param model A Keras 3 model that has weights.
#' @param mode `"int8"`, `"int4"` or `"float8"`.
#' @param data A [gpu_dataset()] or `list(x, y)` to measure on, and for `"float8"` to calibrate on.
#'   `NULL` measures size and speed alone.
#' @param exclude Names of layers that stay as they are.
#' @param max_drop By how much the metric may get worse, in its own unit: 0.01 is one point of
#'   accuracy. If it gets worse by more, that is an error, and there is no new model. `NULL` allows
#'   everything.
#' @param metric Name of the metric that `max_drop` is about; `NULL` for the first that is not the
#'   loss. Of metrics such as accuracy or AUC more is better, of losses and errors less.
#' @param validation Rows to evaluate on, as in [gpu_fit()]; `NULL` for those that `data` kept
#'   apart, or all of its rows if it kept none.
#' @param batch_size Rows of the batch that is timed besides a single row; `NULL` for the data's
#'   own, or 32.
#' @return A [gpu_compression] with the new model in `$model`.
#' @section Errors:
#' `gpukeras_error_compression` if the metric gets worse by more than `max_drop`,
#' `gpukeras_error_model` if none of the layers can be quantized, or the model cannot be copied.
#' @seealso [gpu_distill()] and [gpu_separable()].
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
    mode = mode, exclude = as.list(unname(exclude)), max_drop = max_drop, metric = metric,
    batch_size = batch_size
  )
  new_gpu_compression(call_core("quantize", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_measured_on(validation, data)
  )))
}

#' A small model that learns from a large one
#'
#' Trains a student on the labels and on what its teacher says of the same rows (Hinton et al.
#' 2015): which of the wrong classes is the least wrong one is more than a label tells.
#'
#' The student's loss is `alpha` times its own loss plus `1 - alpha` times its distance from the
#' teacher. For classes that is the Kullback-Leibler divergence of both distributions, softened by
#' the temperature T and multiplied by T^2; models may end in probabilities (a softmax or a sigmoid)
#' or in logits, as their loss says. For numbers it is the student's own loss with what the teacher
#' says as labels. Weights of rows count in both parts. Losses and metrics of validation rows are
#' the student's own.
#'
#' Keras' own `keras.distillation.Distiller` is not used: it takes probabilities for logits, leaves
#' out weights of rows and regularisers, and its teacher stays frozen.
#'
#' @section When it pays:
#' Where the teacher knows more than the labels of these rows tell, and there is time. A teacher
#' that is no better than the student can be does harm, and softened classes are learned slowly
#' (Beyer et al. 2022): after a few epochs a student is often worse than one trained alone. Train
#' the same student alone for as long, and compare; `vignette("a-model-that-fits")` does.
#'
#' @section A student from its teacher:
#' Without a `student` one is made like the teacher, with `width` times the units and filters of
#' each hidden layer, and new weights. Layers whose outputs are added or multiplied stay equally
#' wide; those that meet an input, or a layer that gpukeras does not know, keep their width. That
#' works for sequential and functional teachers.
#'
#' @param teacher A trained, compiled Keras 3 model. It stays as it is.
#' @param data The [gpu_dataset()] to learn from, encoded as the teacher's (`recipe = teacher`), or
#'   `list(x, y)`.
#' @param student A Keras 3 model with the outputs of its teacher. A copy of it is trained, from its
#'   weights on, and it stays as it is; the copy is compiled as its teacher, unless the student is
#'   compiled. `NULL` makes one.
#' @param temperature T, above 0: more shows more of what the teacher thinks of the wrong classes.
#' @param alpha Share of the labels' loss: 0 is the teacher alone, 1 the labels alone.
#' @param width Share of the teacher's units and filters, between 0 and 1.
#' @param epochs Passes over the training rows.
#' @param ... Further arguments of [gpu_fit()] by name: `engine`, `schedule`, `clip_norm`,
#'   `clip_value`, `clip_global_norm`, `ema`, `early_stopping`, `checkpoint`, `tensorboard`,
#'   `on_oom`.
#' @inheritParams gpu_quantize
#' @param max_drop By how much the student's metric may be worse than the teacher's; see
#'   [gpu_quantize()].
#' @param verbose Whether progress is shown, as in [gpu_fit()].
#' @return A [gpu_compression] with the student in `$model`; "before" is the teacher.
#' @section Errors:
#' `gpukeras_error_compression` if the student is worse by more than `max_drop`,
#' `gpukeras_error_model` if its outputs are not those of its teacher.
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
  new_gpu_compression(suspendInterrupts(call_core("distill", list(
    teacher = teacher, data = data$handle, options = check_no_na_options(options),
    student = if (!is.null(student)) check_model(student),
    validation = as_measured_on(validation, data), on_event = progress_listener(verbose)
  ))))
}

#' Separable convolutions in place of others
#'
#' Replaces the one- and two-dimensional convolutions of a model by a depthwise and a pointwise one
#' each (Howard et al. 2017), where that takes fewer FLOPs. The new layers begin with the weights
#' that are nearest to the old kernels (a singular value decomposition for each channel), and are
#' then fine-tuned. The model given stays as it is.
#'
#' Most models need the fine-tuning: one filter for each channel keeps but a part of a kernel
#' (`$layers` says how much). Time falls by less than FLOPs, as depthwise convolutions are bound by
#' memory.
#'
#' @param model A sequential or functional Keras 3 model that has weights; compiled, where there is
#'   `data`.
#' @param data A [gpu_dataset()] or `list(x, y)` to fine-tune and measure on; `NULL` does neither.
#' @param rank Filters for each channel: more are nearer to the old layer, and cost more.
#' @param epochs Passes over the training rows; 0 for none.
#' @inheritParams gpu_quantize
#' @inheritParams gpu_distill
#' @return A [gpu_compression] with the new model in `$model`, and in `$layers` the FLOPs of each
#'   layer before and after.
#' @section Errors:
#' `gpukeras_error_compression` if the metric gets worse by more than `max_drop`,
#' `gpukeras_error_model` if no convolution gains.
#' @references Howard, A. G. et al. (2017). MobileNets: efficient convolutional neural networks for
#'   mobile vision applications. *arXiv* 1704.04861. \doi{10.48550/arXiv.1704.04861}
#' @seealso [gpu_cost()] says where it would pay.
#' @examplesIf gpukeras:::can_run_examples()
#' images <- array(runif(60 * 8 * 8 * 8), c(60, 8, 8, 8))
#' train <- gpu_dataset(images, factor(rep(c("a", "b"), 30)), validation = 0.2, seed = 1)
#' keras <- reticulate::import("keras")
#' model <- keras$Sequential(list(
#'   keras$Input(c(8L, 8L, 8L)),
#'   keras$layers$Conv2D(16L, 3L, activation = "relu"),
#'   keras$layers$Flatten(),
#'   keras$layers$Dense(1L, activation = "sigmoid")
#' ))
#' model$compile("adam", "binary_crossentropy", metrics = list("accuracy"))
#' small <- gpu_separable(model, train, epochs = 1, verbose = FALSE)
#' small$layers
#' @export
gpu_separable <- function(model, data = NULL, rank = 1, epochs = 5, ..., exclude = NULL,
                          max_drop = NULL, metric = NULL, validation = NULL, batch_size = NULL,
                          verbose = TRUE) {
  model <- check_model(model)
  data <- as_measured(data)
  options <- list(
    rank = rank, epochs = epochs, fit = fit_options(...), exclude = as.list(unname(exclude)),
    max_drop = max_drop, metric = metric, batch_size = batch_size
  )
  new_gpu_compression(suspendInterrupts(call_core("separate", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_measured_on(validation, data), on_event = progress_listener(verbose)
  ))))
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
