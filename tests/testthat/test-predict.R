test_that("many predictions are those of few rows, and later ones leave them alone", {
  skip_without_tensorflow()
  x <- a_matrix(1000)[rep(1:1000, 101), ]
  for (units in 1:2) {
    model <- a_model(units = units, activation = "linear")
    some <- gpu_predict(model, x[1:1000, ])
    found <- gpu_predict(model, x)
    expect_identical(NROW(found), 101000L)
    expect_identical(dim(found), if (units == 2) c(101000L, 2L))
    expect_equal(utils::tail(found, 1000), some, tolerance = 1e-6, ignore_attr = TRUE)
    before <- found + 0
    gpu_predict(model, -x)
    expect_identical(found, before)
    found[1] <- 7
    expect_false(any(gpu_predict(model, x) == 7))
  }
})
