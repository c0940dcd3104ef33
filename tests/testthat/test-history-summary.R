test_that("a summary has the metrics, times and reasons", {
  expect_snapshot(summary(full_history()))
})

test_that("a summary prints engines that refused the model", {
  engine <- list(
    engine = "graph_loop", reason = "measured fastest: 210 us a batch",
    trials = list(
      list(engine = "graph_loop", start_s = 0.4, batch_s = 0.00021, refused = ""),
      list(engine = "compiled", start_s = 0, batch_s = NULL, refused = "no XLA kernel for Where")
    )
  )
  lines <- format(summary(history(engine = engine)))
  expect_match(lines, "compiled refused: no XLA kernel for Where", all = FALSE, fixed = TRUE)
})

test_that("the best value is that of the metric's own direction, and finite", {
  fit <- history_of(
    loss = c(2, NaN, 1, Inf), accuracy = c(0.1, 0.9, 0.5, -Inf), mystery = c(1, 2, 3, 4),
    mean_squared_error = c(NaN, NaN, NaN, NaN)
  )
  metrics <- summary(fit)$metrics
  expect_identical(metrics$best, c(1, 0.9, NA, NA))
  expect_identical(metrics$best_epoch, c(3L, 2L, NA, NA))
  expect_identical(metrics$first, c(2, 0.1, 1, NaN))
  expect_identical(metrics$last, c(Inf, -Inf, 4, NaN))
})

test_that("epochs that no validation followed have no value, and a summary passes over them", {
  fit <- history(
    history = list(loss = list(4, 3, 2, 1), val_loss = list(NaN, 2, NaN, 5), val_auc = list(NaN, 1, NaN, 0)),
    epochs = 4L, epoch_s = list(1, 1, 1, 1), validation_freq = 2L
  )
  expect_identical(fit$history$val_loss, c(NA, 2, NA, 5))
  metrics <- summary(fit)$metrics
  validation <- metrics[metrics$metric == "loss" & metrics$data == "validation", ]
  expect_identical(unlist(validation[c("first", "best", "last")], use.names = FALSE), c(2, 2, 5))
  expect_identical(validation$best_epoch, 2L)
  at_last <- history(
    history = list(loss = list(3, 2, 1), val_loss = list(7, NaN, NaN)), epochs = 3L,
    epoch_s = list(1, 1, 1), validation_freq = list(1L, 3L)
  )
  expect_identical(at_last$history$val_loss, c(7, NA, NaN))
  expect_identical(summary(at_last)$metrics$last, c(1, NaN))
})

test_that("directions are known by name", {
  lower <- c(
    "loss", "head_loss", "mean_absolute_error", "mse", "a_rmse", "kl_divergence", "false_negatives",
    "categorical_crossentropy", "cross_entropy", "kld",
    "squared_hinge", "poisson", "logcosh", "cosine_similarity_loss"
  )
  higher <- c(
    "accuracy", "acc", "sparse_top_k_categorical_accuracy", "auc", "AUC_pr", "auc2", "precision_1",
    "recall", "f1_score", "mean_io_u", "r2_score", "cosine_similarity", "sensitivity_at_specificity"
  )
  expect_identical(unique(metric_direction(tolower(lower))), -1)
  expect_identical(unique(metric_direction(tolower(higher))), 1)
  expect_identical(metric_direction(c("mystery", "mean", "")), c(0, 0, 0))
  expect_identical(metric_direction("brier_score"), -1)
})

test_that("the core knows the same words", {
  skip_without_core()
  core <- reticulate::import_from_path("gpukeras.models.metric_modes", path = system.file("python", package = "gpukeras"))
  sorted <- reticulate::import_builtins()$sorted
  expect_setequal(maximised_words, sorted(core$MAXIMISED))
  expect_setequal(minimised_words, sorted(core$MINIMISED))
})
