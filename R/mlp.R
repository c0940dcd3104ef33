#' A first Keras model that fits a dataset
#'
#' A compiled multilayer perceptron whose input and output fit the data: one linear unit for
#' numbers (mean squared error; its output is rescaled by the training labels' mean and standard
#' deviation, so that the model learns standardised labels and predicts in their own unit), one
#' sigmoid unit for two classes (binary cross-entropy), a softmax for more (sparse categorical
#' cross-entropy). Arrays of higher rank are flattened.
#'
#' Where the data has several inputs, each has a branch of its own, one layer of as many units as
#' the first hidden layer; the hidden layers work on all of them together. Several outputs have a
#' head each, with the loss and the metric of its labels.
#'
#' @param data A [gpu_dataset()] with labels.
#' @param units Units of each hidden layer.
#' @param activation Keras activation of the hidden layers.
#' @param dropout Share of each hidden layer's outputs that training drops, from 0 to 0.99.
#' @param batch_norm Whether each hidden layer is batch-normalised before its activation.
#' @param penalty Weight decay (L2): the loss gets this number times the sum of the squares of the
#'   hidden layers' weights.
#' @param optimizer Name of a Keras optimizer.
#' @param learning_rate Its learning rate, or `NULL` for Keras' default (0.001 for `"adam"`).
#' @param seed Seed of the initial weights and of dropout; drawn from R's generator by default.
#' @return A compiled Keras 3 model: a Python object, usable with keras3 as any other. It is a
#'   `Sequential` model unless there are several inputs or outputs.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train, units = c(16, 8))
#' model$count_params()
#'
#' parts <- gpu_dataset(
#'   list(mpg, gear = factor(gear)) ~ ., data = mtcars,
#'   inputs = list(
#'     engine = c("cyl", "disp", "hp", "vs", "carb"), rest = c("drat", "wt", "qsec", "am")
#'   )
#' )
#' gpu_mlp(parts)$output_names
#' @export
gpu_mlp <- function(data, units = 64, activation = "relu", dropout = 0, batch_norm = FALSE,
                    optimizer = "adam", learning_rate = NULL, seed = NULL, penalty = 0) {
  data <- check_dataset(data)
  options <- list(
    units = as.list(unname(units)), activation = activation, dropout = dropout,
    batch_norm = batch_norm,
    penalty = penalty, optimizer = optimizer, learning_rate = learning_rate,
    seed = seed %||% draw_seed()
  )
  call_core("mlp", list(data = data$handle, options = check_no_na_options(options)))
}
