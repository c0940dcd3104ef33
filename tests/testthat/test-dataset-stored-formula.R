rows <- function() data.frame(y = 1:4, a = c(1, 2, 3, 4), b = c("u", "v", "u", "v"), system = 4:1)

take <- function(text, data = rows()) take_features(read_formula(text), data)
found_in <- function(text) {
  tryCatch(read_formula(text)$features, gpukeras_error_data = function(condition) {
    condition$found %||% "damaged"
  })
}

test_that("functions on the closed list give what R's own give", {
  terms <- c(
    "log(a)", "log1p(a)", "exp(-a)", "sqrt(abs(a - 2))", "I(a^2 / 3 %% 2)", "sin(a) ",
    "round(a, 1)",
    "pmin(a, 2)", "pmax(a, 2, na.rm = TRUE)", "ifelse(is.na(a) | a > 2, 0, a)", "factor(b)",
    "factor(b, levels = c(\"v\", \"u\"))", "as.factor(b)", "ordered(b)", "as.numeric(b == \"u\")",
    "cut(a, c(0, 2, 4))", "cut(a, breaks = c(0, 2, 4), labels = c(\"low\", \"high\"))",
    "I((a + 1) * 2)", "toupper(b)", "I(b %in% c(\"u\"))", "I(-a)", "log(system)"
  )
  for (term in terms) {
    code <- str2lang(term)
    expected <- eval(code, rows(), baseenv())
    found <- take(paste("y ~", term))[[1]]
    expect_equal(found, expected, info = term, ignore_attr = inherits(expected, "AsIs"))
  }
  expect_named(take("y ~ a + log(a) + b"), c("a", "log(a)", "b"))
  expect_equal(unname(as.matrix(take("y ~ cbind(a, y)"))), unname(as.matrix(rows()[c("a", "y")])))
})

test_that("all that is not on the list is refused by name, and nothing is run", {
  skip_outside_lane()
  refused <- c(
    "system('x')" = "`system()`", "pmax(a, system('x'))" = "`system()`",
    "base::system('x')" = "`base::system()`", "base:::system('x')" = "`base:::system()`",
    "(function() 1)()" = "something else", "(a)" = "`(` between",
    "I((function() 1)())" = "something else", "I({a})" = "`{`", "I(a <- 2)" = "`<-`",
    "I(log <- system)" = "`<-`", "I(a$b)" = "`$`", "I(a@b)" = "`@`", "I(a[[1]])" = "`[[`",
    "I(a[1])" = "`[`", "`system`('x')" = "`system()`", "\"system\"('x')" = "`system()`",
    "eval(a)" = "`eval()`", "do.call('system', list('x'))" = "`do.call()`", "get('a')" = "`get()`",
    "match.fun('a')(a)" = "something else",
    "ifelse(a > 1, Sys.setenv(A = '1'), 1)" = "`Sys.setenv()`",
    "cut(a, breaks = quit())" = "`quit()`", "poly(a, degree = system('x'))" = "`poly()`",
    "I(if (TRUE) a)" = "`if`", "I(while (TRUE) a)" = "`while`", "I(\\(x) a)" = "`function`",
    "I(function(x) a)" = "`function`", "I(a |> system())" = "`system()`", "I(~a)" = "`~`",
    "a:get('b')" = "`get()`", "a * b" = "`*` between", "(a + b)^9" = "`^` between", "-a" = "`-` between",
    "I(...)" = "`...`", "I(..1)" = "`..1`", "log(, a)" = "an empty argument", "1" = "no column",
    "list(a)" = "`list()`", "rep(a, 1e9)" = "`rep()`", "I(1:1e9)" = "`:`", "I(a)$b" = "`$`"
  )
  for (term in names(refused)) {
    found <- found_in(paste("y ~", term))
    wanted <- sub("[()]+`$", "", refused[[term]])
    expect_true(is.character(found) && grepl(wanted, found, fixed = TRUE), info = term)
    # On the left operators are those of numbers, and a constant is one.
    allowed <- grepl("between|no column|list", refused[[term]])
    side <- if (allowed) "get(y)" else term
    expect_type(found_in(paste(side, "~ a")), "character")
  }
})

test_that("what is no formula, or nested without end, is refused and does not end R", {
  skip_outside_lane()
  many <- if (is_nightly()) 1e5 else 3e4 # parts, far more than R nests
  deep <- c(
    "system('x')", "a", "", "y ~", "y ~ a; system('x')", "y ~ a\nsystem('x')", "~ ~ a",
    paste0("~", strrep("-", many), "a"), paste0("~I(", strrep("a + ", many), "a)"),
    paste0("~", strrep("a^", many), "a"), paste0("~", strrep("log(", many), "a", strrep(")", many)),
    paste0("~", strrep("(", many), "a", strrep(")", many)), paste0("~I(", strrep("a$", many), "a)"),
    paste0("~a", strrep("|>f()", many)), paste0("~", strrep("\\(x) ", many), "a"),
    paste0("list(", strrep("a + ", many), "a) ~ a"), paste0(strrep("a - ", many), "a ~ a"),
    paste0("~", strrep("a", most_bytes)), paste0("~I(", strrep("!", 200), "a)")
  )
  for (text in deep) expect_type(found_in(text), "character")
  expect_identical(found_in("a ~ system"), list(quote(system))) # a column may have any name
  expect_length(found_in(paste0("~", strrep("a + ", many), "a")), many + 1)
})

# Fuzzing ------------------------------------------------------------------------------------------

# A random expression of harmless parts and of such that would leave a mark: a file, a variable.
new_fuzzer <- function(marker) {
  mark <- sprintf("file.create('%s')", marker)
  bad <- c(
    mark, sprintf("system('touch %s')", marker), sprintf("base::file.create('%s')", marker),
    "Sys.setenv(GPUKERAS_FUZZ = '1')", "base::Sys.setenv(GPUKERAS_FUZZ = '1')",
    "assign('gpukeras_fuzz', 1, globalenv())", "gpukeras_fuzz <<- 1", "(gpukeras_fuzz <<- 1)",
    sprintf("eval(parse(text = \"%s\"))", mark), sprintf("eval(quote(%s))", mark),
    sprintf("do.call('file.create', list('%s'))", marker), sprintf("(function() %s)()", mark),
    sprintf("(\\(x) %s)()", mark), sprintf("get('file.create')('%s')", marker),
    sprintf("match.fun('file.create')('%s')", marker), sprintf("\"file.create\"('%s')", marker),
    sprintf("`file.create`('%s')", marker), sprintf("sapply('%s', file.create)", marker),
    sprintf("sapply('%s', 'file.create')", marker), sprintf("Reduce(file.create, '%s')", marker),
    sprintf("outer('%s', 1, function(x, y) %s)", marker, mark), sprintf("with(list(), %s)", mark),
    sprintf("{%s; a}", mark), sprintf("if (TRUE) %s", mark), sprintf("local(%s)", mark),
    sprintf("list(file.create)[[1]]('%s')", marker), sprintf("a$b(%s)", mark),
    sprintf("environment()$f(%s)", mark), sprintf("'%s' |> file.create()", marker),
    sprintf("`log<-`(a, %s)", mark), sprintf("structure(a, class = %s)", mark),
    sprintf("tryCatch(stop(), error = function(e) %s)", mark),
    sprintf("delayedAssign('a', %s)", mark),
    sprintf("Recall(%s)", mark), "log <- function(x) gpukeras_fuzz <<- 1", "`(` <- system",
    sprintf("UseMethod(%s)", mark), sprintf("~%s", mark), sprintf("f(%s)", mark),
    sprintf("a[%s]", mark), sprintf("a[[%s]]", mark), sprintf(".Call(%s)", mark),
    sprintf("a@%s", mark), sprintf("..1(%s)", mark), sprintf("a -> %s", "gpukeras_fuzz")
  )
  good <- c(
    "a", "b", "y", "`log`", "`a b`", "1", "'u'", "TRUE", "NULL", "NA", "c(0, 2)", "-1L", "system"
  )
  heads <- c(
    "log(%s)", "I(%s)", "(%s)", "-%s", "!%s", "factor(%s)", "as.factor(%s)", "sqrt(%s)", "exp(%s)",
    "cut(%s, c(0, 2, 9))", "round(%s, 2)", "is.na(%s)", "abs(%s)", "cut(a, breaks = %s)",
    "factor(b, levels = %s)", "pmax(%s, %s)", "ifelse(%s, %s, %s)", "%s + %s", "%s * %s", "%s ^ %s",
    "(%s == %s)", "%s & %s", "c(%s, %s)", "cbind(%s, x = %s)", "log(a, base = %s)", "`pmin`(%s, %s)",
    "offset(%s)", "%s:%s", ".learned('u', %s)", ".learned('u', factor(%s, levels = c(%s))):a",
    ".learned('u', poly(%s, 1, coefs = list(alpha = c(2, %s), norm2 = c(1, 2, 3))))",
    ".learned('u', scale(%s, center = %s, scale = 2))"
  )
  pick <- function(from) from[[sample.int(length(from), 1)]]
  make <- function(depth) {
    if (depth == 0 || stats::runif(1) < 0.2) {
      return(pick(if (stats::runif(1) < 0.3) bad else good))
    }
    head <- pick(heads)
    count <- lengths(regmatches(head, gregexpr("%s", head)))
    do.call(sprintf, c(list(head), lapply(seq_len(count), function(part) make(depth - 1))))
  }
  function() {
    label <- if (stats::runif(1) < 0.3) make(1) else pick(c("y", "list(y, a)", "log(y)"))
    paste(label, "~", paste(replicate(sample(3, 1), make(sample(0:3, 1))), collapse = " + "))
  }
}

test_that("of thousands of random formulas none does anything but compute", {
  skip_outside_lane()
  marker <- withr::local_tempfile()
  withr::local_envvar(GPUKERAS_FUZZ = NA)
  withr::local_seed(20261122)
  draw <- new_fuzzer(marker)
  data <- rows()
  data$log <- 1:4
  data$`a b` <- 5:8
  before <- ls(globalenv(), all.names = TRUE)
  rounds <- if (is_nightly()) 5000 else 400
  count <- c(refused = 0, run = 0, failed = 0)
  for (number in seq_len(rounds)) {
    text <- draw()
    code <- tryCatch(str2lang(text), error = function(condition) quote(~ unreadable()))
    parts <- formula_parts(code) # as read_formula(), whose errors take their time
    parts$env <- allowed_environment()
    end <- if (!is.null(find_disallowed_part(parts))) {
      "refused"
    } else {
      tryCatch(
        {
          suppressWarnings(lapply(parts$labels, eval, data, parts$env))
          suppressWarnings(take_features(parts, data))
          "run"
        },
        error = function(condition) "failed" # such as log(b): text
      )
    }
    if (number %% 100 == 0) {
      expect_identical(is.character(found_in(text)), end == "refused", info = text)
    }
    count[[end]] <- count[[end]] + 1
    if (file.exists(marker) || nzchar(Sys.getenv("GPUKERAS_FUZZ"))) {
      fail(paste("This had an effect:", text))
      break
    }
  }
  expect_identical(ls(globalenv(), all.names = TRUE), before)
  expect_true(all(count > rounds / 25), info = toString(count))
  # The fuzzer's formulas do have effects where they are evaluated freely.
  withr::local_seed(1)
  for (number in 1:200) {
    try(suppressWarnings(eval(str2lang(draw())[[3]], data, new.env())), silent = TRUE)
  }
  expect_true(file.exists(marker))
  rm(list = setdiff(ls(globalenv(), all.names = TRUE), before), envir = globalenv())
})

test_that("a column that is a function is never called", {
  data <- unclass(rows())
  called <- FALSE
  data$log <- function(...) called <<- TRUE
  data <- structure(data, class = "data.frame", row.names = 1:4)
  expect_equal(take("y ~ log(a)", data)[[1]], log(1:4))
  error <- expect_error(take("y ~ log(log)", data), class = "gpukeras_error_data")
  expect_identical(error$column, "log")
  expect_error(take("y ~ log", data), class = "gpukeras_error_data")
  expect_false(called)
})

# Formulas of the user's ---------------------------------------------------------------------------

test_that("a formula of the session's own user is free, and finds its own functions again", {
  make <- function(power) {
    raise <- function(x) x^power
    split_formula(y ~ raise(a), rows(), environment())
  }
  two <- make(2)
  three <- make(3)
  expect_identical(take(two$formula)[[1]], rows()$a^2)
  expect_identical(take(three$formula)[[1]], rows()$a^3)
  expect_identical(formula_text(two$formula), "y ~ raise(a)")
  expect_identical(found_in("y ~ raise(a)"), "`raise()`") # a file's
  again <- length(the$formulas)
  raise <- function(x) x
  one <- split_formula(y ~ raise(a), rows(), environment())$formula
  expect_identical(split_formula(y ~ raise(a), rows(), environment())$formula, one)
  expect_length(the$formulas, again + 1)
})

test_that("a function of the user's with the name of one of R's is the one that predicts", {
  log <- function(x) x * 100
  text <- split_formula(y ~ log(a), rows(), environment())$formula
  expect_identical(take(text)[[1]], rows()$a * 100)
  expect_identical(take("y ~ log(a)")[[1]], base::log(rows()$a))
})

# Forged files -------------------------------------------------------------------------------------

# test-run.R has one in a process of its own, and functions of the user's that go along.
test_that("a forged model or dataset runs nothing, and says what it holds", {
  skip_without_tensorflow()
  marker <- withr::local_tempfile()
  train <- gpu_dataset(mpg ~ hp + wt, data = mtcars)
  model <- gpu_mlp(train)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  evil <- sprintf("mpg ~ pmax(hp, system('touch %s')) + wt", marker)
  recipe <- gpu_recipe(model)
  recipe$portable <- sub("mpg ~ hp + wt", evil, recipe$portable, fixed = TRUE)
  path <- withr::local_tempfile(fileext = ".keras")
  gpu_save(model, path, verbose = FALSE)
  forge(path, "mpg ~ hp + wt", evil)
  folder <- withr::local_tempfile()
  gpu_dataset_save(train, folder, verbose = FALSE)
  forge(folder, "mpg ~ hp + wt", evil)
  forged <- gpu_load(path)
  data <- gpu_dataset(folder)
  second <- gpu_mlp(data)
  gpu_fit(second, data, epochs = 1, verbose = FALSE)
  bare <- a_model(2, loss = "mse")
  old <- withr::local_tempfile(fileext = ".rds")
  saveRDS(recipe, old)
  for (use in list(
    quote(gpu_predict(forged, mtcars)), quote(gpu_evaluate(forged, mtcars)),
    quote(gpu_predict(second, mtcars)), quote(gpu_evaluate(second, mtcars)),
    quote(gpu_fit(second, data, validation = mtcars, epochs = 1, verbose = FALSE)),
    quote(gpu_predict(bare, mtcars, recipe = readRDS(old)))
  )) {
    error <- expect_error(eval(use), class = "gpukeras_error_data")
    expect_match(one_line(error), "holds `system()`", fixed = TRUE)
  }
  printed <- utils::capture.output(print(forged), print(data), print(gpu_recipe(forged)))
  expect_false(file.exists(marker))
  expect_snapshot(gpu_predict(forged, mtcars), error = TRUE)
  # The way that the hint names.
  rows <- gpu_dataset(mpg ~ hp + wt, data = mtcars, recipe = forged)
  expect_equal(gpu_predict(forged, rows), gpu_predict(model, mtcars))
})

test_that("a column's name in a file cannot end its quotes", {
  skip_without_tensorflow()
  path <- withr::local_tempfile(fileext = ".csv")
  name <- "a` + system('x') + `b"
  data <- data.frame(y = c(1, 2, 3), x = c(1, 3, 2))
  names(data)[2] <- name
  writeLines(c(sprintf("y,\"%s\"", name), "1,1", "2,3", "3,2"), path)
  train <- gpu_dataset(path, "y")
  model <- gpu_mlp(train)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  expect_length(gpu_predict(model, data), 3)
})

test_that("refusals of stored formulas read well", {
  skip_outside_lane()
  expect_snapshot(read_formula("y ~ a; b", quote(gpu_predict())), error = TRUE)
  expect_snapshot(take("y ~ cut(a, 3)"), error = TRUE)
  expect_snapshot(
    {
      take("y ~ I(a^system('x'))")
    },
    error = TRUE
  )
  expect_snapshot(split_formula(y ~ I(c(1, 2)), rows(), globalenv()), error = TRUE)
  data <- structure(list(y = 1, a = log), class = "data.frame", row.names = 1L)
  expect_snapshot(take("y ~ a", data), error = TRUE)
})
