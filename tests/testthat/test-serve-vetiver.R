# What vetiver asks of models; through vetiver itself where it is installed.

a_record <- function(columns, formula = NULL) {
  list(recipe = list(recipe = list(kind = "columns", columns = columns, formula = formula)))
}

with_recipe <- function(...) {
  structure(
    list(kind = "model", files = list(model.keras = raw(2000)), record = a_record(...)),
    class = c("gpu_marshalled", "gpu_result")
  )
}

test_that("the prototype has the recipe's names, types and levels", {
  model <- with_recipe(formula = "y ~ a + `b c` + day", list(
    list(name = "a", kind = "number"),
    list(name = "b c", kind = "category", levels = list("u", "v")),
    list(name = "day", kind = "date"),
    list(name = "at", kind = "time", zone = "UTC")
  )[1:3])
  expected <- data.frame(a = numeric(), b = factor(character(), c("u", "v")), day = Sys.Date()[0])
  names(expected)[2] <- "b c"
  expect_identical(vetiver_prototype(model), expected)
  flags <- with_recipe(list(list(name = "f", kind = "number", logical = TRUE)))
  expect_identical(vetiver_prototype(flags), data.frame(f = logical()))
  timed <- with_recipe(list(list(name = "at", kind = "time", zone = "UTC")))
  expect_identical(attr(vetiver_prototype(timed)$at, "tzone"), "UTC")
})

test_that("columns that a formula computes need rows", {
  computed <- with_recipe(list(list(name = "log(wt)", kind = "number")), "mpg ~ log(wt)")
  expect_snapshot(error = TRUE, vetiver_prototype(computed))
  given <- vetiver_prototype(computed, prototype_data = mtcars["wt"])
  expect_identical(given, mtcars[0, "wt", drop = FALSE])
})

test_that("predictions become a data frame, whatever their shape", {
  expect_identical(as_prediction_frame(c(1, 2)), data.frame(.pred = c(1, 2)))
  expect_identical(as_prediction_frame(factor("u"))$.pred, "u")
  wide <- as_prediction_frame(matrix(1:4, 2, dimnames = list(NULL, c("a b", "c"))))
  expect_named(wide, c("a b", "c"))
  expect_identical(as_prediction_frame(data.frame(.pred = 1, .pred_lower = 0))$.pred_lower, 0)
})

test_that("vetiver stores and serves marshalled models and fits of the engine", {
  skip_if_not_installed("vetiver")
  skip_without_tensorflow()
  silence_tensorflow()
  frame <- transform(mtcars, cyl = factor(cyl))
  fit <- gpu_mlp_fit(mpg ~ wt + cyl, frame, units = 2, epochs = 1, seed = 1)
  expected <- as.vector(gpu_predict(fit, frame))
  sent <- transform(frame, cyl = as.character(cyl))
  for (model in list(gpu_marshal(resolve_saved(fit)), fit)) {
    v <- vetiver::vetiver_model(model, "cars")
    v <- unserialize(serialize(v, NULL)) # as a board keeps it
    expect_identical(v$metadata$required_pkgs, "gpukeras")
    expect_match(v$description, "^A Keras model of gpukeras, ")
    expect_identical(levels(v$prototype$cyl), c("4", "6", "8"))
    expect_no_error(vetiver::handler_startup(v))
    answered <- vetiver::handler_predict(v)(list(body = sent))
    expect_equal(answered$.pred, expected)
    expect_equal(as.vector(predict(v, frame)), expected)
    expect_error(vetiver::handler_predict(v)(list(body = sent["wt"])), "cyl")
  }
})
