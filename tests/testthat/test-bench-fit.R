# What `make bench-fit` decides by itself, on records that are made up. It lies beside the package's
# sources, and is not installed.

bench_file <- function(name) {
  found <- testthat::test_path("..", "..", "python", "benchmarks", name)
  testthat::skip_if_not(file.exists(found), "the benchmarks are not here")
  normalizePath(found)
}

load_bench <- function(name) {
  loaded <- new.env()
  sys.source(bench_file(name), loaded, chdir = TRUE)
  loaded
}

quiet <- list(load_before = 1.8, load_after = 2.1, others = 0.05, stolen = 0)

make_run <- function(method, warm_s, round = 1L, load = quiet, case = "dense_small", ...) {
  list(
    case = case, method = method, measure = "time", round = round, epochs = 10L, rows = 100,
    full_rows = 100, epoch_s = rep(warm_s, 10), total_s = 10 * warm_s + 1 / round, load = load,
    loss = 0.3, ...
  )
}

make_runs <- function(load = quiet) {
  list(
    make_run("keras", 3), make_run("steps", 1, steps = 16L), make_run("jax_keras", 0.7),
    make_run("jax_steps", 0.4, steps = 32L), make_run("auto", 0.1, load = load),
    make_run("auto", 0.1, 2L), make_run("jax_auto", 0.2), make_run("jax_auto", 0.2, 2L),
    make_run("limit", 0.1), make_run("jax_limit", 0.1)
  )
}

rows_of <- function(runs, refused = "") {
  promises <- load_bench("promises.R")
  promises$plan$choose_base <- function() "keras"
  size <- promises$plan$measured$cases$dense_small
  rows <- promises$judge(promises$case_rows(runs, "dense_small", size), runs, refused)
  do.call(rbind, rows)
}

test_that("load is told by /proc, and unknown where a system has none", {
  busy <- load_bench("load.R")
  cores <- busy$parse_cores("cpu  100 20 30 9999 50 4 6 200 7 8")
  expect_equal(cores, c(busy = 1.6, stolen = 2))
  expect_true(all(is.na(busy$parse_cores("intr 1 2 3"))))
  expect_true(all(is.na(busy$parse_cores(""))))
  expect_true(all(is.na(busy$read_cores(tempfile()))))
})

test_that("cores of others are what this process and its children have not used", {
  busy <- load_bench("load.R")
  before <- list(time = 100, load = 0.5, cores = c(busy = 50, stolen = 1), own = 3)
  after <- list(time = 110, load = 1.5, cores = c(busy = 70, stolen = 2), own = 18)
  expect_equal(
    busy$compare_moments(before, after),
    list(load_before = 0.5, load_after = 1.5, others = 0.5, stolen = 0.1)
  )
})

test_that("nothing is judged above a load of 1, and the reason is told", {
  busy <- load_bench("load.R")
  expect_equal(busy$refuse_all(1), "")
  expect_equal(busy$refuse_all(0.2), "")
  expect_match(busy$refuse_all(2.34), "the 1-minute load average was 2.3 before the first run")
  expect_match(busy$refuse_all(NA_real_), "unknown")
})

test_that("our own work forbids nothing, that of others does", {
  busy <- load_bench("load.R")
  expect_equal(busy$refuse(list(list(load = quiet), list())), "")
  others <- modifyList(quiet, list(others = 0.8))
  expect_equal(busy$refuse(list(list(load = quiet), list(load = others))), "others took 0.8 cores")
  stolen <- modifyList(quiet, list(stolen = 0.45))
  expect_match(busy$refuse(list(list(load = stolen))), "others took 0.5 cores")
  unknown <- modifyList(quiet, list(others = NA_real_, stolen = NA_real_))
  expect_equal(busy$refuse(list(list(load = unknown))), "load 1.8")
  expect_equal(busy$refuse(list(list(load = modifyList(unknown, list(load_before = 0.9))))), "")
})

test_that("ratios to an expert's Keras come first, with the steps that were found best", {
  rows <- rows_of(make_runs())
  expect_equal(rows$ratio[1:3], c("10.00", "4.00", "2.00"))
  expect_match(rows$other[1], "Keras fit(), best steps: 16", fixed = TRUE)
  expect_match(rows$other[2], "Keras on JAX fit(), best steps: 32", fixed = TRUE)
  expect_equal(rows$verdict[1:3], c("BROKEN", "BROKEN", ""))
  expect_equal(rows$promised[1:2], c("at least 15", "at least 6"))
})

test_that("all epochs are promised of a later session, and told of the first", {
  rows <- rows_of(make_runs())
  later <- rows[grepl("10 epochs in all, a later session", rows$what), ]
  first <- rows[grepl("10 epochs in all, the first session", rows$what), ]
  expect_equal(later$ratio[1], sprintf("%.2f", 11 / 1.5))
  expect_equal(first$ratio[1], sprintf("%.2f", 11 / 2))
  expect_equal(c(later$promised[1], first$promised[1]), c("at least 8", ""))
})

test_that("each backend has its own limit", {
  rows <- rows_of(make_runs())
  limits <- rows[grepl("(limit)", rows$other, fixed = TRUE), ]
  expect_equal(limits$ratio, c("1.00", "2.00"))
  expect_equal(limits$verdict, c("kept", "BROKEN"))
})

test_that("verdicts are refused where a run was disturbed, or the computer was busy before", {
  disturbed <- rows_of(make_runs(modifyList(quiet, list(others = 1.4))))
  promised <- nzchar(disturbed$promised)
  expect_equal(unique(disturbed$verdict[promised]), "not judged: others took 1.4 cores")
  refused <- rows_of(make_runs(), "the load was 3")
  expect_equal(unique(refused$verdict), "")
})

test_that("a model that must not be slower is compared with the faster way to call Keras", {
  promises <- load_bench("promises.R")
  size <- promises$plan$measured$cases$lstm
  runs <- list(
    make_run("keras", 1, case = "lstm"), make_run("steps", 0.8, case = "lstm", steps = 8L),
    make_run("auto", 0.9, case = "lstm")
  )
  row <- promises$never_slower(runs, "lstm", size, "auto", c("keras", "steps"))
  expect_equal(row$ratio, sprintf("%.2f", 0.9 / 0.8))
  expect_equal(row$verdict, "BROKEN")
  row <- promises$never_slower(runs[c(1, 3)], "lstm", size, "auto", c("keras", "steps"))
  expect_equal(row$verdict, "kept")
})

test_that("each way to train has a process of its backend, and runs where it has a meaning", {
  plan <- load_bench("plan.R")
  jobs <- plan$plan_jobs(plan$read_options(c("--quick", "--only", "^dense_small/")))
  names <- unique(vapply(jobs, `[[`, "", "method"))
  expect_true(all(c("steps", "jax_keras", "jax_steps", "jax_auto", "jax_limit") %in% names))
  expect_equal(plan$ours$backend_of("jax_auto"), "jax")
  expect_equal(plan$ours$backend_of("auto"), "tensorflow")
  expect_equal(plan$ours$backend_of("all"), "tensorflow")
  memory <- Filter(function(job) job$measure == "memory", jobs)
  expect_setequal(vapply(memory, `[[`, "", "method"), c(plan$choose_base(), plan$ours$compared))
})

test_that("a table has a line for each way, beside Keras at its best and at its default", {
  tables <- load_bench("tables.R")
  tables$plan$choose_base <- function() "keras"
  runs <- make_runs()
  names <- unique(vapply(runs, `[[`, "", "method"))
  lines <- lapply(names, tables$summarise_method, runs, "dense_small")
  table <- tables$format_case(do.call(rbind, lines))
  expect_equal(table[[3]][names == "auto"], "10.0x")
  expect_equal(table[[4]][names == "auto"], "30.0x")
  expect_equal(table$chosen[names == "steps"], "16")
  expect_equal(table$load[names == "auto"], "2.1/0.1/0.0")
})
