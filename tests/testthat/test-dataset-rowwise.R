rows <- local({
  n <- 40
  data.frame(
    y = cos(seq_len(n)), x = sin(seq_len(n)), z = sqrt(seq_len(n)), g = rep(c("p", "q"), n / 2),
    cyl = rep(c(4, 6, 8, 8), n / 4), day = as.Date("2024-01-01") + seq_len(n),
    w = seq_len(n) / n, f = factor(rep(c("p", "q"), each = n / 2))
  )
})

split <- function(formula, data = rows, ...) split_formula(formula, data, environment(formula), ...)

refused <- function(formula, ...) {
  error <- tryCatch(split(formula, ...), gpukeras_error_data = identity)
  if (inherits(error, "gpukeras_error_data")) gsub("\\s+", " ", conditionMessage(error)) else "none"
}

test_that("terms that depend on the other rows are refused, wherever they stand", {
  skip_outside_lane()
  found <- function(x) stats::ave(x, rows$g[seq_along(x)])
  counted <- function(x) stats::ave(x, x, FUN = length)
  for (formula in c(
    y ~ I(x - mean(x)), y ~ ifelse(z > median(z), 1, 0), y ~ cut(x, 3), y ~ I(scale(x)^2),
    y ~ log(base::scale(z) + 3), y ~ rank(x), y ~ cumsum(x), y ~ c(NA, x[-40]), y ~ rev(z),
    y ~ I(z / max(z)), y ~ I(z == max(z)), y ~ seq_along(x), y ~ stats::ave(x, g),
    y ~ counted(cyl), y ~ duplicated(cyl), y ~ I(cyl %in% head(sort(cyl), 3)),
    y ~ as.integer(factor(cyl)), y ~ match(g, unique(g)), y ~ poly(x, 2, simple = TRUE),
    y ~ x:cumsum(z), y ~ g:I(z - min(z)), y ~ I(day - day[1]), y ~ stats::lowess(z, x)$y,
    y ~ x + offset(z - mean(z)), y ~ offset(scale(z)[, 1]) + x, scale(y) ~ x, I(y - mean(y)) ~ x,
    list(a = y, b = rank(y)) ~ x, cut(y, 2) ~ ., y ~ stats::runif(length(x)), y ~ found(x),
    y ~ stats::relevel(factor(g), "p")
  )) {
    expect_match(
      refused(formula), "depends on the other rows, which new rows would change|cannot be computed",
      info = deparse(formula)
    )
  }
  expect_match(refused(y ~ x, weigh = quote(w / mean(w))), "`w/mean(w)` of the formula", fixed = TRUE)
  expect_snapshot(error = TRUE, {
    split(y ~ I(x - mean(x)))
    split(y ~ factor(cyl, c(4, 6, 8)[1:length(unique(cyl))]))
    split(y ~ stats::relevel(factor(g), "p"))
    split(y ~ apply(cbind(x, z), 1, max))
  })
})

test_that("terms of their row alone are taken, whatever the rows", {
  skip_outside_lane()
  twice <- function(x) if (length(x) > 1) vapply(x, function(one) 2 * one, 0) else 2 * x
  for (formula in c(
    y ~ I(x^2) + log(z), y ~ cut(z, c(0, 2, 4, 7)), y ~ factor(cyl), y ~ as.factor(g):x, y ~ scale(x),
    y ~ poly(x, 3) + splines::ns(z, 3) + splines::bs(x, 4), y ~ cbind(x, z), y ~ format(day, "%m"),
    y ~ pmin(x, z) + ifelse(x > 0.5, x, NA), y ~ factor(g, levels = c("q", "p")), y ~ twice(x),
    y ~ stats::relevel(f, "p"), y ~ is.na(x), y ~ months(day), y ~ rowSums(cbind(x, z)),
    log(z) ~ x + offset(log(w)), factor(cyl) ~ x, list(y, g) ~ x, y ~ I(x == 0), cbind(x, z) ~ w,
    y ~ ordered(cyl), y ~ nchar(g) + toupper(g), y ~ as.numeric(day), y ~ interaction(g, cyl)
  )) {
    expect_identical(refused(formula), "none", info = deparse(formula))
  }
  expect_identical(refused(y ~ I(x - mean(x)), rows[1, ]), "none") # it shows by two rows only
  expect_identical(refused(y ~ twice(x), rows[1:2, ]), "none")
})

test_that("what depends on rare rows, or on the order of many, is found", {
  many <- data.frame(y = 0, x = rep(0:1, 15000), v = seq_len(30000) %% 7)
  expect_match(refused(y ~ ifelse(x > median(x), 1, 0), many), "depends")
  expect_match(refused(y ~ I(v >= quantile(v, 0.9)), many), "depends")
  expect_match(refused(y ~ c(0, diff(v)), many), "depends")
})

test_that("codes that rows without the first level would change are found", {
  first <- transform(rows, am = rep(c(0, 1, 0, 0), 10), kind = rep(c("a", "a", "b", "a"), 10))
  for (formula in c(
    y ~ as.integer(factor(am)), as.integer(factor(kind)) ~ x, y ~ match(am, unique(am))
  )) {
    expect_match(refused(formula, first), "depends", info = deparse(formula))
  }
  expect_identical(refused(factor(am) ~ factor(kind) + I(am * x), first), "none")
})

test_that("factor(x, labels = ) learns its levels, as a feature and as a label", {
  labelled <- function(values) factor(values, c(4, 6, 8), c("four", "six", "eight"))
  parts <- split(y ~ factor(cyl, labels = c("four", "six", "eight")) + x)
  name <- "factor(cyl, labels = c(\"four\", \"six\", \"eight\"))"
  expect_identical(parts$x[[name]], labelled(rows$cyl))
  expect_identical(show_formula(parts$formula), paste("y ~", name, "+ x"))
  take <- function(data) take_features(read_formula(formula_text(parts$formula)), data)
  expect_identical(take(rows[2:3, ])[[name]], labelled(c(6, 8)))
  expect_error(take(transform(rows, cyl = 5)), class = "gpukeras_error_data")
  expect_identical(take(transform(rows[1:2, ], cyl = NA))[[name]], labelled(c(NA, NA)))
  crossed <- split(y ~ factor(cyl, labels = c("a", "b", "c")):x)
  take <- function(data) take_features(read_formula(formula_text(crossed$formula)), data)
  expect_identical(take(rows[3:4, ])[[3]], rows$x[3:4])
  expect_error(take(transform(rows, cyl = 5)), class = "gpukeras_error_data")
  parts <- split(factor(g, labels = c("one", "two")) ~ x)
  again <- split_parts(read_formula(parts$formula), rows[2, ])
  expect_identical(as.character(again$y), "two")
  expect_match(refused(y ~ factor(cyl, labels = c("a", "b"))), "cannot be computed")
})

test_that("a status of 1 and 2 means the same in rows of any status", {
  skip_if_not_installed("survival")
  data <- data.frame(time = 1:8, status = rep(1:2, 4), x = 1:8)
  for (formula in c(
    survival::Surv(time, status) ~ x, survival::Surv(time, event = status) ~ x,
    survival::Surv(event = status, time = time) ~ x
  )) {
    parts <- split(formula, data)
    expect_identical(unname(parts$y[, 2]), as.numeric(data$status == 2))
    alive <- data[data$status == 1, ]
    expect_identical(unname(split_parts(read_formula(parts$formula), alive)$y[, 2]), numeric(4))
    other <- transform(data, status = status - 1) # 1 is an event there
    expect_warning(found <- split_parts(read_formula(parts$formula), other)$y, "Invalid status")
    expect_identical(unname(is.na(found[, 2])), other$status == 0)
  }
  zeros <- split(survival::Surv(time, status - 1) ~ x, data)
  expect_identical(zeros$formula, "Surv(time, status - 1) ~ x")
})
