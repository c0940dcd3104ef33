an_attribution <- function(values = cbind(c(1, -2, 0), c(0.5, 0.5, 0)), columns = c("a", "b"),
                           missing = 3L, notes = list()) {
  new_gpu_attributions(list(
    values = values, columns = as.list(columns), outputs = c(1.5, -1.5, 0), baselines = c(0, 0, 0),
    classes = list("yes", "no", ""), missing = missing, gap = 1e-4, notes = notes
  ))
}

test_that("rows with missing values have NA", {
  found <- an_attribution()
  expect_identical(colnames(found$values), c("a", "b"))
  expect_identical(found$class, c("yes", "no", NA))
  expect_identical(found$output, c(1.5, -1.5, NA))
  expect_true(all(is.na(found$values[3, ])))
  expect_equal(as.data.frame(found)$a, c(1, -2, NA))
})

test_that("attributions print", {
  picture <- array(seq_len(24), c(3, 2, 2, 2))
  expect_snapshot({
    an_attribution()
    print(an_attribution(notes = list("The sums miss.")), most = 1)
    an_attribution(picture, character(), integer())
  })
  expect_snapshot(as.data.frame(an_attribution(picture, character(), integer())), error = TRUE)
})

test_that("attributions of columns and images are drawn", {
  withr::local_pdf(NULL)
  found <- an_attribution()
  expect_identical(plot(found), found)
  picture <- an_attribution(array(seq_len(24), c(3, 2, 2, 2)), character(), integer())
  expect_identical(plot(picture, row = 2), picture)
})

test_that("attributions of R's rows add up to the differences of predictions", {
  skip_without_tensorflow()
  frame <- mixed_frame()
  model <- trained(gpu_dataset(y ~ ., frame))
  found <- gpu_attributions(model, frame[1:5, ], steps = 300)
  expect_setequal(colnames(found$values), setdiff(names(frame), "y"))
  expect_equal(found$output, gpu_predict(model, frame[1:5, ]), tolerance = 1e-5)
  expect_equal(rowSums(found$values), found$output - found$baseline, tolerance = 0.02)
  own <- gpu_attributions(model, frame[1:5, ], baseline = frame[1, ])
  expect_equal(unname(own$values[1, ]), rep(0, ncol(frame) - 1))
  expect_equal(own$baseline, rep(found$output[1], 5), tolerance = 1e-5)
  expect_snapshot(error = TRUE, {
    gpu_attributions(model, frame, baseline = frame[1:2, ])
    gpu_attributions(model, frame, class = "yes")
  })
})

test_that("the baseline has the training rows' mean offset", {
  skip_without_tensorflow(slow = TRUE)
  set.seed(1)
  rows <- data.frame(x = rnorm(40), z = rnorm(40), exposure = runif(40, 100, 1000))
  rows$count <- rpois(40, rows$exposure * exp(-3 + rows$x))
  data <- gpu_dataset(count ~ x + z + offset(log(exposure)), rows)
  model <- gpu_mlp(data, units = 3, family = "poisson", seed = 1)
  gpu_fit(model, data, epochs = 1, verbose = FALSE)
  middle <- data.frame(x = mean(rows$x), z = mean(rows$z), exposure = exp(mean(log(rows$exposure))))
  found <- gpu_attributions(model, rows[1:3, ], steps = 100)
  expect_equal(found$baseline, rep(gpu_predict(model, middle), 3), tolerance = 1e-5)
  expect_equal(rowSums(found$values), found$output - found$baseline, tolerance = 1e-4)
  own <- gpu_attributions(model, rows[1:3, ], baseline = rows[4, ])
  expect_equal(own$baseline, rep(gpu_predict(model, rows[4, ]), 3), tolerance = 1e-5)
})
