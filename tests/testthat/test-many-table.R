some_fits <- function(error = "") {
  member <- function(model, setting, loss) {
    list(
      model = model, setting = setting, seed = NULL, fold = paste0("Fold", model), group = "",
      rows = 20L, held_out = 10L, epochs = length(loss), best_epoch = 0L, stopped = "completed",
      history = list(loss = as.list(loss), val_loss = as.list(loss + 1)), error = ""
    )
  }
  record <- list(
    members = list(
      member(1L, 1L, c(3, 2)), member(2L, 1L, c(3, 1)), member(3L, 2L, c(9, 4)),
      member(4L, 2L, c(9, 6))
    ),
    plan = list(reason = "4 models of one structure: those of one structure train together"),
    batch_size = 32L, device = "CPU:0", elapsed_s = 1.5
  )
  if (nzchar(error)) {
    record$members[[4]][c("epochs", "stopped", "error")] <- list(0L, "failed", error)
    record$members[[4]]$history <- list()
  }
  local_core(function(name, args) answer(if (name == "fits_table") record))
  new_gpu_fits("a handle", list(list(units = 8), list(units = 16)))
}

test_that("the table has a row a model, and its metrics after the last epoch", {
  table <- as.data.frame(some_fits())
  expect_identical(table$units, c(8, 8, 16, 16))
  expect_identical(table$val_loss, c(3, 2, 5, 7))
  expect_null(table$seed)
})

test_that("settings are ranked by the mean of their models", {
  found <- summary(some_fits())
  expect_identical(found$units, c(8, 16))
  expect_identical(found$mean, c(2.5, 6))
  expect_equal(found$std_err, c(sd(c(3, 2)), sd(c(5, 7))) / sqrt(2))
  expect_identical(summary(some_fits(), "loss")$mean, c(1.5, 5))
  expect_identical(best_fit(some_fits()), 2L)
})

test_that("a setting of which a model diverged has no rank, and is not the best one", {
  fits <- some_fits()
  fits$table$val_loss <- c(0.1, NaN, 5, 7)
  found <- summary(fits)
  expect_identical(found$mean, c(6, NaN))
  expect_identical(found$rank, c(1L, NA))
  expect_identical(as_best_models(fits), list(3L, 4L))
  fits$table$val_loss <- c(0.1, NA, 5, Inf) # the second could not be trained
  expect_identical(summary(fits)$models, c(1L, 2L))
  expect_identical(as_best_models(fits), list(1L, 2L))
})

test_that("settings are not ranked by a metric whose name does not say what is better", {
  fits <- some_fits()
  for (name in c("gini", "brier_score", "auc")) fits$table[[name]] <- fits$table$loss
  expect_identical(summary(fits, "gini")$rank, c(NA, NA))
  expect_identical(summary(fits, "gini")$mean, c(1.5, 5))
  expect_identical(summary(fits, "brier_score")$units, c(8, 16))
  expect_identical(summary(fits, "auc")$units, c(16, 8))
})

test_that("a model that no worker could train is told of, and has no metrics", {
  expect_snapshot(fits <- some_fits("its worker was killed by SIGKILL"))
  expect_identical(fits$table$stopped, rep(c("completed", "failed"), c(3, 1)))
  expect_identical(fits$table$val_loss, c(3, 2, 5, NA))
  expect_identical(best_fit(fits), 2L)
})

test_that("tables print, and unknown metrics are named", {
  expect_snapshot(print(some_fits()))
  expect_snapshot(summary(some_fits(), "nothing"), error = TRUE)
})

test_that("a table from another session says that its models are gone", {
  skip_without_core()
  fits <- some_fits()
  fits["handle"] <- list(NULL)
  expect_snapshot(error = TRUE, {
    fits[[1]]
    gpu_predict(fits, mtcars)
    gpu_marshal(list(cars = fits))
  })
  expect_identical(nrow(as.data.frame(fits)), 4L)
})

test_that("curves of all models are drawn", {
  withr::local_pdf(NULL)
  expect_identical(plot(some_fits())$batch_size, 32L)
  skip_if_not_installed("ggplot2")
  drawn <- ggplot2::autoplot(some_fits(), "loss")
  expect_identical(nrow(drawn$data), 8L)
  expect_identical(drawn$labels$y, "loss")
})

test_that("settings with dots in their values remain apart", {
  settings <- expand.grid(a = c(1, 1.5), b = c(5.5, 5), seed = 1:2)
  expect_identical(nlevels(setting_of(settings, c("a", "b"))), 4L)
  expect_identical(nlevels(setting_of(settings, character())), 1L)
})

test_that("a setting is told apart whatever its values are", {
  table <- data.frame(rate = c(0.1, 0.1, 0.2), dropout = c(NA, 0.5, 0.5))
  table$units <- list(8, 8, c(4, 2))
  expect_identical(nlevels(setting_of(table, c("rate", "dropout"))), 3L)
  expect_identical(nlevels(setting_of(table, "units")), 2L)
  expect_false(anyNA(setting_of(table, names(table))))
})

test_that("a setting may have a name that begins as a column of the table, or that of a metric", {
  fits <- some_fits()
  fits$settings <- "group_norm"
  names(fits$table)[names(fits$table) == "units"] <- "group_norm"
  expect_identical(as_best_models(fits), list(1L, 2L)) # not the best of each
  expect_null(as_new_groups(fits, data.frame(x = 1), NULL, NULL))
  fits$settings <- fits$metric <- "loss"
  names(fits$table)[names(fits$table) == "group_norm"] <- "loss"
  fits$table[["loss"]] <- c("mse", "mse", "mae", "mae")
  expect_identical(best_fit(fits), 2L)
  expect_identical(as_best_models(fits), list(1L, 2L))
  expect_identical(summary(fits)$mean, c(1.5, 5))
  grid <- data.frame(rows = 1:2)
  expect_snapshot(check_settings_grid(grid, function(rows) NULL, NULL), error = TRUE)
})

test_that("groups are told apart by all their digits, and equal ones are one", {
  near <- 2^52 + c(1, 2, 1)
  groups <- as_groups_of_rows(near)
  expect_identical(groups$names, list("4503599627370497", "4503599627370498"))
  expect_identical(as.vector(groups$codes), c(0L, 1L, 0L))
  expect_identical(name_groups(c(1e5, NA)), name_groups(c(100000L, NA)))
  expect_length(unique(name_groups(1 / 3 + c(0, 2^-54))), 2)
  expect_identical(as_groups_of_rows(factor(c("b", "a"), c("b", "a", "c")))$names, list("b", "a"))
  dates <- as.Date("2024-01-01") + c(0.25, 0.5)
  expect_snapshot(as_groups_of_rows(dates, NULL), error = TRUE)
})
