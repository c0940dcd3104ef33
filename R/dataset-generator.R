# Streamed rows: functions that return batches, and tf.data datasets. Python calls a user's function
# on R's main thread, between two steps; api-conditions.R handles its errors.

#' @param steps For a function: its calls per epoch, or `NULL` for a function that ends its epochs
#'   itself. For a `tf.data.Dataset`: batches per epoch, or `NULL` for all of it. Required if there
#'   is no end. Where the rows end earlier, the epoch is shorter, with a warning, as in Keras.
#' @section Functions:
#' A function without arguments returns one batch per call: `list(x, y)`, `list(x, y, weights)` or
#' `list(x)`. `x` is a data frame, a matrix (also a sparse one), an array, or a named list of these
#' for several inputs. `y` takes the same values as the labels of other data, or a named list for
#' several outputs, and so do `weights`. If you pass the function to [gpu_fit()] directly, it may
#' leave out the names: the order is that of the model. All batches have the columns of the first
#' one. The number of rows may vary, and so may the shape of a row along dimensions that the model
#' leaves open (`NA` in its input's shape): from the first such batch on, Keras' own function trains
#' each batch as it arrives. `NULL`, or the end value of an exhausted coro generator, ends an epoch;
#' with the next call the function must start again. With `steps` the function need not end.
#'
#' Batches are used as they arrive, unless you give `batch_size`: then their rows are batched again.
#' The function is called between two steps, never inside one, until a block of batches is full; on
#' a GPU, that is while the device works on the previous block.
#'
#' With `cache = TRUE` the function is called for one epoch, when the dataset is made. Its rows stay
#' in memory, or in a scratch file if there are many, and then behave like those of an array: they
#' support a full shuffle, a `validation` share, `na = "impute"` and `class_weight`. Otherwise the
#' function is called in each epoch, so it may return different rows. Their order is then that of
#' the function, unless you shuffle `buffer` rows; levels, means and standard deviations come from
#' the first batch.
#'
#' An error in the function reaches you unchanged: with its class, message and call, and a traceback
#' for [rlang::last_trace()].
#' @rdname gpu_dataset
#' @usage \method{gpu_dataset}{function}(x, y = NULL, ..., steps = NULL)
#' @export
gpu_dataset.function <- function(x, y = NULL, ..., steps = NULL) { # nolint: object_name_linter.
  check_no_labels(y)
  options <- list(...)
  caller <- batch_function(x, zones_of(options$recipe), options$scale)
  features <- list(kind = "generator", call = caller$call, steps = steps)
  gpu_dataset.default(new_source(features, scale = caller$frame), ...)
}

#' @param batched Whether the elements of a `tf.data.Dataset` are batches; `NULL` derives it from
#'   their shapes.
#' @section tf.data:
#' A `tf.data.Dataset`, and so a dataset of the package tfdatasets, has elements `x`, `(x, y)` or
#' `(x, y, weights)`, each a tensor of numbers. If its elements are named, map it to such tuples.
#' For several inputs or outputs, `x` or `y` is a dict (a named list) of tensors, or a tuple in the
#' model's order; `weights` can be one in the same way as `y`. If `y` is a scalar, elements are
#' rows; if the first dimension is unknown, or `x` and `y` share it, they are batches. TensorFlow
#' itself combines them into blocks of batches. The order is that of the dataset, unless you shuffle
#' `buffer` rows; `cache = TRUE` keeps all rows, as for a function. With `steps`, the next epoch
#' continues where the previous one ended.
#'
#' Batches of text, ragged batches and batches whose shape varies, such as those of
#' `padded_batch()`, are passed to Keras' own function as they are, in any structure; options that
#' need rows of one shape raise an error. Such a batch is a call of its own. Many batches run in a
#' call if all rows have one length, as those of `timeseries_dataset_from_array()`, also where the
#' pipeline does not tell it: until a batch has another. Where padding to one length
#' (`padded_shapes` of `padded_batch()`) is too much, `bucket_by_sequence_length()` of tf.data makes
#' batches of rows of similar length: they remain a call each, with less padding.
#'
#' An R function in `tf$py_function()` runs on R's main thread and needs reticulate 1.40 or newer.
#' Such a dataset makes elements only on request, so that the function does not run while TensorFlow
#' traces a training step. Leave out `prefetch()` and `num_parallel_calls` in that pipeline.
#' @section Texts:
#' A model that takes text, with its own `TextVectorization` or `StringLookup` layer, gets it from a
#' character matrix (one text per column), from a `tf.data.Dataset`, or from a data frame with
#' `encode = "none"`: if all columns hold texts, they are one input; otherwise each column is an
#' input with its name. In `gpu_fit(model, list(x, y))`, gpukeras detects such a model by itself.
#' Texts stay in the computer's memory, XLA cannot compile such a model, and the rest of a step runs
#' on the device.
#' @rdname gpu_dataset
#' @export
gpu_dataset.tensorflow.python.data.ops.dataset_ops.DatasetV2 <- function( # nolint
    x, y = NULL, ..., steps = NULL, batched = NULL) {
  check_no_labels(y)
  gpu_dataset.default(new_source(tf_features(x, steps, batched)), ...)
}

#' @section PyDataset:
#' A `PyDataset` of keras3 gives a batch a call, `x`, `(x, y)` or `(x, y, weights)`, in its own
#' order. An epoch has its `num_batches`, or `steps`. Its methods run on R's main thread, one after
#' the other, whatever its `workers`.
#' @rdname gpu_dataset
#' @export
gpu_dataset.keras.src.trainers.data_adapters.py_dataset_adapter.PyDataset <- function( # nolint
    x, y = NULL, ..., steps = NULL) {
  check_no_labels(y)
  features <- list(kind = "py_dataset", dataset = x, steps = steps)
  gpu_dataset.default(new_source(features), ...)
}

is_py_dataset <- function(x) {
  inherits(x, "keras.src.trainers.data_adapters.py_dataset_adapter.PyDataset")
}

# Created by tfdatasets, by keras3's *_dataset_from_directory(), or in Python.
is_tf_dataset <- function(x) {
  inherits(x, "tensorflow.python.data.ops.dataset_ops.DatasetV2")
}

tf_features <- function(x, steps = NULL, batched = NULL) {
  list(kind = "tfdata", dataset = x, steps = steps, batched = batched)
}

check_no_labels <- function(y, call = caller_env()) {
  if (!is.null(y)) {
    abort_gpukeras(
      "`y` cannot be given beside `x`, which makes the labels itself.",
      code = "spec", hint = "The function or dataset gives x and y together.", arg = "y",
      call = call
    )
  }
}

# The function that Python calls for each batch, and whether `x` is a data frame. The first batch is
# made at once to find out, and kept for Python's first call.
batch_function <- function(f, zones = list(), scale = NULL, call = caller_env()) {
  parts <- attr(f, "parts", exact = TRUE)
  first <- as_batch(f(), 1, 1, zones, call, scale, parts)
  frame <- identical(first$features$kind, "columns")
  zones <- utils::modifyList(recorded_zones(first$features), zones)
  waiting <- TRUE
  give <- function(epoch, batch) {
    if (waiting) {
      waiting <<- FALSE
      return(first)
    }
    first <<- NULL
    as_batch(f(), epoch, batch, zones, NULL, scale, parts)
  }
  list(call = function(epoch, batch) keep_condition(give(epoch, batch)), frame = frame)
}

# The value of one call of the user's function as arguments of the core; NULL at the end of an
# epoch. Unnamed lists of inputs and outputs get the model's names, in its order.
as_batch <- function(value, epoch, batch, zones, call, scale = NULL, model = NULL) {
  if (is.null(value) || identical(value, quote(.__exhausted__.))) {
    return(NULL)
  }
  rlang::try_fetch(
    {
      check_batch(value, call)
      parts <- split_row_list(value, "x", call)
      if (!is.null(model)) {
        parts$x <- name_parts(parts$x, model, "inputs", call)
        parts$y <- name_parts(parts$y, model, "outputs", call)
        parts$weights <- name_in_order(parts$weights, model, "outputs", call)
      }
      list(
        features = as_features(parts$x, "x", call, zones, scale),
        labels = if (!is.null(parts$y)) as_labels(parts$y, "y", call),
        weights = if (!is.null(parts$weights)) as_weights(parts$weights, call)
      )
    },
    gpukeras_error = function(condition) {
      condition$message <- sprintf("Batch %d of epoch %d: %s", batch, epoch, condition$message)
      condition$batch <- batch
      condition$epoch <- epoch
      rlang::cnd_signal(condition)
    }
  )
}

check_batch <- function(value, call) {
  if (!rlang::is_bare_list(value) || !length(value) %in% 1:3) {
    abort_gpukeras(
      sprintf("The function must give list(x, y) or list(x, y, weights), not %s.", describe(value)),
      code = "data", hint = "NULL ends an epoch.", arg = "x", call = call
    )
  }
}
