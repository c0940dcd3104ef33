# Energy in the record of a monitor; the record itself is in test-monitor.R.

test_that("energy is a data frame, and told in mWh or Wh", {
  told <- list(device = "GPU:0", wh = 0.0467, mean_w = 210, seconds = 0.8, source = "its counter")
  missing <- list(device = "CPU", wh = NULL, mean_w = NULL, seconds = 0, source = "only root may")
  energy <- as_energy(list(told, missing))
  expect_identical(energy$device, c("GPU:0", "CPU"))
  expect_identical(energy$wh, c(0.0467, NA))
  expect_identical(
    format_energy(energy), "Energy of GPU:0: 46.7 mWh (210 W on average, by its counter)."
  )
  expect_null(format_energy(energy[2, ]))
  expect_null(format_energy(NULL)) # a record of an earlier version
  expect_identical(format_wh(c(0.0467, 12.34)), c("46.7 mWh", "12.3 Wh"))
})
