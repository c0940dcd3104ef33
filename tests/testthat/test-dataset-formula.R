frame <- function() {
  data.frame(y = 1:3, a = c(1, 2, 3), b = c("u", "v", "u"), "a b" = 4:6, check.names = FALSE)
}

apply_text <- function(text, data) take_features(read_formula(text), data)

test_that("a formula splits features from the label", {
  parts <- split_formula(y ~ a + b, frame(), globalenv())
  expect_named(parts$x, c("a", "b"))
  expect_identical(parts$y, 1:3)
  expect_identical(parts$formula, "y ~ a + b")
})

test_that("a dot is all other columns, and the expanded formula is kept", {
  parts <- split_formula(y ~ ., frame(), globalenv())
  expect_named(parts$x, c("a", "b", "a b"))
  expect_identical(parts$formula, "y ~ a + b + `a b`")
})

test_that("a formula without response has no label", {
  parts <- split_formula(~a, frame(), globalenv())
  expect_null(parts$y)
  expect_named(parts$x, "a")
})

test_that("transformations of rows by themselves are allowed on both sides", {
  parts <- split_formula(log(y) ~ I(a^2) + factor(b), frame(), globalenv())
  expect_identical(parts$y, log(1:3))
  expect_identical(as.vector(parts$x[["I(a^2)"]]), c(1, 4, 9))
  expect_s3_class(parts$x[["factor(b)"]], "factor")
})

test_that("new data need not have the label, and its rows are taken one by one", {
  text <- split_formula(y ~ a + b, frame(), globalenv())$formula
  new <- apply_text(text, frame()[2, c("b", "a")])
  expect_identical(new$a, 2)
  expect_identical(new$b, "v")
})

test_that("missing values stay for the checks that name them", {
  holes <- frame()
  holes$a[2] <- NA
  expect_identical(nrow(split_formula(y ~ a, holes, globalenv())$x), 3L)
})

test_that("a long formula stays one line", {
  wide <- as.data.frame(matrix(0, 2, 60))
  names(wide) <- c("y", sprintf("a_long_name_for_the_column_%d", 1:59))
  text <- split_formula(y ~ ., wide, globalenv())$formula
  expect_length(text, 1)
  expect_named(apply_text(text, wide), names(wide)[-1])
})

test_that("a matrix is as many columns, named as model.matrix() names them", {
  data <- frame()
  data$m <- matrix(1:6, 3, dimnames = list(NULL, c("u", "v")))
  data$n <- matrix(c(0.5, 1, 2), 3)
  x <- split_formula(y ~ m + n + cbind(a, `a b`) + I(cbind(a, y)), data, globalenv())$x
  kept <- stats::model.matrix(y ~ m + n + cbind(a, `a b`) + I(cbind(a, y)), data)
  expect_identical(gsub("`", "", names(x)), gsub("`", "", colnames(kept)[-1]))
  expect_equal(unname(as.matrix(x)), unname(kept[, -1]), ignore_attr = TRUE)
})

test_that("a label of several numbers keeps its names", {
  y <- as_labels(split_formula(cbind(won = y, lost = a) ~ b, frame(), globalenv())$y, "y")
  expect_identical(y[c("kind", "names")], list(kind = "matrix", names = list("won", "lost")))
})

test_that("a term with other numbers of values than rows is named", {
  error <- expect_error(
    split_formula(y ~ a + I(c(1, 2)), frame(), globalenv()),
    class = "gpukeras_error_data"
  )
  expect_match(conditionMessage(error), "`I(c(1, 2))` of the formula gives 2 values for 3 rows", fixed = TRUE)
})

test_that("cut() of a number of breaks is refused, as it depends on the other rows", {
  kinds <- split_formula(y ~ cut(a, c(0, 1.5, 4)), frame(), globalenv())$x
  expect_identical(as.integer(kinds[[1]]), c(1L, 2L, 2L))
  expect_error(split_formula(y ~ cut(a, 3), frame(), globalenv()), class = "gpukeras_error_data")
})

test_that("a column that is not there is named", {
  error <- expect_error(
    split_formula(y ~ a + no_such_column, frame(), globalenv()),
    class = "gpukeras_error_data"
  )
  expect_identical(error$column, "no_such_column")
  error <- expect_error(
    apply_text("y ~ a + `a b`", frame()["a"]),
    class = "gpukeras_error_data"
  )
  expect_identical(error$column, "a b")
})

test_that("a variable of the session is refused: a prediction could not find it again", {
  power <- 3
  error <- expect_error(
    split_formula(y ~ I(a^power), frame(), environment()),
    class = "gpukeras_error_data"
  )
  expect_identical(error$column, "power")
})

test_that("dates and times come through, also as POSIXlt, which model.frame() does not take", {
  times <- frame()
  times$day <- as.Date("2024-01-01") + 0:2
  times$at <- as.POSIXct("2024-01-01", tz = "UTC") + 0:2
  times$list <- as.POSIXlt(times$at)
  times$long <- as.difftime(1:3, units = "hours")
  parts <- split_formula(y ~ day + at + list + long + I(day - as.Date("2024-01-01")), times, globalenv())
  kinds <- vapply(as_features(parts$x)$columns, `[[`, "", "kind")
  expect_identical(kinds, c("date", "time", "time", "duration", "duration"))
})

test_that("a dot is expanded as terms() expands it", {
  kept <- data.frame(y = 1:3, a = c(1, 2, 3), "a b" = 4:6, "if" = 7:9, check.names = FALSE)
  for (formula in c(y ~ ., log(y) ~ ., list(y, a) ~ ., cbind(a, `a b`) ~ ., `if` ~ ., ~.)) {
    terms <- stats::formula(stats::terms(formula, data = kept))
    parts <- expand_dot(formula, kept)
    expect_identical(write_formula(parts), deparse_term(stats::formula(terms)))
    expect_identical(parts$features, formula_parts(terms)$features)
  }
  for (formula in c(y ~ a, y ~ . - a, y ~ . + log(a), y ~ I(.))) {
    expect_null(expand_dot(formula, kept))
  }
})

test_that("more columns are a dot than R nests expressions", {
  skip_outside_lane(slow = TRUE)
  columns <- if (is_nightly()) 14000 else 5500
  wide <- as.data.frame(matrix(0, 1, columns))
  names(wide)[1] <- "y"
  parts <- split_formula(y ~ ., wide, globalenv())
  expect_named(parts$x, names(wide)[-1])
  expect_length(read_formula(parts$formula)$features, columns - 1)
})

test_that("weights are looked for in the data first, then where the call is, as by lm()", {
  data <- data.frame(y = 1:3, w = c(1, 2, 4), v = c(3, 1, 1))
  take <- function(formula, ...) {
    given <- rlang::enquos(...)
    take_weights(given$weights, data)$values
  }
  w <- c(9, 9, 9)
  other <- c(2, 3, 4)
  expect_identical(take(y ~ v, weights = w), data$w)
  expect_identical(take(y ~ v, weights = w / 2), data$w / 2)
  expect_identical(take(y ~ v, weights = other), other)
  expect_snapshot(take(y ~ v, weights = w + other), error = TRUE)
  expect_identical(take(y ~ v, weights = "v"), data$v)
  expect_identical(take(y ~ v, weights = list(y = w)), list(y = data$w))
  expect_null(take(y ~ v, weights = NULL))
  expected <- stats::model.weights(stats::model.frame(y ~ v, data, weights = w / v))
  expect_identical(take(y ~ v, weights = w / v), expected)
  own <- function(weights) take(y ~ v, weights = weights)
  expect_identical(own(w), c(9, 9, 9)) # the caller's, who knows no column
})

test_that("weights and balanced classes reach the rows, by a column's name too", {
  skip_without_tensorflow()
  data <- data.frame(y = factor(c("a", "a", "a", "b"), ordered = TRUE), x = 1:4, w = c(1, 2, 3, 4))
  rows <- gpu_dataset(y ~ x, data, weights = w, class_weight = "balanced")
  expect_equal(as.vector(rows[1:4, ]$weights), data$w * 4 / (2 * c(3, 3, 3, 1)), tolerance = 1e-6)
  expect_true(gpu_recipe(rows)$label$ordered)
  named <- gpu_dataset(data, "y", weights = "w")
  expect_identical(names(named), "x")
  expect_equal(as.vector(named[1:4, ]$weights), data$w)
  model <- gpu_mlp(rows, units = 2)
  expect_s3_class(gpu_predict(model, data, recipe = rows, type = "class"), "ordered")
})

# Names and columns that formulas do not take ------------------------------------------------------

called <- function(name) stats::setNames(data.frame(y = 1:3, a = c(1, 2, 3)), c("y", name))
listed <- data.frame(y = 1:3, a = c(1, 2, 3))
listed$z <- list(1, 2, 3)
listed$f <- data.frame(u = 1:3, v = 4:6)
wide <- as.data.frame(matrix(0, 1, 14000))
names(wide)[1] <- "y"

test_that("a name is refused in formulas alone where the session's locale cannot spell it", {
  skip_without_tensorflow()
  withr::local_locale(LC_CTYPE = "C")
  data <- called("gr\u00f6\u00dfe")
  refused <- function(call) expect_error(call, "locale", class = "gpukeras_error_data")
  said <- conditionMessage(refused(gpu_dataset(y ~ ., data)))
  expect_snapshot(cat(sub('".*"', "<name>", plain_bullets(said))))
  refused(gpu_dataset(data, "y"))
  named <- suppressWarnings(as.name(names(data)[2])) # R spells it in escapes
  refused(gpu_dataset(rlang::new_formula(quote(y), named), data))
  expect_identical(names(gpu_dataset(data[2], 1:3)), names(data)[2])
  expect_length(names(gpu_dataset(~y, data)), 1)
  expect_error(gpu_dataset(called("bad\xff"), 1:3), "valid text", class = "gpukeras_error_data")
})

expect_refused(list(
  "a column that is a word of R in a formula" =
    case("data", "column 2 of `data`, \"..1\"", gpu_dataset(y ~ ., called("..1"))),
  "a column of dots in a formula" =
    case("data", "column 2 of `data`, \"...\"", gpu_dataset(y ~ ., called("..."))),
  "a column that a formula names by a word of R" =
    case("data", "column 2 of `data`, \"..2\"", gpu_dataset(y ~ ..2, called("..2"))),
  "a column without a name in a formula" =
    case("data", "column 2 of `data`, empty", gpu_dataset(called(""), "y")),
  "a column with a name that R's language has no room for" =
    case("data", "column 2 of `data`", gpu_dataset(y ~ ., called(strrep("x", 1e5)))),
  "a column with a name of damaged bytes" =
    case("data", "column 2 of `x`, \"bad<ff>\"", gpu_dataset(called("bad\xff"), 1:3)),
  "a column with a name of damaged bytes in a formula" =
    case("data", "column 2 of `data`", gpu_dataset(y ~ ., called("bad\xff"))),
  "more columns than R expands" = case(
    "data", "14000 columns",
    gpu_dataset(y ~ . - V2, wide)
  ),
  "a list as a term" = case("data", "Column `z`", gpu_dataset(y ~ z, listed)),
  "a data frame as a term" = case("data", "Column `f`", gpu_dataset(y ~ f, listed)),
  "a list in a call" = case("data", "column `z` is a list", gpu_dataset(y ~ I(z), listed)),
  "a data frame in a call" = case("data", "column `f` is", gpu_dataset(y ~ log(f), listed)),
  "a call that fails on a list" = case("data", "`log(z)`", gpu_dataset(log(z) ~ a, listed)),
  "a call that fails" = case("data", "`stop(\"now\")`", gpu_dataset(y ~ stop("now"), listed)),
  "a function that is not there" =
    case("data", "`no_such_function(a)`", gpu_dataset(y ~ no_such_function(a), listed)),
  "a call that gives a list" =
    case("data", "`as.list(a)`", gpu_dataset(y ~ as.list(a), listed)),
  "a matrix of texts" =
    case("data", "`cbind(\"u\", a)`", gpu_dataset(y ~ cbind("u", a), listed))
))

expect_refused(list(
  "survival times as a feature" =
    case("data", "`survival::Surv(a)`", gpu_dataset(y ~ survival::Surv(a), listed))
), needs = "survival")

test_that("names that no formula holds are features elsewhere, and errors in calls keep a class", {
  skip_without_core()
  expect_s3_class(gpu_dataset(called("..1")[2], c(1, 2, 4)), "gpu_dataset")
  few <- cbind(listed["a"], called("..."))
  expect_named(split_formula(y ~ a, few, globalenv())$x, "a")
  own <- function(x) rlang::abort("mine", class = "my_class")
  expect_error(split_formula(y ~ own(a), listed, environment()), class = "my_class")
})

# Labels are called by their column's name ---------------------------------------------------------

lacking <- function(...) {
  rows <- data.frame(price = c(1.5, NA, 3, 4), kind = factor(c("u", "v", "u", NA)), a = 1:4)
  utils::modifyList(rows, list(...))
}
path <- withr::local_tempfile(fileext = ".csv")
utils::write.csv(lacking(), path, row.names = FALSE)
prices <- if (has_tensorflow()) trained(gpu_dataset(price ~ a, lacking(price = c(1, 2, 3, 5))))
three <- if (has_tensorflow()) a_model(1, 3, loss = "sparse_categorical_crossentropy")
hide_path <- function(lines) gsub("`[^`]*[.]csv`", "`FILE.csv`", lines)

test_that("labels that are computed otherwise than those of `recipe` are refused", {
  skip_without_tensorflow()
  logs <- gpu_dataset(log(disp) ~ wt, mtcars)
  expect_snapshot(gpu_dataset(disp ~ wt, mtcars, recipe = logs), error = TRUE)
  expect_error(gpu_dataset(mtcars["wt"], mtcars$disp, recipe = logs), NA)
  expect_s3_class(gpu_dataset(log(disp) ~ wt, mtcars[1:3, ], recipe = logs), "gpu_dataset")
  plain <- gpu_dataset(disp ~ wt, mtcars)
  expect_error(gpu_dataset(log(disp) ~ wt, mtcars, recipe = plain), class = "gpukeras_error_data")
  skip_if_not_installed("survival")
  lung <- survival::lung[1:60, ]
  times <- gpu_dataset(survival::Surv(time, status) ~ age, lung)
  censored <- lung[lung$status == 1, ]
  expect_error(
    gpu_dataset(survival::Surv(time, status) ~ age, censored, recipe = times),
    "status - 1", class = "gpukeras_error_data"
  )
  expect_s3_class(
    gpu_dataset(survival::Surv(time, status) ~ age, lung[1:9, ], recipe = times), "gpu_dataset"
  )
})

expect_refused(list(
  "a missing number as a label" =
    case("data", "`price` has 1 missing value", gpu_dataset(price ~ a, lacking())),
  "a missing label of a named column" =
    case("data", "`price` has 1 missing value", gpu_dataset(lacking(), "price")),
  "a missing class" = case("data", "`kind` has 1 missing value", gpu_dataset(kind ~ a, lacking())),
  "a missing label of a term" =
    case("data", "`log(price)` has 1 missing value", gpu_dataset(log(price) ~ a, lacking())),
  "a missing label of two numbers" = case(
    "data", "of `cbind(price, a)` has 1 missing", gpu_dataset(cbind(price, a) ~ kind, lacking())
  ),
  "a missing label of several outputs" = case(
    "data", "`kind` has 1 missing",
    gpu_dataset(list(price, kind) ~ a, lacking(price = c(1, 2, 3, 5)))
  ),
  "a missing label where features are imputed" =
    case("data", "`price` is missing in 1 of 4", gpu_dataset(price ~ a, lacking(), na = "impute")),
  "rows that all lack a label" = case(
    "data", "`price` lacks the most",
    gpu_dataset(price ~ a, lacking(price = as.double(rep(NA, 4))), na = "drop")
  ),
  "a date as a label" =
    case("data", "`price` cannot be labels", gpu_dataset(price ~ a, lacking(price = Sys.Date()))),
  "a class with one level" = case(
    "data", "`kind` needs at least two levels", gpu_dataset(kind ~ a, lacking(kind = factor("u")))
  ),
  "a missing label in new rows" =
    case("data", "`price` has 1 missing value", gpu_evaluate(prices, lacking())),
  "a label of another kind in new rows" =
    case("data", "`price` holds a factor", gpu_evaluate(prices, lacking(price = factor(letters[1:4])))),
  "a label beyond the output layer" = case(
    "data", "`price` has labels from 1 to 9",
    gpu_fit(three, gpu_dataset(price ~ a, lacking(price = c(1, 2, 3, 9))))
  )
))

expect_refused(list(
  "a missing label in a file" =
    case("data", "`price` has 1 missing value", gpu_dataset(price ~ a, path))
), hide = hide_path)

test_that("numbers in a formula keep all their digits in its recipe", {
  x <- sin(1:50) / 3
  breaks <- c(-Inf, sort(x)[c(13, 25, 38)], Inf)
  rows <- data.frame(y = x, x = x)
  formula <- stats::as.formula(bquote(y ~ cut(x, .(breaks))))
  parts <- split_formula(formula, rows, globalenv())
  again <- take_features(read_formula(parts$formula), rows)
  expect_identical(as.integer(again[[1]]), as.integer(cut(x, breaks)))
  expect_identical(names(again), names(parts$x))
  written <- split_formula(y ~ cut(x, c(0, 0.1)), rows, globalenv())$formula
  expect_identical(written, "y ~ cut(x, c(0, 0.1))")
})

test_that("a formula is shown with the names of columns in backticks", {
  rows <- data.frame(y = 1:9, x = (1:9)^2, f = gl(3, 3), "my col" = 9:1, check.names = FALSE)
  for (formula in c(
    y ~ poly(x, 2) + offset(`my col`), y ~ poly(x, 2) + x:factor(`my col`),
    y ~ scale(`my col`) + f:`my col`, y ~ scale(x) + log(`my col`)
  )) {
    text <- split_formula(formula, rows, globalenv())$formula
    shown <- as_formula(text, NULL)
    expect_identical(shown[[3]], formula[[3]])
  }
  text <- split_formula(y ~ x + strata(`my col`, f), rows, globalenv())$formula
  expect_identical(as_formula(text, NULL)[[3]], quote(x + strata(`my col`, f)))
})
