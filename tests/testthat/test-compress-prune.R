# What the core reports of a pruned model.
a_pruned_record <- function(...) {
  figures <- function(bytes, nonzeros, flops, accuracy) {
    list(
      disk_bytes = 25000, packed_bytes = bytes, parameters = 5000L, nonzeros = nonzeros,
      flops = flops, latency = list(
        list(rows = 1L, median_s = 0.0012, p95_s = 0.0015, runs = 300L),
        list(rows = 64L, median_s = 0.0031, p95_s = 0.0042, runs = 300L)
      ),
      metrics = list(loss = 0.25, accuracy = accuracy), part = "validation"
    )
  }
  report <- list(
    kind = "prune", before = figures(20000, 5000L, 9000, 0.97),
    after = figures(6000, 1100L, 9000, 0.965),
    settings = list(
      sparsity = 0.8, structured = FALSE, epochs = 5L, scope = "layer", exclude = list("out"),
      schedule = "cubic", ramp = 0.75
    ),
    layers = list(list(
      layer = "dense", kind = "Dense", change = "80 % of the kernel is 0", before = 4900,
      after = 980, unit = "non-zeros"
    )),
    listed = list(list(layer = "out", kind = "Dense", reason = "excluded")),
    metric = "accuracy", drop = 0.005, seconds = 12.3, device = "CPU:0", notes = list(),
    training = NULL
  )
  changes <- list(...)
  report[names(changes)] <- changes
  list(model = "model", report = report)
}

iris_rows <- function() gpu_dataset(Species ~ ., data = iris, validation = 0.2, seed = 1)

test_that("a pruned model prints what was gained and lost", {
  expect_snapshot(print(new_gpu_compression(a_pruned_record())))
})

test_that("options cross as the core takes them", {
  skip_without_tensorflow()
  seen <- NULL
  local_core(function(name, args) {
    seen <<- c(list(name = name), args)
    answer(a_pruned_record())
  })
  model <- a_model()
  pruned <- gpu_prune(model, NULL, epochs = 0, exclude = "a", engine = "keras", verbose = FALSE)
  expect_s3_class(pruned, "gpu_compression")
  expect_identical(seen$name, "prune")
  expect_identical(seen$options$exclude, list("a"))
  expect_identical(seen$options$fit, list(engine = "keras"))
  expect_identical(seen$options[c("sparsity", "schedule", "structured", "scope")], list(
    sparsity = 0.8, schedule = "cubic", structured = FALSE, scope = "layer"
  ))
  expect_null(seen$options$max_drop)
  expect_null(seen$data)
})

test_that("bad arguments are refused", {
  expect_error(gpu_prune(1, NULL), class = "gpukeras_error_spec")
  skip_without_tensorflow()
  model <- a_model(inputs = 4L)
  expect_error(gpu_prune(model, NULL, sparsity = NA), "sparsity", class = "gpukeras_error_spec")
  expect_error(gpu_prune(model, NULL, sparsity = 1), "sparsity", class = "gpukeras_error_spec")
  expect_error(gpu_prune(model, NULL), "`data` is missing", class = "gpukeras_error_data")
  expect_error(
    gpu_prune(model, NULL, 0.5, "cubic", FALSE, 0, "layer", NULL, NULL, NULL, 3),
    "has no name",
    class = "gpukeras_error_spec"
  )
  expect_error(
    gpu_prune(model, iris_rows(), sparsty = 0.5, verbose = FALSE), "sparsty",
    class = "gpukeras_error_spec"
  )
})

test_that("a real model is pruned, and its zeros survive more training", {
  skip_without_tensorflow()
  data <- iris_rows()
  model <- gpu_mlp(data, units = 16, seed = 1)
  gpu_fit(model, data, epochs = 5, engine = "graph_loop", verbose = FALSE)
  before <- as_r(model$get_weights())
  sparse <- gpu_prune(
    model, data,
    sparsity = 0.75, epochs = 2, engine = "graph_loop", verbose = FALSE
  )
  expect_identical(as_r(model$get_weights()), before)
  zeros <- function(model) {
    vapply(as_r(model$get_weights())[c(1, 3)], function(kernel) mean(kernel == 0), 0)
  }
  expect_equal(zeros(sparse$model), c(0.75, 0.75))
  gpu_fit(sparse$model, data, epochs = 1, engine = "graph_loop", verbose = FALSE)
  expect_equal(zeros(sparse$model), c(0.75, 0.75))
  expect_s3_class(sparse$history, "gpu_history")
  expect_identical(sparse$layers$unit, rep("non-zeros", 2))
  expect_length(gpu_predict(sparse$model, iris[1:3, ], type = "class"), 3)
})

test_that("whole units are taken out of a real model", {
  skip_without_tensorflow(slow = TRUE)
  data <- iris_rows()
  model <- gpu_mlp(data, units = c(32, 16), seed = 1)
  small <- gpu_prune(
    model, data,
    sparsity = 0.5, structured = TRUE, epochs = 1, engine = "graph_loop", verbose = FALSE
  )
  flops <- small$figures[small$figures$figure == "FLOPs a row", ]
  expect_lte(flops$ratio, 0.5)
  expect_identical(nrow(small$layers), 2L)
  expect_match(small$listed$reason, "gives the output")
})
