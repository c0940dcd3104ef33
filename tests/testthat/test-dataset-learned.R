rows <- local({
  n <- 50
  data.frame(y = cos(seq_len(n)), x = sin(seq_len(n)), z = sqrt(seq_len(n)), b = c("p", "q"))
})

split <- function(formula, data = rows, ...) split_formula(formula, data, environment(formula), ...)
apply_text <- function(text, data) take_features(read_formula(text), data)

test_that("new rows have the basis of the training rows, as predict() of lm() gives it", {
  skip_outside_lane()
  new <- transform(rows[41:50, ], y = NULL)
  for (formula in c(
    y ~ poly(x, 3), y ~ splines::ns(x, df = 4), y ~ splines::bs(z, df = 5), y ~ scale(z),
    y ~ scale(x, scale = FALSE), y ~ poly(x, 2, raw = TRUE) + z, y ~ stats::poly(log(z), 2),
    y ~ scale(cbind(x, z)), y ~ splines::ns(z, knots = c(2, 4)), y ~ poly(x, z, degree = 2),
    y ~ splines::bs(x, degree = 2) + poly(z, 1)
  )) {
    train <- rows[1:40, ]
    parts <- split(formula, train)
    frame <- stats::model.frame(formula, train)
    trained <- stats::delete.response(stats::terms(frame))
    suppressWarnings( # bs() says that new rows lie beyond its knots
      expected <- stats::model.matrix(trained, stats::model.frame(trained, new))[, -1, drop = FALSE]
    )
    found <- suppressWarnings(apply_text(parts$formula, new))
    expect_equal(as.matrix(found), expected, ignore_attr = "dimnames", info = deparse(formula))
    expect_named(found, colnames(expected))
    expect_identical(names(parts$x), names(found))
  }
})

test_that("base::scale() and the like learn, though R's own machinery looks at the name only", {
  parts <- split(y ~ base::scale(z), rows[1:40, ])
  found <- apply_text(parts$formula, rows[41:50, ])[[1]]
  expect_equal(found, (rows$z[41:50] - mean(rows$z[1:40])) / stats::sd(rows$z[1:40]))
})

test_that("the text keeps all digits, and shows what the user wrote", {
  parts <- split(y ~ poly(x, 2) + b:splines::ns(z, 3))
  expect_identical(apply_text(parts$formula, rows), parts$x)
  expect_identical(show_formula(parts$formula), "y ~ poly(x, 2) + b:splines::ns(z, 3)")
  expect_identical(show_formula("y ~ .learned("), "y ~ .learned(")
})

test_that("terms learn from the rows that are named, and not from a recipe's new rows", {
  learned <- function(formula, ...) apply_text(split(formula, ...)$formula, rows)
  some <- learned(y ~ scale(z), rows = 1:10)
  expect_equal(some[[1]], (rows$z - mean(rows$z[1:10])) / stats::sd(rows$z[1:10]))
  recipe <- split(y ~ scale(z) + b:x, rows[1:10, ])
  again <- split(y ~ scale(z) + b:x, rows[11:20, ], known = known_terms(recipe$formula))
  expect_identical(again$formula, recipe$formula)
  expect_error(
    split(y ~ b:x, transform(rows, b = "r"), known = known_terms(recipe$formula)),
    class = "gpukeras_error_data"
  )
  expect_identical(known_terms(NULL), list())
  expect_identical(known_terms("y ~ x"), list())
})

test_that("only calls draw the training rows, and none where rows are dropped first", {
  local_answer(list(c(2, 0), 1))
  expect_identical(learning_rows(y ~ poly(x, 2), rows[1:3, ], 0.3, 1, NULL, NULL), c(3L, 1L))
  expect_null(learning_rows(y ~ poly(x, 2), rows[1:3, ], 0.3, 1, "drop", NULL))
  expect_null(learning_rows(y ~ x * b, rows[1:3, ], 0.3, 1, NULL, NULL))
  expect_null(learning_rows(y ~ poly(x, 2), rows[1:3, ], 0, 1, NULL, NULL))
})

test_that("a function of the user's that learns is kept for the session alone", {
  middle <- function(x, at = mean(x)) structure(x - at, at = at, class = c("middle", "numeric"))
  registerS3method("makepredictcall", "middle", function(var, call) {
    call$at <- attr(var, "at")
    call
  }, asNamespace("stats"))
  parts <- split(y ~ middle(x))
  expect_equal(
    as.vector(apply_text(parts$formula, transform(rows, x = x + 5))[[1]]),
    rows$x + 5 - mean(rows$x)
  )
  bare <- formula_text(parts$formula)
  expect_error(read_formula(bare), class = "gpukeras_error_data")
  expect_error(known_terms(bare), class = "gpukeras_error_data")
})

test_that("what a term learns must be numbers", {
  odd <- function(x) structure(x, class = c("odd", "numeric"))
  registerS3method("makepredictcall", "odd", function(var, call) {
    call$made <- mean
    call
  }, asNamespace("stats"))
  expect_snapshot(split(y ~ odd(x)), error = TRUE)
  expect_snapshot(split(y ~ poly(x, 2, simple = TRUE)), error = TRUE)
})

test_that("learned numbers in a file are constants, and nothing is run", {
  skip_outside_lane()
  found <- function(term) {
    tryCatch(
      {
        read_formula(paste("y ~", term))
        "allowed"
      },
      gpukeras_error_data = function(condition) condition$found
    )
  }
  allowed <- c(
    ".learned(\"p\", poly(x, 1, coefs = list(alpha = c(-0.5), norm2 = c(1, 2, 3))))",
    ".learned(\"n\", ns(log(x), knots = c(1, 2), Boundary.knots = c(0, 3), intercept = FALSE))",
    ".learned(\"b\", bs(x, degree = 3L, knots = c(), Boundary.knots = c(0, 3)))",
    ".learned(\"s\", scale(x, center = -0x1.8p+1, scale = FALSE))",
    "x:.learned(\"b\", factor(b, levels = c(\"p\", \"q\")))"
  )
  for (term in allowed) expect_identical(found(term), "allowed", info = term)
  bare <- "without the numbers"
  refused <- c(
    "poly(x, 3)" = "`poly()`", "splines::ns(x, 3)" = "`splines::ns()`", "scale(x)" = "`scale()`",
    ".learned(\"p\", poly(x, 3))" = bare, ".learned(\"p\", poly(x, 3, coefs = NULL))" = bare,
    ".learned(\"p\", poly(x, system('x'), coefs = list(1)))" = bare,
    ".learned(\"p\", poly(x, 2, coefs = list(alpha = c(1, system('x')))))" = bare,
    ".learned(\"p\", poly(x, 1e9, coefs = list(1)))" = bare,
    ".learned(\"p\", poly(x, , coefs = list(1)))" = bare,
    ".learned(\"p\", poly(x = x, 2, coefs = list(1)))" = bare, ".learned(\"p\", poly())" = bare,
    ".learned(\"p\", poly(cbind(x, z), 2, coefs = list(1)))" = "several columns",
    ".learned(\"p\", poly(system('x'), 2, coefs = list(1)))" = "`system()`",
    ".learned(\"n\", ns(x, df = 3, knots = 1, Boundary.knots = 2))" = bare,
    ".learned(\"b\", bs(x, degree = 1e9, knots = 1, Boundary.knots = c(0, 1)))" = bare,
    ".learned(\"s\", scale(x, center = TRUE, scale = TRUE))" = bare,
    ".learned(\"f\", factor(system('x'), levels = c(\"p\"))):x" = "`system()`",
    ".learned(\"f\", factor(, levels = c(\"p\"))):x" = "an empty argument",
    ".learned(\"f\", factor(b, levels = system('x'))):x" = "no constants",
    ".learned(\"f\", factor(b, levels = base::c(\"p\"))):x" = "no constants",
    ".learned(\"a\", system('x'))" = "`system()`", ".learned(system('x'), x)" = "`.learned()`",
    ".learned(\"a\", .learned(\"b\", x))" = "`.learned()`", ".learned(\"a\", )" = "`.learned()`",
    "log(.learned(\"a\", x))" = "`.learned()`"
  )
  for (term in names(refused)) {
    expect_match(found(term), refused[[term]], fixed = TRUE, info = term)
  }
})

# Survival -----------------------------------------------------------------------------------------

test_that("survival times are a label of two numbers, also out of a file", {
  skip_if_not_installed("survival")
  data <- data.frame(t = c(3, 1, 2), d = c(1, 0, 1), x = 1:3)
  parts <- split(survival::Surv(t, d) ~ ., data)
  expect_named(parts$x, "x")
  y <- as_labels(parts$y, parts$label)
  expect_identical(y$arg, "Surv(t, d)")
  expect_identical(y$names, list("time", "status"))
  expect_identical(y$values[, 2], c(1, 0, 1))
  expect_identical(parts$formula, "Surv(t, d) ~ x")
  new <- split_parts(read_formula(parts$formula), data)
  expect_identical(as_labels(new$y, new$label), y)
  expect_identical(as_labels(survival::Surv(data$t, data$d), "y")$values, y$values)
  found <- function(text) tryCatch(read_formula(text), error = function(error) error$found)
  expect_identical(found("Surv(system('x'), d) ~ x"), "`system()`")
  expect_identical(found("utils::Surv(t, d) ~ x"), "`utils::Surv()`")
})

test_that("survival times that no model takes are refused by name", {
  skip_if_not_installed("survival")
  surv <- function(...) as_labels(survival::Surv(...), "Surv(t, d)")
  expect_snapshot(error = TRUE, {
    surv(c(1, 2), c(2, 3), c(0, 1))
    surv(c(1, 2), c(1, 0), type = "left")
    surv(c(0, -1, 2), c(0, 1, 1))
  })
})

test_that("a package that is not installed is an error of the term", {
  lacking <- stats::as.formula("no.such.package::Surv(x, z) ~ b") # R CMD check reads code
  expect_snapshot(split(lacking), error = TRUE)
})
