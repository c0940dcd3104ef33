# Models that do not fit, and trainings that cannot be: tables as in test-bad-input.R.

x <- matrix(as.double(1:12), 4)
y <- c(0, 1, 0, 1)
folder <- withr::local_tempdir()
at <- function(name) file.path(folder, name)

# Models -------------------------------------------------------------------------------------------

if (has_tensorflow()) {
  classes <- gpu_dataset(x, factor(c("u", "v", "w", "u")))
  numbers <- gpu_dataset(x, c(1.5, 2, 3, 4))
  unlabelled <- gpu_dataset(x)
  other <- gpu_dataset(x, factor(c("u", "v", "other", "u")))
  fitted <- trained(numbers)
  by_formula <- trained(gpu_dataset(log(mpg) ~ wt, mtcars))
  saved <- withr::local_tempfile()
  saveRDS(classes, saved)
  two_columns <- matrix(1, 4, 2)
  with_loss <- function(loss, units = 3) a_model(units = units, loss = loss)
}

expect_refused(list(
  "labels that count from 1" = case(
    "data", "`y` has labels from 1 to 3", gpu_fit(a_model(), gpu_dataset(x, c(1L, 2L, 3L, 1L)))
  ),
  "a label beyond the output layer" =
    case("data", "0 to 2", gpu_fit(a_model(), gpu_dataset(x, c(0, 1, 2, 3)))),
  "a negative label" = case("data", "from -1", gpu_fit(a_model(), gpu_dataset(x, c(0, 1, 2, -1)))),
  "more levels than output units" =
    case("data", "3 units", gpu_fit(a_model(), gpu_dataset(x, factor(letters[1:4])))),
  "a fraction as class" =
    case("data", "one class a row", gpu_fit(a_model(), gpu_dataset(x, c(0.5, 1, 2, 1)))),
  "labels 1 and 2 for a sigmoid" = case(
    "data", "0 to 1",
    gpu_fit(with_loss("binary_crossentropy", 1), gpu_dataset(x, c(1, 2, 1, 2)))
  ),
  "classes for a loss of columns" =
    case("model", "one column a class", gpu_fit(with_loss("categorical_crossentropy"), classes)),
  "a number for three outputs" =
    case("model", "3 units", gpu_fit(with_loss("mse"), numbers)),
  "two numbers for three outputs" =
    case("model", "3 units", gpu_fit(with_loss("mse"), gpu_dataset(x, two_columns))),
  "a model that is not compiled" =
    case("model", "`model` is not compiled", gpu_fit(a_model(compiled = FALSE), classes)),
  "a model of another input shape" =
    case("model", "(5,)", gpu_fit(a_model(inputs = 5), classes)),
  "an image model for a table" =
    case("model", "(4, 4, 1)", gpu_fit(a_model(inputs = c(4, 4, 1)), classes)),
  "a data frame as model" = case("spec", "`model`", gpu_fit(mtcars, classes)),
  "a text as model" = case("spec", "`model`", gpu_fit("model", classes)),
  "no model" = case("spec", "`model`", gpu_predict(NULL, x)),
  "factor labels after numbers" =
    case("data", "`y` has 3 classes without numbers", gpu_fit(fitted, x, factor(c("u", "v", "w", "u")))),
  "a batch size of a prediction that is no number" =
    case("spec", "`batch_size`", gpu_predict(fitted, x, batch_size = "a")),
  "a prediction in batches of no row" =
    case("spec", "`batch_size`", gpu_predict(fitted, x, batch_size = 0)),
  "an evaluation of an uncompiled model" =
    case("model", "not compiled", gpu_evaluate(a_model(compiled = FALSE), x, c(0, 1, 2, 0)))
))

expect_refused(list(
  "a perceptron without labels" = case("data", "`data` has no labels", gpu_mlp(unlabelled)),
  "a perceptron of a data frame" = case("spec", "`data`", gpu_mlp(mtcars)),
  "a layer without units" = case("spec", "`units`", gpu_mlp(classes, units = c(8, 0))),
  "an unknown activation" = case("spec", "rleu", gpu_mlp(classes, activation = "rleu")),
  "an unknown optimizer" = case("spec", "adm", gpu_mlp(classes, optimizer = "adm")),
  "a function as activation" = case("spec", "`activation`", gpu_mlp(classes, activation = mean)),
  "a dropout of everything" = case("spec", "`dropout`", gpu_mlp(classes, dropout = 1)),
  "a learning rate of 0" = case("spec", "`learning_rate`", gpu_mlp(classes, learning_rate = 0)),
  "a text for batch_norm" = case("spec", "`batch_norm`", gpu_mlp(classes, batch_norm = "yes"))
))

# Training, evaluating, predicting -----------------------------------------------------------------

expect_refused(list(
  "an unknown engine" = case("spec", "`engine`", gpu_fit(a_model(), classes, engine = "turbo")),
  "no epochs" = case("spec", "`epochs`", gpu_fit(a_model(), classes, epochs = 0)),
  "a text as epochs" = case("spec", "`epochs`", gpu_fit(a_model(), classes, epochs = "ten")),
  "a fit of a data frame" =
    case("data", "no column is named", gpu_fit(a_model(), mtcars)),
  "a fit without labels" = case("data", "`data` has no labels", gpu_fit(a_model(), unlabelled)),
  "a loud training" = case("spec", "`verbose`", gpu_fit(a_model(), classes, verbose = "loud")),
  "validation rows of another encoding" =
    case("data", "`validation`", gpu_fit(a_model(), classes, validation = other)),
  "validation labels that training did not see" = case(
    "data", "did not see: w2",
    gpu_fit(a_model(), classes, validation = list(x, c("u", "v", "w2", "u")))
  ),
  "a dataset of another session" =
    case("data", "another R session", gpu_fit(a_model(), readRDS(saved))),
  "an unknown part" = case("spec", "`part`", gpu_evaluate(fitted, numbers, part = "test")),
  "a part without rows" =
    case("data", "no validation rows", gpu_evaluate(a_model(), classes, part = "validation")),
  "classes of a number" =
    case("data", "`type = \"class\"`", gpu_predict(fitted, x, type = "class")),
  "evaluating no rows" = case("data", "`data` has no rows", gpu_evaluate(fitted, x[0, ], y[0])),
  "new rows of another width" = case("data", "`newdata`", gpu_predict(fitted, x[, 1:2])),
  "new rows of text" = case("data", "`newdata` must be", gpu_predict(fitted, matrix("a", 1, 3))),
  "a data frame for a model of a matrix" =
    case("data", "`newdata`", gpu_predict(fitted, as.data.frame(x))),
  "a data frame for a model that gpukeras did not train" =
    case("data", "`newdata`", gpu_predict(a_model(), as.data.frame(x))),
  "classes of a model that gpukeras did not train" =
    case("data", "trained on classes", gpu_predict(with_loss("mse"), x, type = "class"))
))

expect_refused(list(
  "a wrong type" = case("spec", "`type`", gpu_predict(a_model(), x, type = "prob")),
  "a type that is NA" = case("spec", "`type`", gpu_predict(a_model(), x, type = NA)),
  "an R model" = case("spec", "`model`", gpu_predict(stats::lm(mpg ~ wt, mtcars), mtcars)),
  "no model" = case("spec", "`model`", gpu_fit(NULL, list(x, y))),
  "a model of another session" =
    case("model", "`model`", gpu_predict(unserialize(serialize(a_model(), NULL)), x)),
  "a recipe that is none" = case("spec", "`recipe`", gpu_dataset(x, y, recipe = "x")),
  "a flag that is NA" = case("spec", "`shuffle`", gpu_dataset(x, y, shuffle = NA)),
  "a number that is NA" = case("spec", "`epochs`", gpu_fit(a_model(), list(x, y), epochs = NA)),
  "weights without labels" = case("data", "`weights`", gpu_dataset(x, weights = rep(1, nrow(x)))),
  "a class weight named twice" =
    case("spec", "`class_weight`", gpu_dataset(x, y, class_weight = c(a = 1, a = 2))),
  "evaluation without labels" = case("data", "`data` has no labels", gpu_evaluate(a_model(), x)),
  "a batch size of nothing" =
    case("spec", "`batch_size`", gpu_evaluate(a_model(), x, y, batch_size = 0)),
  "a callback that is none" =
    case("spec", "`callbacks`", gpu_fit(a_model(), list(x, y), callbacks = list("x"))),
  "no verbose" = case("spec", "`verbose`", gpu_fit(a_model(), list(x, y), verbose = NULL)),
  "a formula without features" =
    case("data", "The formula names no feature", gpu_dataset(mpg ~ 1, mtcars))
))

# Options of a training ----------------------------------------------------------------------------

fit <- function(...) gpu_fit(fitted, numbers, 2, ..., verbose = FALSE)
new_folder <- at("run")
dir.create(at("others"))
invisible(file.create(at("others/notes.txt"), at("file")))
writeLines("1,2,3", at("csv.npy"))

expect_refused(list(
  "a name as schedule" = case("spec", "`schedule`", fit(schedule = "cosine")),
  "a rate as schedule" = case("spec", "`schedule`", fit(schedule = 0.1)),
  "a schedule that was not called" =
    case("spec", "`schedule` must be made by", fit(schedule = schedule_one_cycle)),
  "a list as schedule" = case("spec", "`schedule`", fit(schedule = list(kind = "cosine"))),
  "a warm-up longer than the training" =
    case("spec", "`warmup` is 3 epochs", fit(schedule = schedule_constant(warmup = 3))),
  "a lowest rate above the optimizer's own" =
    case("spec", "`min_rate`", fit(schedule = schedule_warmup_cosine(min_rate = 10, warmup = 0))),
  "a plateau of a metric that is not there" =
    case("spec", "`monitor` is \"auc\"", fit(schedule = schedule_plateau(monitor = "auc"))),
  "clipping to nothing" = case("spec", "`clip_norm`", fit(clip_norm = 0)),
  "clipping to less than nothing" = case("spec", "`clip_value`", fit(clip_value = -1)),
  "a text as clipping" = case("spec", "`clip_global_norm`", fit(clip_global_norm = "1")),
  "two bounds of a kind" = case("spec", "`clip_norm`", fit(clip_norm = c(1, 2))),
  "clipping that is NA" = case("spec", "`clip_value` must be a value", fit(clip_value = NA)),
  "clipping in two ways" =
    case("spec", "`clip_norm` and `clip_value`", fit(clip_norm = 1, clip_value = 1)),
  "averages that never change" = case("spec", "`ema`", fit(ema = 1)),
  "averages of the last step alone" = case("spec", "`ema`", fit(ema = 0)),
  "a flag as momentum" = case("spec", "`ema`", fit(ema = TRUE)),
  "no patience" = case("spec", "`early_stopping`", fit(early_stopping = 0)),
  "half an epoch of patience" = case("spec", "`early_stopping`", fit(early_stopping = 1.5)),
  "a flag as early stopping" = case("spec", "`early_stopping`", fit(early_stopping = TRUE)),
  "early stopping that is NA" = case("spec", "`early_stopping`", fit(early_stopping = NA)),
  "early stopping without patience" =
    case("spec", "`patience`", fit(early_stopping = list(monitor = "loss"))),
  "early stopping with another option" =
    case("spec", "`delta`", fit(early_stopping = list(patience = 1, delta = 2))),
  "early stopping by a metric that is not there" =
    case("spec", "`monitor` is \"auc\"", fit(early_stopping = list(patience = 1, monitor = "auc"))),
  "early stopping by another direction" =
    case("spec", "`mode`", fit(early_stopping = list(patience = 1, mode = "up"))),
  "an option that is NA" =
    case("spec", "`early_stopping` must be a value", fit(early_stopping = list(patience = NA))),
  "another answer to full memory" = case("spec", "`on_oom`", fit(on_oom = "retry")),
  "a batch size that is NA" = case("spec", "`batch_size` must be a value", fit(batch_size = NA)),
  "two engines" = case("spec", "`engine`", fit(engine = c("keras", "compiled")))
))

expect_refused(list(
  "a flag as checkpoint" = case("spec", "`checkpoint`", fit(checkpoint = TRUE)),
  "an empty path as checkpoint" = case("spec", "`checkpoint`", fit(checkpoint = "")),
  "two folders as checkpoint" = case("spec", "`checkpoint`", fit(checkpoint = c("a", "b"))),
  "a checkpoint without a folder" =
    case("spec", "`checkpoint`", fit(checkpoint = list(every_s = 3))),
  "a checkpoint with another option" =
    case("spec", "`kep`", fit(checkpoint = list(folder = new_folder, kep = 2))),
  "keeping no checkpoint" =
    case("spec", "`keep`", fit(checkpoint = list(folder = new_folder, keep = 0))),
  "a checkpoint in a negative time" =
    case("spec", "`every_s`", fit(checkpoint = list(folder = new_folder, every_s = -1))),
  "a checkpoint in a folder that is not there" =
    case("checkpoint", "does not exist", fit(checkpoint = at("none/run"))),
  "a file as checkpoint" = case("checkpoint", "is a file", fit(checkpoint = at("file"))),
  "a folder with other files as checkpoint" =
    case("checkpoint", "holds other files", fit(checkpoint = at("others"))),
  "a history that is not there" = case("data", "history.json", read_history(at("others"))),
  "a file that is no history" = case("data", "is not JSON", read_history(at("csv.npy"))),
  "a number as the path of a history" = case("spec", "`path`", read_history(3))
))

test_that("a checkpoint of another training is refused, and says in what it differs", {
  skip_without_tensorflow()
  folder <- at("first")
  first <- gpu_dataset(x, c(1.5, 2, 3, 4), batch_size = 2, seed = 1)
  train <- function(data = first, ..., units = 4) {
    model <- gpu_mlp(data, units = units, seed = 1)
    gpu_fit(model, data, 2, engine = "keras", ..., checkpoint = folder, verbose = FALSE)
  }
  train()
  others <- list(
    "batch size was 2 and is 4" = function() train(batch_size = 4),
    "variable 1 of the model" = function() train(units = 5),
    "`clip_norm` was none and is 1" = function() train(clip_norm = 1),
    "the schedule was none and is constant" = function() train(schedule = schedule_constant()),
    "the content of the labels" = function() {
      train(gpu_dataset(x, c(2, 1.5, 3, 4), batch_size = 2, seed = 1))
    },
    "the dataset's seed was 1 and is 2" = function() {
      train(gpu_dataset(x, c(1.5, 2, 3, 4), batch_size = 2, seed = 2))
    }
  )
  for (difference in names(others)) {
    error <- expect_error(others[[difference]](), class = "gpukeras_error_checkpoint")
    expect_match(one_line(error), difference, fixed = TRUE)
    expect_identical(error$arg, "checkpoint")
  }
  expect_snapshot(train(batch_size = 4), error = TRUE)
  expect_identical(train()$resumed_epochs, 2L)
})

test_that("data that is left out is named, with the call", {
  skip_without_tensorflow()
  model <- a_model()
  calls <- list(
    quote(gpu_fit(model)), quote(gpu_profile(model)), quote(gpu_evaluate(model)),
    quote(gpu_importance(model)), quote(gpu_effects(model)), quote(gpu_batch_size(model)),
    quote(gpu_learning_rate(model)), quote(gpu_predict(model))
  )
  for (call in calls) {
    error <- expect_error(eval(call), class = "gpukeras_error")
    expect_match(conditionMessage(error), "data` (is missing|must be)")
    expect_identical(conditionCall(error), call)
  }
  expect_snapshot(gpu_profile(model), error = TRUE)
})

test_that("an argument that gpu_fit() does not have is refused by name", {
  expect_error(gpu_fit(NULL, NULL, epcohs = 2), "epcohs")
})

# Arguments of another type ------------------------------------------------------------------------

nothing_known <- new.env()

test_that("what Python has no type for is refused by name", {
  skip_without_tensorflow()
  number <- case("spec", "`ema`", gpu_fit(fitted, numbers, ema = nothing_known))
  symbol <- case("spec", "`batch_size`", gpu_dataset(x, y, batch_size = quote(a_symbol)))
  said <- c(
    expect_refusal("an environment as a number", number, environment()),
    expect_refusal("a symbol as an option", symbol, environment())
  )
  skip_if(utils::packageVersion("reticulate") >= "1.29", "reticulate wraps all that R has")
  expect_snapshot(writeLines(said))
})

expect_refused(list(
  "a function as units" = case("spec", "`units`", gpu_mlp(numbers, units = mean)),
  "no kind" = case("spec", "`kind`", gpu_tabular(numbers, character())),
  "two kinds" = case("spec", "`kind`", gpu_tabular(numbers, c("tabm", "mlp"))),
  "a function as kind" = case("spec", "`kind`", gpu_tabular(numbers, mean)),
  "a function as columns" = case("spec", "`columns`", gpu_effects(fitted, x, mean)),
  "columns without one" = case("spec", "`columns`", gpu_effects(fitted, x, character())),
  "no column to permute" = case("spec", "`columns`", gpu_importance(fitted, numbers, NULL, list())),
  "texts as baseline" = case("data", "`baseline`", gpu_attributions(fitted, x, "none")),
  "a function as class" = case("spec", "`class`", gpu_attributions(fitted, x, class = mean)),
  "no list of rows" = case("data", "`data`", gpu_evaluate(fitted, list())),
  "no list of new rows" = case("data", "`newdata`", gpu_predict(fitted, list())),
  "a number as path" = case("spec", "`x`", gpu_load(1)),
  "two paths" = case("spec", "`x`", gpu_load(c("a.keras", "b.keras"))),
  "a function as groups of rows" = case(
    "spec", "`together`", gpu_fit_many(numbers, function() fitted, folds = 2, together = mean)
  ),
  "columns as times of rows" =
    case("spec", "`time`", gpu_fit_many(numbers, function() fitted, folds = 2, time = mtcars)),
  "endless seeds" =
    case("spec", "`seeds`", gpu_fit_many(numbers, function() fitted, seeds = Inf)),
  "too many steps" = case("spec", "`steps`", gpu_attributions(fitted, x, steps = 1e10))
))

# What would be left out without a word ------------------------------------------------------------

expect_refused(list(
  "labels beside a dataset" = case("spec", "`y`", gpu_evaluate(fitted, numbers, y)),
  "weights beside a dataset" =
    case("spec", "`sample_weight`", gpu_evaluate(fitted, numbers, sample_weight = y)),
  "labels to calibrate beside a dataset" = case("spec", "`y`", gpu_calibrate(fitted, numbers, y)),
  "labels beside those that a formula computes" =
    case("spec", "`y`", gpu_evaluate(by_formula, mtcars, mtcars$mpg)),
  "quantiles of a mean" =
    case("spec", "`quantiles`", gpu_predict(fitted, x, quantiles = c(0.1, 0.9))),
  "times of a mean survival time" =
    case("spec", "`times`", gpu_predict(fitted, x, type = "time", times = 1:3)),
  "groups of rows without folds" = case(
    "data", "`folds`", gpu_fit_many(numbers, function() fitted, seeds = 2, together = c(1, 1, 2, 2))
  ),
  "times of rows without folds" =
    case("data", "`folds`", gpu_fit_many(numbers, function() fitted, seeds = 2, time = 1:4))
))

# Devices ------------------------------------------------------------------------------------------

expect_refused(hide = function(lines) sub("finds .*\\.", "finds <devices>.", lines), list(
  "a device that is not there" = case("no_device", "GPU:99", with_device("GPU:99", 1)),
  "a setup for a device that is not there" =
    case("no_device", "GPU:99", gpu_setup(device = "GPU:99")),
  "a device of no known kind" = case("spec", "`device`", with_device("tpu", 1))
))

test_that("a GPU where there is none is refused", {
  skip_without_tensorflow()
  skip_if(has_gpu(), "This computer has a GPU")
  error <- expect_error(gpu_setup(device = "gpu"), class = "gpukeras_error_no_device")
  expect_identical(error$wanted, "gpu")
  expect_snapshot(gpu_setup(device = "gpu"), error = TRUE)
})
