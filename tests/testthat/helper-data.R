# Data, models and records for the tests, and R processes of their own.

# A data frame with a column of each kind, and awkward names.
mixed_frame <- function(rows = 40) {
  i <- seq_len(rows)
  frame <- data.frame(
    double = sin(i), integer = i %% 7L, logical = i %% 3 == 0,
    factor = factor(c("a", "b", "c")[i %% 3 + 1], levels = c("c", "a", "b")),
    ordered = factor(c("low", "high")[i %% 2 + 1], levels = c("low", "high"), ordered = TRUE),
    character = c("x", "y")[i %/% 3 %% 2 + 1]
  )
  frame[["a b"]] <- cos(i)
  frame[["{braces}"]] <- sqrt(i)
  frame$y <- frame$double + frame$integer
  frame
}

# Features and labels that a linear model learns.
a_matrix <- function(rows = 60, columns = 3) {
  matrix(sin(seq_len(rows * columns)), rows, columns)
}

# Saves an array as NumPy does; gives the path.
save_npy <- function(x, path, order = "C") {
  numpy <- reticulate::import("numpy", convert = FALSE)
  numpy$save(path, numpy$asarray(x, order = order))
  path
}

# A third of the values, and columns that R calls by name.
a_sparse_matrix <- function(rows = 60, columns = 3) {
  skip_if_not_installed("Matrix")
  x <- a_matrix(rows, columns)
  x[seq_along(x) %% 3 != 0] <- 0
  colnames(x) <- letters[seq_len(columns)]
  methods::as(x, "CsparseMatrix")
}

# What is asked once in a run of all files: hundreds of tests ask for it.
known <- new.env()

# TensorFlow and Keras through the core's door, which mutes what C++ says at their import.
runtime <- function() {
  if (is.null(known$runtime)) {
    path <- system.file("python", package = "gpukeras", mustWork = TRUE)
    known$runtime <- reticulate::import_from_path(
      "gpukeras.backend.runtime", path = path, convert = FALSE
    )
  }
  known$runtime
}

has_core <- function() {
  known$core <- known$core %||% (!is_fast() && can_run_examples())
  known$core
}

has_tensorflow <- function() {
  if (is.null(known$tensorflow)) {
    found <- if (has_core()) {
      tryCatch(runtime()$tensorflow(), error = function(condition) NULL)
    }
    known$tensorflow <- !is.null(found)
  }
  known$tensorflow
}

import_keras <- function() {
  silence_tensorflow()
  runtime()$keras()
}

# Many small models make TensorFlow warn of retracing.
silence_tensorflow <- function() {
  runtime()$tensorflow()$get_logger()$setLevel("ERROR")
}

# A user's own Keras model, made through reticulate.
a_model <- function(inputs = 3L, units = 3L, activation = "softmax", compiled = TRUE,
                    loss = "sparse_categorical_crossentropy", metrics = list("accuracy")) {
  keras <- import_keras()
  layers <- list(
    keras$layers$Input(as.list(as.integer(inputs))),
    keras$layers$Flatten(),
    keras$layers$Dense(as.integer(units), activation = activation)
  )
  model <- keras$Sequential(layers)
  if (compiled) {
    model$compile(optimizer = "sgd", loss = loss, metrics = metrics)
  }
  model
}

# The model that `make()` makes, with its weights and its optimizer as at first. It is made once for
# each name: its first training compiles programs for a second, each further one takes a tenth.
afresh <- function(name, make) {
  if (is.null(known$models[[name]])) {
    model <- make()
    rate <- as_r(model$optimizer$learning_rate$numpy())
    known$models[[name]] <- list(model = model, weights = model$get_weights(), rate = rate)
  }
  reset <- reticulate::py_eval(paste(
    "lambda model, weights, rate: [model.set_weights(weights),",
    "[variable.assign(0 * variable) for variable in model.optimizer.variables],",
    "model.optimizer.learning_rate.assign(rate)] and None"
  ))
  kept <- known$models[[name]]
  reset(kept$model, kept$weights, kept$rate)
  kept$model
}

# A Python value as R's, also where reticulate has already converted it.
as_r <- function(value) {
  if (inherits(value, "python.builtin.object")) reticulate::py_to_r(value) else value
}

# A perceptron that one short, silent training has tied to the dataset's recipe.
trained <- function(data, epochs = 1, ...) {
  silence_tensorflow()
  model <- gpu_mlp(data, units = 4, seed = 1, ...)
  gpu_fit(model, data, epochs = epochs, engine = "graph_loop", verbose = 0)
  model
}

# A model without hidden layers at its optimum, that of glm() and its like. Each batch has all rows.
linear_fit <- function(formula, family, rows, weights = NULL) {
  many <- rows[rep(seq_len(nrow(rows)), 30), ]
  data <- gpu_dataset(
    formula, many,
    weights = {{ weights }}, batch_size = nrow(rows), shuffle = FALSE
  )
  model <- gpu_mlp(data, units = integer(), family = family, learning_rate = 0.05, seed = 1)
  rate <- schedule_warmup_cosine(warmup = 0)
  gpu_fit(model, data, epochs = 20, schedule = rate, engine = "graph_loop", verbose = FALSE)
  model
}

has_gpu <- function() {
  any(gpu_devices()$kind == "GPU")
}

# What the core reports of a training.
a_report <- function(...) {
  report <- list(
    history = list(
      loss = list(1.5, 0.75, 0.123456), accuracy = list(0.5, 0.75, 1),
      val_loss = list(1.75, 1, 0.5), val_accuracy = list(0.25, 0.5, 0.75)
    ),
    epochs = 3L, rows = 3e6, elapsed_s = 12.345, epoch_s = list(6, 3.25, 3), samples_per_s = 333333,
    input_share = 0.034, device = "CPU:0", variables = list(`CPU:0` = 6L), precision = "float32",
    peak_bytes = NULL,
    engine = list(
      engine = "compiled",
      reason = "measured fastest: 90 us a batch against 210 us (graph_loop) and 1,300 us (keras)",
      trials = list(
        list(engine = "keras", start_s = 0.31, batch_s = 0.0013, refused = ""),
        list(engine = "graph_loop", start_s = 0.42, batch_s = 0.00021, refused = ""),
        list(engine = "compiled", start_s = 1.98, batch_s = 0.00009, refused = "")
      )
    ),
    stopped = "completed",
    plan = list(mode = "resident", batch_size = 512L)
  )
  changes <- list(...)
  report[names(changes)] <- changes
  report
}

# What the core answers to gpu_dataset().
a_dataset_record <- function(...) {
  record <- list(
    handle = "a handle",
    plan = list(
      mode = "resident", device = "CPU:0", rows = 900000L, validation_rows = 100000L,
      batch_size = 1024L, steps_per_epoch = 879L, last_batch = 928L, shuffle = "rows",
      shuffle_reason = "all rows, anew each epoch", ahead = 0L, drop_last = FALSE,
      shard = list(1L, 1L), skipped = "", staged_bytes = 4e7,
      reason = "38.1 MiB in host memory, which is the CPU's own",
      batch_reason = "about 100 updates an epoch, within 32 and 1024",
      na = "error", dropped_rows = 0L, na_reason = "refused: na = \"error\""
    ),
    shape = list(10L), columns = list(),
    label = list(kind = "number", units = 1L, levels = list(), minimum = 326, maximum = 18823.4567),
    scaled = FALSE, weighted = FALSE, formula = ""
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

# The condition's message on one line: cli wraps it.
one_line <- function(condition) {
  gsub("[[:space:]]+", " ", conditionMessage(condition))
}

# Another R process --------------------------------------------------------------------------------

# Runs lines of code in a fresh R process with the same packages and the same Python.
start_r <- function(lines, frame = parent.frame(), wait = TRUE, timeout = 0) {
  script <- withr::local_tempfile(lines = lines, fileext = ".R", .local_envir = frame)
  out <- withr::local_tempfile(.local_envir = frame)
  err <- withr::local_tempfile(.local_envir = frame)
  withr::local_envvar(
    R_LIBS = paste(.libPaths(), collapse = .Platform$path.sep),
    RETICULATE_PYTHON = python_path()
  )
  status <- system2(
    file.path(R.home("bin"), "Rscript"), shQuote(script),
    stdout = out, stderr = err, wait = wait, timeout = timeout
  )
  list(status = status, out = out, err = err)
}

# Waits until `condition()` holds; FALSE when it never did. The seconds guard against hanging: they
# measure nothing.
wait_until <- function(condition, seconds = 600) {
  deadline <- Sys.time() + seconds
  while (!condition()) {
    if (Sys.time() > deadline) {
      return(FALSE)
    }
    Sys.sleep(0.1)
  }
  TRUE
}

# A line that is learned within a few epochs.
line <- function(rows = 200, ...) {
  x <- a_matrix(rows)
  gpu_dataset(x, drop(x %*% c(1, -2, 3)), batch_size = 20, seed = 1, ...)
}

# What Python holds of a dataset: features, labels, weights.
staged <- function(data) {
  lapply(as_r(data$handle$arrays), as_r)
}

# Features that give each class away, and a model that has learned them.
learned <- function(y) {
  x <- outer(as.character(y), unique(as.character(y)), "==") + 0
  data <- gpu_dataset(x, y, batch_size = 10, seed = 1)
  model <- gpu_mlp(data, units = 8, learning_rate = 0.05, seed = 1)
  gpu_fit(model, data, epochs = 20, engine = "graph_loop", verbose = 0)
  list(model = model, x = x)
}

# Rows from a function that fails after some calls, with a class of its own.
failing_rows <- function(calls = 3) {
  made <- 0
  gpu_dataset(function() {
    made <<- made + 1
    if (made > calls) rlang::abort("no more files", class = "my_error")
    list(a_matrix(20), a_matrix(20)[, 1])
  }, steps = 100, batch_size = 20)
}
