# How long permutation importance takes: gpu_importance() against a loop that shuffles a column and
# predicts, as iml, vip and DALEX do, from R. Both compute the same: 20 columns, 10 permutations.
#
#     R_LIBS=.rlib RETICULATE_PYTHON=.venv/bin/python Rscript python/benchmarks/bench_importance.R
#
# Prints seconds, the median of three, for several numbers of rows. Each way runs once before.
suppressMessages(library(gpukeras))

columns <- 20
repeats <- 10

make_rows <- function(rows) {
  set.seed(1)
  frame <- as.data.frame(matrix(rnorm(rows * columns), rows))
  frame$y <- frame$V1 + sin(frame$V2) + 0.1 * rnorm(rows)
  frame
}

seconds <- function(code, times = 3) {
  each <- vapply(seq_len(times), function(once) system.time(code())[["elapsed"]], 0)
  stats::median(each)
}

# Shuffles each column in turn; `predict` gives the predictions of a data frame.
shuffle_columns <- function(frame, predict) {
  features <- frame[names(frame) != "y"]
  for (column in names(features)) {
    for (once in seq_len(repeats)) {
      shuffled <- features
      shuffled[[column]] <- sample(shuffled[[column]])
      mean((predict(shuffled) - frame$y)^2)
    }
  }
}

measure <- function(rows) {
  frame <- make_rows(rows)
  train <- gpu_dataset(y ~ ., data = frame, scale = FALSE)
  model <- gpu_mlp(train, units = c(64, 32))
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  with_gpukeras <- function(features) gpu_predict(model, features)
  with_keras <- function(features) as.vector(model$predict(as.matrix(features), verbose = 0L))
  ways <- list(
    gpu_importance = function() gpu_importance(model, frame, repeats = repeats),
    loop_gpu_predict = function() shuffle_columns(frame, with_gpukeras),
    loop_keras_predict = function() shuffle_columns(frame, with_keras)
  )
  gpu_importance(model, frame, repeats = 1)
  with_gpukeras(frame[names(frame) != "y"])
  with_keras(frame[names(frame) != "y"])
  taken <- c(seconds(ways[[1]]), seconds(ways[[2]], 1), seconds(ways[[3]], 1))
  c(rows = rows, stats::setNames(taken, names(ways)), faster = taken[2:3] / taken[1])
}

sizes <- as.numeric(commandArgs(trailingOnly = TRUE))
if (length(sizes) == 0) sizes <- c(1000, 10000, 100000)
print(as.data.frame(t(vapply(sizes, measure, numeric(6)))), digits = 3)
