# Every S3 method of every result, by its defaults, on results of real calls.

# Results that need a process of their own: their methods are called where they are tested.
elsewhere <- c(
  "gpu_check", "gpu_cluster", "gpu_cluster_test", "gpu_install", "gpu_launch", "gpu_mlp_fit",
  "gpu_saved", "gpu_server", "gpu_tensorboard"
)

# One result of each class, of one small model where that is enough.
make_results <- function(folder) {
  set.seed(1)
  frame <- data.frame(
    size = as.numeric(1:96), weight = cos(1:96), colour = factor(c("blue", "red", "red")[1:96 %% 3 + 1])
  )
  frame$kind <- factor(ifelse(frame$size > 48, "yes", "no"))
  data <- gpu_dataset(kind ~ size + weight + colour, frame, batch_size = 32, validation = 0.25)
  schedule <- schedule_one_cycle(0.01)
  model <- gpu_mlp(data, units = 4, seed = 1)
  fit <- function() gpu_fit(model, data, epochs = 3, engine = "graph_loop", verbose = 0)
  monitor <- gpu_monitor(history <- fit(), interval = 0.05)
  builder <- function(units) gpu_mlp(data, units = units, seed = 1)
  tuning <- gpu_tune(
    data, builder,
    units = tune_values(2, 4), trials = 2, epochs = 2, verbose = FALSE
  )
  fits <- gpu_fit_many(
    data, function() gpu_mlp(data, units = 2, seed = 1),
    seeds = 1:2, epochs = 3, verbose = FALSE
  )
  accelerate_report <- accelerate_report()
  linear <- gpu_mlp(data, units = integer(), seed = 1)
  gpu_fit(linear, data, epochs = 1, engine = "graph_loop", verbose = 0)
  list(
    gpu_accelerate = accelerate_report,
    gpu_attributions = gpu_attributions(model, data, steps = 5),
    gpu_batch_size = gpu_batch_size(model, data, from = 8, to = 32, seconds = 0.05, verbose = FALSE),
    gpu_calibration = gpu_calibrate(model, data, part = "validation"),
    gpu_compression = gpu_quantize(model, data = data),
    gpu_cost = gpu_cost(model),
    gpu_dataset = data,
    gpu_devices = gpu_devices(),
    gpu_effects = gpu_effects(model, data, grid = 5),
    gpu_export = gpu_export(model, file.path(folder, "exported"), format = "savedmodel"),
    gpu_family = gpu_family("poisson"),
    gpu_fits = fits,
    gpu_histories = rbind(a = history, b = fit()),
    gpu_history = history,
    gpu_importance = gpu_importance(model, data, repeats = 2),
    gpu_learning_rate = gpu_learning_rate(model, data, steps = 20),
    gpu_marshalled = gpu_marshal(model),
    gpu_memory = gpu_memory(),
    gpu_monitor = monitor,
    gpu_profile = gpu_profile(model, data, steps = 3, verify = FALSE),
    gpu_recipe = gpu_recipe(data),
    gpu_reproduction = gpu_reproduce(model, data, epochs = 1),
    gpu_schedule = schedule,
    gpu_setting = tune_range(1, 2),
    gpu_setup = gpu_setup(),
    gpu_summary = gpu_summary(linear, data),
    gpu_track = gpu_track(path = folder),
    gpu_tuning = tuning,
    summary.gpu_dataset = summary(data),
    summary.gpu_history = summary(history),
    summary.gpu_tuning = summary(tuning)
  )
}

# The methods of a class that NAMESPACE registers, but those of packages whose own tests call them.
methods_of <- function(registered, classes) {
  tested <- registered[, 2] %in% classes & !grepl("vetiver|parsnip", paste(registered[, 1], registered[, 4]))
  sub(".*::", "", registered[tested, 1])
}

generic <- function(name) {
  home <- c(autoplot = "ggplot2", tidy = "generics", glance = "generics", augment = "generics")
  if (name %in% names(home)) getExportedValue(home[[name]], name) else get(name, mode = "function")
}

# Calls a method by its defaults, with what it cannot do without.
call_method <- function(name, x, newdata) {
  more <- switch(name,
    rbind = list(x), `[` = list(1), `[[` = list(1), augment = list(newdata),
    predict = list(newdata)
  )
  do.call(generic(name), c(list(x), more))
}

test_that("each method of each result works by its defaults", {
  skip_without_tensorflow(slow = TRUE)
  folder <- withr::local_tempdir()
  withr::local_pdf(NULL)
  had_ggplot2 <- isNamespaceLoaded("ggplot2")
  results <- make_results(folder)
  registered <- parseNamespaceFile("gpukeras", dirname(system.file(package = "gpukeras")))$S3methods
  known <- unique(grep("^(summary[.])?gpu_", registered[, 2], value = TRUE))
  expect_identical(setdiff(known, c(names(results), elsewhere, "gpu_result", "gpu_dataset")), character())
  newdata <- data.frame(size = 1, weight = 1, colour = "red")
  newdata$kind <- factor("no", c("no", "yes"))
  called <- list()
  for (class in names(results)) {
    expect_s3_class(results[[class]], class)
    names <- methods_of(registered, intersect(class(results[[class]]), known))
    for (name in setdiff(names, "autoplot")) {
      tryCatch(
        capture.output(call_method(name, results[[class]], newdata)),
        # Generics of stats need rows, or a model: test-generics.R reads what they say.
        gpukeras_error = function(error) {
          expect_true(name %in% getNamespaceExports("stats"), info = conditionMessage(error))
        }
      )
      called <- c(called, paste(class, name))
    }
  }
  if (!had_ggplot2) expect_false(isNamespaceLoaded("ggplot2"))
  skip_if_not_installed("ggplot2")
  for (class in names(results)) {
    if ("autoplot" %in% methods_of(registered, class)) {
      drawn <- call_method("autoplot", results[[class]], newdata)
      expect_s3_class(drawn, "ggplot")
      ggplot2::ggplot_build(drawn)
      called <- c(called, paste(class, "autoplot"))
    }
  }
  expect_true(all(c("gpu_effects plot", "gpu_effects autoplot", "gpu_fits [[") %in% called))
})
