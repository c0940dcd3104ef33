# Pruning: removes weights or units.

#' Prune the weights or units of a model
#'
#' Prunes a copy of a model while the copy trains, and measures the gains and losses. The original
#' model does not change.
#'
#' By default, single weights of the kernels are set to 0, the smallest first (Han et al. 2015).
#' Only a few are set at a time, so that the others can take over: after step t the share of zeros
#' is `sparsity * (1 - (1 - t / n)^3)` with the cubic schedule of Zhu and Gupta (2017), where n is
#' the last step of the `ramp`. Biases, normalisations, embeddings and the small kernels of
#' depthwise convolutions are not pruned. A file with many zeros compresses well, but the model does
#' not compute less: TensorFlow and JAX multiply by zeros too.
#'
#' With `structured = TRUE`, whole units and filters are removed at once, those whose weights have
#' the smallest norm (Li et al. 2017). A smaller model is built from the rest and trained further.
#' It is smaller and faster everywhere. Layers whose outputs are added or multiplied lose the same
#' units. Layers that produce the output, or feed a layer that gpukeras does not know, keep theirs,
#' and `$listed` gives the reason. This works for sequential and functional models.
#'
#' @section Zeros stay:
#' A pruned model has masks: constraints on its kernels, which Keras' optimizers apply after each
#' step. So its zeros survive [gpu_fit()], Keras' own `fit()` and another `compile()`, and
#' [gpu_save()] saves the masks. A plain `.keras` file contains the zeros, but no masks.
#'
#' @section How much faster:
#' Half the FLOPs means half the time if large matrix products take most of it. For a prediction of
#' one row with a small model, most of the time is TensorFlow's overhead; pooling, normalisation and
#' activations shrink in proportion to the units, not to the products.
#'
#' @param model A compiled Keras 3 model that has been trained.
#' @param data A [gpu_dataset()] or `list(x, y)` to train and measure on. `NULL` requires
#'   `epochs = 0`.
#' @param sparsity Share to remove, between 0 and 1: of the weights in kernels, or, if `structured`,
#'   of the `target`.
#' @param schedule How the share of zeros grows: `"cubic"`, `"linear"`, or `"constant"` (all at the
#'   first step).
#' @param structured Whether to remove whole units and filters.
#' @param epochs Passes over the training rows; 0 prunes the model without training.
#' @param scope `"layer"`: each layer loses the same share. `"global"`: the smallest weights of all
#'   layers together are removed (at most 99 % of each layer), or the units that are worth least for
#'   their layer (at most 90 % of each layer).
#' @param exclude Names of layers, or of models inside the model, that are not pruned.
#' @param frequency Steps between two updates of the masks; `NULL` makes about 50 updates, at most
#'   100 steps apart.
#' @param ramp Part of the training in which the share of zeros grows, above 0 and at most 1. In the
#'   rest the model recovers.
#' @param target If `structured`, what `sparsity` is a share of: `"flops"` of the model (see
#'   [gpu_cost()]), or `"units"` of those that can be removed.
#' @param norm If `structured`, the measure of a unit's worth: the `"l2"` or `"l1"` norm of its
#'   weights, or `"bn"`, the scale of the batch normalisation after it (Liu et al. 2017).
#' @param learning_rate Learning rate of this training; `NULL` uses the model's own.
#' @inheritParams gpu_quantize
#' @param ... Further arguments of [gpu_fit()] by name: `engine`, `clip_norm`, `clip_value`,
#'   `clip_global_norm`, `ema`, `early_stopping` (which ignores epochs in which zeros grow),
#'   `on_oom`.
#' @param verbose Whether to show progress, as in [gpu_fit()].
#' @return A [gpu_compression] with the new model in `$model`. An interrupt ends the training; the
#'   model then has the sparsity reached so far.
#' @section Errors:
#' `gpukeras_error_compression` if the metric gets worse by more than `max_drop`,
#' `gpukeras_error_model` if nothing can be pruned, or the model cannot be copied.
#' @references Zhu, M. and Gupta, S. (2017). To prune, or not to prune: exploring the efficacy of
#'   pruning for model compression. *arXiv* 1710.01878. \doi{10.48550/arXiv.1710.01878}
#'
#'   Han, S., Pool, J., Tran, J. and Dally, W. J. (2015). Learning both weights and connections for
#'   efficient neural networks. *NIPS*. \doi{10.48550/arXiv.1506.02626}
#'
#'   Li, H. et al. (2017). Pruning filters for efficient ConvNets. *ICLR*.
#'   \doi{10.48550/arXiv.1608.08710}
#'
#'   Liu, Z. et al. (2017). Learning efficient convolutional networks through network slimming.
#'   *ICCV*. \doi{10.48550/arXiv.1708.06519}
#' @seealso [gpu_quantize()] and [gpu_distill()].
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(Species ~ ., data = iris, validation = 0.2, seed = 1)
#' model <- gpu_mlp(train, units = c(64, 64), seed = 1)
#' sparse <- gpu_prune(model, train, sparsity = 0.8, epochs = 5, verbose = FALSE)
#' sparse
#'
#' # A smaller model: half the FLOPs, without further training.
#' half <- gpu_prune(model, train, sparsity = 0.5, structured = TRUE, epochs = 0)
#' half$model$count_params() / model$count_params()
#' @export
gpu_prune <- function(model, data, sparsity = 0.8, schedule = "cubic", structured = FALSE,
                      epochs = 5, scope = "layer", exclude = NULL, frequency = NULL,
                      max_drop = NULL, ..., metric = NULL, ramp = 0.75, target = "flops",
                      norm = "l2", learning_rate = NULL, validation = NULL, batch_size = NULL,
                      verbose = TRUE) {
  refuse_marshalled(model)
  model <- check_model(model)
  data <- as_measured(data)
  options <- list(
    sparsity = sparsity, schedule = schedule, structured = structured, epochs = epochs,
    scope = scope, exclude = as_listed(exclude), frequency = frequency, max_drop = max_drop,
    metric = metric, ramp = ramp, target = target, norm = norm, learning_rate = learning_rate,
    batch_size = batch_size, fit = fit_options(...)
  )
  new_gpu_compression(ending_preempted(suspendInterrupts(call_core("prune", list(
    model = model, data = data$handle, options = check_no_na_options(options),
    validation = as_measured_on(validation, data), on_event = progress_listener(verbose)
  )))))
}
