# What a user of keras3 types first.

x <- matrix(sin(1:72), 24)
y <- cos(1:24)
w <- (1:24) / 24
frame <- data.frame(a = x[, 1], b = x[, 2], c = x[, 3], y = y)

# The weights of a model after gpu_fit() with these arguments, from equal beginnings.
weights_of <- function(..., scaled = FALSE) {
  import_keras()$utils$set_random_seed(1L)
  model <- afresh(paste("by keras3's words", scaled), function() {
    a_model(3, 1, "linear", loss = "mse", metrics = NULL)
  })
  set.seed(1)
  fit <- gpu_fit(model, ..., batch_size = 8, engine = "keras", verbose = 0)
  weights <- lapply(as_r(model$get_weights()), function(weight) as.vector(as_r(weight)))
  list(weights = weights, val_loss = fit$history$val_loss, epochs = fit$epochs)
}

test_that("rows themselves train as their dataset does", {
  skip_without_tensorflow()
  expected <- weights_of(gpu_dataset(x, y), epochs = 2)
  expect_equal(weights_of(x, y, epochs = 2), expected)
  expect_equal(weights_of(x = x, y = y, epochs = 2), expected)
  expect_equal(weights_of(gpu_dataset(x, y), 2), expected) # where `y` is now, epochs were
  expect_equal(weights_of(list(x, y), 2), expected)
  scaled <- weights_of(gpu_dataset(y ~ ., frame), epochs = 2, scaled = TRUE)
  expect_equal(weights_of(frame, "y", epochs = 2, scaled = TRUE), scaled)
  expect_equal(weights_of(frame[1:3], y, epochs = 2, scaled = TRUE), scaled)
  expect_equal(weights_of(y ~ ., frame, epochs = 2, scaled = TRUE), scaled)
})

test_that("words of keras3 mean what they mean there", {
  skip_without_tensorflow()
  weighted <- weights_of(gpu_dataset(x, y, weights = w, shuffle = FALSE), epochs = 1)
  expect_equal(weights_of(x, y, sample_weight = w, shuffle = FALSE, epochs = 1), weighted)
  kept <- weights_of(gpu_dataset(x, y, validation = 0.25), epochs = 1)
  expect_length(kept$val_loss, 1)
  expect_equal(weights_of(x, y, validation_split = 0.25, epochs = 1), kept)
  expect_equal(weights_of(x, y, validation = 0.25, epochs = 1), kept)
  beside <- weights_of(x, y, validation = list(x, y, w), epochs = 1)
  expect_equal(weights_of(x, y, validation_data = list(x, y, w), epochs = 1), beside)
  expect_equal(weights_of(gpu_dataset(x, y), 1, list(x, y, w)), beside)
  batches <- weights_of(gpu_dataset(function() list(x, y), steps = 2), epochs = 1)
  expect_equal(weights_of(function() list(x, y), steps_per_epoch = 2, epochs = 1), batches)
  class <- rep(0:1, 12)
  model <- a_model(3, 2)
  fit <- gpu_fit(model, x, class, class_weight = list("0" = 1, "1" = 3), epochs = 1, verbose = 0)
  expect_equal(fit$epochs, 1)
})

test_that("evaluation and prediction take some too", {
  skip_without_tensorflow()
  model <- trained(gpu_dataset(x, y))
  expect_equal(gpu_evaluate(model, x = x, y = y, verbose = 0), gpu_evaluate(model, x, y))
  weighted <- gpu_evaluate(model, list(x, y, w))
  expect_equal(gpu_evaluate(model, x, y, sample_weight = w), weighted)
  expect_false(isTRUE(all.equal(weighted, gpu_evaluate(model, x, y))))
  expect_equal(gpu_predict(model, x = x, batch_size = 4, verbose = 0), gpu_predict(model, x))
})

# Two inputs and outputs, in another order than that of their names.
two_by_two <- function() {
  keras <- reticulate::import("keras")
  keras$utils$set_random_seed(1L)
  inputs <- lapply(c("b", "a"), function(name) keras$Input(list(3L), name = name))
  layer <- function(name, input) keras$layers$Dense(1L, name = name)(input)
  model <- keras$Model(inputs, list(layer("p", inputs[[1]]), layer("o", inputs[[2]])))
  model$compile("sgd", loss = list("mse", "mae"))
  model
}

test_that("unnamed lists are inputs and outputs in the model's order", {
  skip_without_tensorflow(slow = TRUE)
  named <- list(x = list(a = 2 * x, b = x), y = list(o = 3 * y, p = y))
  listed <- list(x = list(x, 2 * x), y = list(y, 3 * y))
  after <- lapply(list(named, listed), function(rows) {
    model <- two_by_two()
    set.seed(1)
    gpu_fit(model, rows$x, rows$y, epochs = 1, engine = "keras", verbose = 0)
    found <- gpu_predict(model, rows$x)
    list(found[order(names(found))], gpu_evaluate(model, rows$x, rows$y))
  })
  expect_equal(after[[1]], after[[2]], tolerance = 1e-6)
})

# A class of one's own has no names for them: its call() takes a list and gives one.
two_of_own <- function() {
  reticulate::py_run_string("
import keras
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.heads = [keras.layers.Dense(1, kernel_initializer='ones') for _ in range(2)]
    def call(self, inputs):
        one, other = inputs
        return [self.heads[0](one), self.heads[1](other)]
own = Own()
own.compile('sgd', loss=['mse', 'mae'])
")$own
}

test_that("a class of one's own, which has no names for them, gets lists", {
  skip_without_tensorflow(slow = TRUE)
  rows <- list(x = list(x, 2 * x), y = list(matrix(y), matrix(3 * y)))
  theirs <- two_of_own()
  theirs$fit(unname(rows$x), unname(rows$y), batch_size = 8L, shuffle = FALSE, verbose = 0L)
  for (engine in few_engines()) {
    ours <- two_of_own()
    gpu_fit(
      ours, list(rows$x, rows$y),
      epochs = 1, batch_size = 8, shuffle = FALSE, engine = engine, verbose = FALSE
    )
    expect_equal(ours$get_weights(), theirs$get_weights(), tolerance = 1e-6)
  }
  found <- gpu_predict(ours, rows$x)
  expect_named(found, c("output_1", "output_2"))
  wanted <- theirs$predict(unname(rows$x), verbose = 0L)
  expect_equal(unname(found), lapply(wanted, as.vector), tolerance = 1e-6)
  expect_equal(
    gpu_evaluate(ours, rows$x, rows$y)[["loss"]],
    theirs$evaluate(unname(rows$x), unname(rows$y), batch_size = 8L, verbose = 0L)[[1]],
    tolerance = 1e-6
  )
})

test_that("words that shape epochs and validations mean what they mean in keras3", {
  skip_without_tensorflow()
  model <- a_model(3, 1, "linear", loss = "mse", metrics = NULL)
  fit <- gpu_fit(
    model, x, y,
    batch_size = 8, epochs = 7, initial_epoch = 3, steps_per_epoch = 2, validation_data = list(x, y),
    validation_freq = list(5, 6), validation_batch_size = 4, validation_steps = 2,
    view_metrics = "auto", verbose = 0
  )
  frame <- as.data.frame(fit, wide = TRUE)
  expect_identical(frame$epoch, 4:7)
  expect_identical(is.na(frame$val_loss), c(TRUE, FALSE, FALSE, TRUE))
  expect_false(any(is.nan(frame$val_loss)))
  expect_equal(fit$rows, 2 * 8 + 8 + 2 * 8 + 8) # a pass has three batches
  expect_identical(fit$metrics, fit$history)
  expect_identical(fit$params, list(epochs = 7L, steps = 2L))
  expect_match(format(fit), "val_loss [0-9]", all = FALSE)
})

test_that("batches of unknown number are counted, and that is said", {
  skip_without_tensorflow()
  left <- 0
  some <- function() {
    left <<- if (left == 0) 3 else left - 1
    if (left > 0) list(x, y)
  }
  model <- a_model(3, 1, "linear", loss = "mse", metrics = NULL)
  said <- testthat::capture_messages(gpu_fit(model, some, epochs = 2))
  expect_match(said, "The first epoch counts the batches", all = FALSE)
  expect_silent(gpu_fit(model, some, epochs = 2, verbose = 0))
})

test_that("a PyDataset gives rows to train on, to validate and to evaluate", {
  skip_without_tensorflow()
  namespace <- reticulate::py_run_string(paste(
    "import keras", "class Batches(keras.utils.PyDataset):",
    "    def __init__(self, x, y):", "        super().__init__()",
    "        self.x, self.y, self.ends = x, y, 0",
    "    def __len__(self):", "        return 3",
    "    def __getitem__(self, index):",
    "        rows = slice(8 * index, 8 * index + 8)", "        return self.x[rows], self.y[rows]",
    "    def on_epoch_end(self):", "        self.ends += 1",
    sep = "\n"
  ), local = TRUE)
  batches <- namespace$Batches(x, as.array(y))
  model <- a_model(3, 1, "linear", loss = "mse", metrics = NULL)
  start <- model$get_weights()
  model$fit(batches, epochs = 2L, shuffle = FALSE, verbose = 0L)
  expected <- lapply(as_r(model$get_weights()), as_r)
  model$set_weights(start)
  fit <- gpu_fit(model, batches, epochs = 2, validation = batches, verbose = 0)
  expect_equal(lapply(as_r(model$get_weights()), as_r), expected, tolerance = 1e-5)
  expect_equal(fit$history$val_loss[[2]], gpu_evaluate(model, gpu_dataset(batches))[["loss"]])
  expect_gte(batches$ends, 2)
})

test_that("so they are in the batches of a function", {
  skip_without_tensorflow(slow = TRUE)
  functions <- list(
    named = function() list(list(b = x, a = 2 * x), list(p = y, o = 3 * y)),
    listed = function() list(list(x, 2 * x), list(y, 3 * y))
  )
  # By the order in which the inputs were made, not that of their names.
  after <- lapply(functions, function(f) {
    model <- two_by_two()
    start <- lapply(model$get_weights(), function(weight) 0 * weight + 0.1)
    model$set_weights(start)
    gpu_fit(model, f, steps_per_epoch = 3, epochs = 2, engine = "keras", verbose = 0)
    unlist(lapply(model$get_weights(), as.vector))
  })
  expect_equal(after$named, after$listed, tolerance = 1e-6)
  wrong <- function() list(list(x, x, x), list(y, y))
  expect_error(
    gpu_fit(two_by_two(), wrong, steps_per_epoch = 3, verbose = 0),
    "Batch 1 of epoch 1: The model has 2 inputs, but the list has 3",
    class = "gpukeras_error_data"
  )
})

made <- if (has_tensorflow()) gpu_dataset(x, y)
model <- if (has_tensorflow()) trained(made)

expect_refused(list(
  "a share of rows that are a dataset" =
    case("spec", "gpu_dataset(validation = )", gpu_fit(model, made, validation = 0.2)),
  "the share under its other name" =
    case("spec", "gpu_dataset(validation = )", gpu_fit(model, made, validation_split = 0.2)),
  "weights of a dataset" =
    case("spec", "gpu_dataset(weights = )", gpu_fit(model, made, sample_weight = w)),
  "labels of a dataset" = case("spec", "`y` comes too late", gpu_fit(model, made, y)),
  "steps of a dataset in sequence" = case(
    "spec", "gpu_dataset(steps = )",
    gpu_fit(model, gpu_dataset(function() list(x, y)), steps_per_epoch = 3)
  ),
  "a first epoch below zero" =
    case("spec", "`initial_epoch` must be", gpu_fit(model, x, y, initial_epoch = -1)),
  "an argument that nobody knows" = case("spec", "argument `foo`", gpu_fit(model, x, y, foo = 3)),
  "a data frame without a label" = case("data", "named as the label", gpu_fit(model, frame)),
  "a list with other names" =
    case("data", "an element `inputs`", gpu_fit(model, list(inputs = x, labels = y))),
  "an environment as rows" =
    case("spec", "not an environment", gpu_fit(model, new.env(), y)),
  "a model as rows" = case("spec", "`data` must be a gpu_dataset", gpu_fit(model, model)),
  "a word of keras3 in a dataset" =
    case("spec", "called `validation` here", gpu_dataset(x, y, validation_split = 0.2)),
  "weights of new rows" =
    case("spec", "It is for gpu_fit()", gpu_predict(model, x, sample_weight = w)),
  "an unnamed list of another length" = case(
    "data", "The model has 2 inputs, but the list has 3", gpu_fit(two_by_two(), list(x, x, x), y)
  )
))

test_that("whole numbers from 0 are classes of a sparse loss, as Keras trains them", {
  skip_without_tensorflow()
  class <- rep(0:2, 8)
  share <- c("0" = 1, "1" = 3, "2" = 0.5)
  train <- function(...) {
    import_keras()$utils$set_random_seed(1L)
    model <- afresh("of classes", function() a_model(3, 3, metrics = NULL))
    set.seed(1)
    gpu_fit(model, x, ..., epochs = 2, batch_size = 8, engine = "keras", verbose = 0)
    list(shares = gpu_predict(model, x), classes = gpu_predict(model, x, type = "class"))
  }
  own <- train(class, class_weight = share)
  weighted <- train(class, sample_weight = unname(share[class + 1]))
  expect_equal(own$shares, weighted$shares, tolerance = 1e-6)
  expect_equal(own$classes, max.col(own$shares) - 1)
})
