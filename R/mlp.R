#' A first Keras model that fits a dataset
#'
#' Builds a compiled multilayer perceptron whose input and output fit the data. The output is one
#' linear unit for numbers (mean squared error), one sigmoid unit for two classes (binary
#' cross-entropy), and a softmax for more classes (sparse categorical cross-entropy). For numbers,
#' the output is rescaled by the mean and standard deviation of the training labels, so that the
#' model learns standardised labels and predicts in their own unit. Arrays of higher rank are
#' flattened.
#'
#' Labels that could mean something else are told by a message, and what only a family takes chooses
#' one:
#'
#' * Survival times, `Surv()`, have the family `"cox"`, and are refused where there is none: beside
#'   other outputs, and by [gpu_fit()] with a loss that takes numbers.
#' * An ordered factor is learned as classes; the family `"ordinal"` uses its order.
#' * Several columns are numbers, also two of counts (`"binomial"` takes them as successes and
#'   failures), a column above 0 beside one of 0 and 1 (`"cox"`, `"discrete_time"`), and columns of
#'   0 and 1 (`"multi_label"`).
#' * Counts, shares and positive numbers are numbers, without a message: `"poisson"`,
#'   `"negative_binomial"`, `"beta"` and `"gamma"` are their families.
#'
#' If the data has several inputs, each input has its own branch: one layer with as many units as
#' the first hidden layer. The hidden layers combine all branches. Each of several outputs has its
#' own head, with the loss and the metric for its labels.
#'
#' @param data A [gpu_dataset()] with labels.
#' @param units Units of each hidden layer; `integer()` is none, which makes a linear model.
#' @param activation Keras activation of the hidden layers.
#' @param dropout Share of each hidden layer's outputs that training drops, from 0 to 0.99.
#' @param batch_norm Whether to batch-normalise each hidden layer before its activation.
#' @param penalty L2 penalty: this number times the sum of the squares of the hidden layers' weights
#'   is added to the loss; of the output's weights if there are no hidden layers.
#' @param optimizer Name of a Keras optimizer.
#' @param learning_rate Its learning rate, or `NULL` for Keras' default (0.001 for `"adam"`).
#' @param seed Seed of the initial weights and of dropout; drawn from R's generator by default.
#' @param family The distribution of the labels: a name such as `"poisson"`, a [gpu_family()], or
#'   one of R's families such as `Gamma("log")`. `NULL` chooses by the labels, as above.
#' @return A compiled Keras 3 model: a Python object that keras3 can use like any other model. It is
#'   a `Sequential` model unless there are several inputs or outputs.
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
                    optimizer = "adam", learning_rate = NULL, seed = NULL, penalty = 0,
                    family = NULL) {
  data <- check_dataset(data)
  options <- list(
    units = as_listed(plain_number(units)), activation = activation, dropout = dropout,
    batch_norm = batch_norm,
    penalty = penalty, optimizer = optimizer, learning_rate = learning_rate,
    seed = seed %||% draw_seed(), family = as_family(family)
  )
  model <- call_core("mlp", list(data = data$handle, options = check_no_na_options(options)))
  inform_labels(data, options$family)
  model
}

# Says what a model makes of labels that could mean something else.
inform_labels <- function(data, family = NULL) {
  note <- call_core("explain_labels", list(data = data$handle, family = family))
  if (nzchar(note)) inform_gpukeras(c(i = note), class = "gpukeras_labels")
}

# Says so once a session, where many models are made.
inform_labels_once <- function(code) {
  withCallingHandlers(code, gpukeras_labels = function(condition) {
    text <- conditionMessage(condition)
    if (text %in% the$informed) invokeRestart("muffleMessage")
    the$informed <- c(the$informed, text)
  })
}
