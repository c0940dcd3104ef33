rows <- local({
  n <- 24
  data.frame(
    y = cos(seq_len(n)), x = sin(seq_len(n)), z = sqrt(seq_len(n)), g = rep(c("u", "v", "w"), 8),
    f = factor(rep(c("q", "p"), each = 12)), k = rep(c(1.5, 2), 12)
  )
})

split <- function(formula, data = rows, ...) split_formula(formula, data, environment(formula), ...)

test_that("terms that mean more to other packages than their values are refused by name", {
  skip_outside_lane()
  said <- function(term, env) {
    formula <- stats::as.formula(paste("y ~ x +", term), env)
    error <- tryCatch(split_formula(formula, rows, env), gpukeras_error_data = identity)
    if (inherits(error, "gpukeras_error_data")) strsplit(conditionMessage(error), "\n")[[1]][1]
  }
  cases <- c(
    # survival and coxme
    "cluster(g)", "survival::cluster(g)", "frailty(g)", "frailty.gaussian(g)", "tt(x)",
    "pspline(x)", "survival::pspline(x, df = 3)", "ridge(x, z)", "log(strata(g))", "strat(g)",
    # mgcv, gam, VGAM, gamlss, quantreg, mboost
    "s(x)", "mgcv::s(x, k = 4)", "te(x, z)", "ti(x)", "t2(x)", "lo(x)", "s(x, by = g)", "pb(x)",
    "qss(x)", "bbs(x)", "random(g)",
    # lme4, nlme, stats, brms, gnm
    "(1 | g)", "(x || g)", "(1 | g/f)", "Error(g)", "mo(f)", "Mult(x, z)",
    "C(f, contr.sum)", "stats::C(f)", "x:C(f, contr.helmert)", "stats::offset(x)"
  )
  attached <- new.env(parent = globalenv()) # as after library()
  for (package in Filter(rlang::is_installed, c("survival", "mgcv", "lme4"))) {
    for (name in getNamespaceExports(package)) {
      value <- getExportedValue(package, name)
      if (is.function(value)) assign(name, value, attached)
    }
  }
  for (term in cases) {
    bare <- said(term, globalenv())
    expect_match(bare, "^The term", info = term)
    expect_identical(said(term, attached), bare, info = term)
  }
  expect_snapshot(error = TRUE, {
    split(y ~ x + cluster(g))
    split(y ~ x + s(z, k = 5))
    split(y ~ x + (1 | g))
    split(y ~ C(f, contr.sum))
    split(y ~ x + log(strata(g)))
    split(y ~ x + survival::strata(g, na.group = TRUE))
    split(y ~ x + x:strata(g, f))
  })
})

test_that("a function of the user's own may have any of these names", {
  s <- function(x) x^2
  expect_equal(split(y ~ s(x))$x[[1]], rows$x^2)
  C <- function(x, by) x * by # nolint: object_name_linter.
  expect_equal(split(y ~ C(x, z))$x[[1]], rows$x * rows$z)
})

test_that("strata are the last column: the number of each row's stratum", {
  skip_outside_lane()
  parts <- split(y ~ x + survival::strata(g, k) + strata(f) + offset(z))
  expect_named(parts$x, c("x", "offset(z)", "strata(g, k, f)"))
  expect_identical(
    formula_inputs(NULL, parts),
    list(features = "x", offset = "offset(z)", strata = "strata(g, k, f)")
  )
  expect_identical(show_formula(parts$formula), "y ~ x + offset(z) + strata(g, k, f)")
  codes <- parts$x[[3]]
  known <- interaction(rows$f, rows$k, rows$g, drop = TRUE) # the last column varies slowest
  expect_identical(sort(unique(codes)), as.numeric(seq_len(nlevels(known)) - 1))
  expect_identical(lengths(tapply(codes, known, unique)), lengths(tapply(codes, known, min)))
  take <- function(data) take_features(read_formula(parts$formula), data)[[3]]
  expect_identical(take(rows[c(7, 3), ]), codes[c(7, 3)])
  expect_identical(take(transform(rows[1:2, ], k = c(NA, 2))), c(NA, codes[2]))
  error <- expect_error(take(transform(rows, g = "t")), class = "gpukeras_error_data")
  expect_identical(error$column, "strata(g, k, f)")
  marked <- mark_strata(as_features(parts$x), parts$strata)$columns[[3]]
  expect_identical(marked[c("offset", "strata")], list(offset = TRUE, strata = nlevels(known)))
  plain <- split(y ~ strata(f) + x + x:strata(f))
  expect_named(plain$x, c("x", "strata(f)=p:x", "strata(f)=q:x", "strata(f)"))
  expect_match(plain$formula, "levels = c(\"f=p\", \"f=q\")", fixed = TRUE)
  again <- split(
    y ~ strata(f) + x + x:strata(f), rows[1:3, ],
    known = known_terms(plain$formula)
  )
  expect_identical(again$formula, plain$formula)
  expect_snapshot(check_no_offset(plain, NULL), error = TRUE)
})

test_that("strata and weights of a file are columns and constants", {
  found <- function(text) {
    tryCatch(read_formula(text), gpukeras_error_data = function(condition) condition$found)
  }
  expect_length(found("y ~ x + strata(g, levels = c(\"g=u\", \"g=v\"))")$strata, 1)
  expect_identical(found("y ~ x + .weights(z / 2)")$weights, quote(z / 2))
  expect_match(found("y ~ x + strata(g, levels = system('x'))"), "no constants")
  expect_match(found("y ~ x + strata(g)"), "no constants")
  expect_identical(found("y ~ x + strata(system('x'), levels = c(\"a\"))"), "`system()`")
  expect_identical(found("y ~ x + .weights(system('x'))"), "`system()`")
  expect_identical(found("y ~ x + log(.weights(x))"), "`.weights()`")
})

test_that("what strata and families do not give is told", {
  skip_without_tensorflow()
  skip_if_not_installed("survival")
  rows <- data.frame(time = seq_len(1001), event = 1, a = sin(seq_len(1001)), id = seq_len(1001))
  many <- gpu_dataset(survival::Surv(time, event) ~ a + strata(id), rows)
  few <- gpu_dataset(survival::Surv(time, event) ~ a, rows)
  model <- gpu_mlp(few, units = integer(), seed = 1)
  gpu_fit(model, few, epochs = 1, verbose = FALSE)
  expect_snapshot(error = TRUE, {
    gpu_mlp(many)
    residuals(model, rows)
  })
})
