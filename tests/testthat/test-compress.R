# What the core reports of a compression.
a_compression_record <- function(..., kind = "quantize", model = "the model") {
  latency <- function(rows, median, p95) {
    list(rows = rows, median_s = median, p95_s = p95, runs = 100L)
  }
  figures <- function(scale, accuracy, loss) {
    list(
      disk_bytes = 1e6 * scale, packed_bytes = 9e5 * scale, parameters = 250000L,
      nonzeros = 249000L, flops = 5e5,
      latency = list(latency(1L, 0.0009 * scale, 0.0012), latency(64L, 0.004, 0.005 * scale)),
      metrics = list(loss = loss, accuracy = accuracy), part = "validation"
    )
  }
  change <- function(layer, kind, text, before, after, unit) {
    list(layer = layer, kind = kind, change = text, before = before, after = after, unit = unit)
  }
  report <- list(
    kind = kind, before = figures(1, 0.95, 0.2), after = figures(0.25, 0.94, 0.21),
    settings = list(mode = "int8", exclude = list()),
    layers = list(
      change("dense", "Dense", "to int8", 32, 8, "bits a weight"),
      change("convolution", "Conv2D", "to SeparableConv2D", 129024, 26208, "FLOPs")
    ),
    listed = list(list(layer = "conv", kind = "Conv2D", reason = "Keras has no int8 for Conv2D")),
    metric = "accuracy", drop = 0.01, seconds = 3.14159, device = "CPU:0",
    notes = list("Nothing had to be calibrated."), training = NULL
  )
  changes <- list(...)
  report[names(changes)] <- changes
  list(model = model, report = report)
}

a_compression <- function(...) new_gpu_compression(a_compression_record(...))

# Without rows, and with a size that is not known.
a_bare_compression <- function() {
  record <- a_compression_record(listed = list(), layers = list(), notes = list())
  record$report["drop"] <- list(NULL)
  record$report$metric <- ""
  for (side in c("before", "after")) {
    record$report[[side]]$metrics <- list()
    record$report[[side]]["flops"] <- list(NULL)
    record$report[[side]]$latency[[2]] <- NULL
  }
  new_gpu_compression(record)
}

test_that("a compression prints both models, what was lost and what was done", {
  expect_snapshot({
    print(a_compression())
    print(a_compression(), most = 1)
    print(a_bare_compression())
    print(a_compression(
      kind = "distill", settings = list(temperature = 3, width = 0.5), drop = -0.0125
    ))
  })
})

test_that("print() gives its argument back, invisibly", {
  capture.output(answer <- withVisible(print(a_compression())))
  expect_identical(answer$value, a_compression())
  expect_false(answer$visible)
})

test_that("as.data.frame() has a row a figure, numbers where they are known", {
  frame <- as.data.frame(a_compression())
  expect_named(frame, c("figure", "unit", "before", "after", "ratio"))
  expect_identical(nrow(frame), 11L)
  expect_identical(frame$ratio[frame$figure == "size on disk"], 0.25)
  expect_equal(frame$after[frame$figure == "latency, 64 rows (95th percentile)"], 0.00125)
  bare <- as.data.frame(a_bare_compression())
  expect_identical(bare$before[bare$figure == "FLOPs a row"], NA_real_)
  expect_identical(nrow(bare), 7L)
})

test_that("layers and what is listed are data frames, also if there are none", {
  expect_identical(a_compression()$layers$after, c(8, 26208))
  expect_identical(a_compression()$listed$reason, "Keras has no int8 for Conv2D")
  expect_identical(nrow(a_bare_compression()$layers), 0L)
  expect_identical(nrow(a_bare_compression()$listed), 0L)
})

test_that("the model and the training's history are there", {
  expect_identical(a_compression()$model, "the model")
  expect_null(a_compression()$history)
  expect_s3_class(a_compression(training = a_report())$history, "gpu_history")
})

test_that("plots draw both models for each figure that is known", {
  skip_outside_lane()
  withr::local_pdf(NULL)
  expect_invisible(plot(a_compression()))
  expect_invisible(plot(a_bare_compression()))
  drawn <- drawn_figures(a_compression())
  expect_identical(levels(drawn$model), c("model after", "model before"))
  expect_false(any(grepl("95th|loss", drawn$figure)))
  expect_identical(drawn$share[drawn$model == "model before"], rep(1, 8))
  expect_identical(levels(drawn_figures(a_compression(kind = "distill"))$model), c(
    "student", "teacher"
  ))
  skip_if_not_installed("ggplot2")
  built <- ggplot2::ggplot_build(ggplot2::autoplot(a_compression()))
  expect_identical(nrow(built$data[[1]]), 16L)
})

test_that("options cross as the core takes them", {
  skip_without_tensorflow()
  model <- a_model()
  seen <- NULL
  local_core(function(name, args) {
    seen <<- list(name = name, args = args)
    answer(a_compression_record())
  })
  gpu_quantize(model, "int4", exclude = "dense", max_drop = 0.01)
  expect_identical(seen$name, "quantize")
  expect_identical(seen$args$options$exclude, list("dense"))
  expect_identical(seen$args$options[c("mode", "max_drop")], list(mode = "int4", max_drop = 0.01))
  expect_null(seen$args$data)
  gpu_distill(model, list(1, 1), epochs = 0, schedule = schedule_exponential(0.1))
  expect_identical(seen$name, "distill")
  expect_type(seen$args$options$fit$schedule, "list")
})

test_that("bad arguments are refused", {
  expect_error(gpu_quantize(1), class = "gpukeras_error_spec")
  expect_error(fit_options(3), class = "gpukeras_error_spec")
  expect_snapshot(fit_options(3), error = TRUE)
  expect_error(fit_options(engine = NA), class = "gpukeras_error_spec")
  skip_without_tensorflow()
  model <- a_model()
  expect_error(gpu_quantize(model, "int2"), '"int8", "int4", "float8"')
  expect_error(gpu_quantize(model, max_drop = 0.1), "needs `data`", class = "gpukeras_error_spec")
  expect_error(gpu_distill(model, 3), class = "gpukeras_error_data")
})

test_that("a model becomes smaller, and predicts data frames again", {
  skip_without_tensorflow()
  data <- gpu_dataset(Species ~ ., data = iris, validation = 0.2, seed = 1)
  model <- trained(data)
  small <- gpu_quantize(model, "int8", data)
  expect_s3_class(small, "gpu_compression")
  expect_equal(gpu_predict(small$model, iris), gpu_predict(model, iris), tolerance = 0.05)
  expect_identical(gpu_predict(small, iris), gpu_predict(small$model, iris))
  taught <- gpu_distill(model, data, epochs = 1, engine = "keras", verbose = 0)
  expect_identical(taught$layers$after, 2)
  expect_s3_class(taught$history, "gpu_history")
  expect_identical(dim(gpu_predict(taught$model, iris)), c(150L, 3L))
  if (!is_nightly()) {
    return() # a student that is worse than allowed: by Python's `test_distillation.py` in each run
  }
  gpu_fit(model, data, epochs = 40, engine = "graph_loop", verbose = 0) # the student has one epoch
  expect_error(
    gpu_distill(
      model, data,
      width = 0.25, epochs = 1, engine = "keras", max_drop = 0, metric = "loss", verbose = 0
    ),
    class = "gpukeras_error_compression"
  )
})
