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
