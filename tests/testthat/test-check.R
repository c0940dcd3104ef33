a_finding <- function(id, status, title, evidence, fix = "") {
  list(id = id, status = status, title = title, evidence = evidence, fix = fix)
}

a_check <- function(...) {
  record <- list(
    verdict = "NOT USED",
    cause = "CUDA_VISIBLE_DEVICES hides every GPU.",
    cause_id = "D1",
    fix = "Restart R and unset it before Python starts.",
    evidence = list("of CUDA_VISIBLE_DEVICES C reads '-1', Python reads nothing, R reads '-1'"),
    findings = list(
      a_finding("D1", "problem", "CUDA_VISIBLE_DEVICES hides every GPU.", "C reads '-1'", "Unset."),
      a_finding("D6", "problem", "Not TensorFlow nor JAX.", "torch", "Restart R."),
      a_finding("driver", "ok", "NVIDIA driver", "550.54.15, /dev/nvidia0"),
      a_finding("compute", "note", "Test computation", "not determined")
    ),
    facts = list(platform = list(system = "Linux"))
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

test_that("a check has its fields, and its findings as a data frame", {
  check <- new_gpu_check(a_check())
  expect_named(
    check, c("verdict", "cause", "cause_id", "fix", "evidence", "findings", "facts")
  )
  expect_type(check$evidence, "character")
  expect_identical(as.data.frame(check), check$findings)
  expect_identical(as.data.frame(check)$id, c("D1", "D6", "driver", "compute"))
  expect_identical(check$facts$platform$system, "Linux")
})

test_that("no proven cause is NA", {
  record <- a_check()
  record["cause"] <- list(NULL)
  record["cause_id"] <- list(NULL)
  expect_identical(new_gpu_check(record)$cause, NA_character_)
})

test_that("a check prints the verdict first, then cause, evidence, fix and findings", {
  expect_snapshot(new_gpu_check(a_check()))
})

test_that("a check of JAX prints JAX's parts", {
  unplugged <- "jaxlib 0.7.1 is installed, and neither jax-cuda12-plugin nor jax-cuda13-plugin"
  title <- "JAX is installed without its CUDA plugin."
  fix <- "Restart R, then install_gpukeras(backend = \"jax\")."
  expect_snapshot(new_gpu_check(a_check(
    cause = title, cause_id = "J3", fix = fix, evidence = list(unplugged),
    findings = list(
      a_finding("J3", "problem", title, unplugged, fix),
      a_finding("driver", "ok", "NVIDIA driver", "550.54.15, cuInit returns 0"),
      a_finding("jax", "ok", "JAX", "0.7.1, jaxlib 0.7.1, no CUDA plugin"),
      a_finding("gpus", "note", "GPUs in JAX", "not asked for (J3 was found before)"),
      a_finding("memory", "ok", "GPU memory in JAX", "XLA_PYTHON_CLIENT_PREALLOCATE is false"),
      a_finding("compute", "note", "Test computation", "not made (J3 was found before)")
    )
  )))
})

test_that("a check without a proven cause says what it does not know", {
  unknown <- a_check(
    fix = "", evidence = list("TensorFlow lists no GPU; the cause is not determined."),
    findings = list(a_finding("gpus", "note", "GPUs in TensorFlow", "none listed"))
  )
  unknown[c("cause", "cause_id")] <- list(NULL)
  unproven <- unknown
  unproven$verdict <- "UNPROVEN"
  unproven$evidence <- list("The GPU computes.", "No training step was traced.")
  expect_snapshot({
    new_gpu_check(unknown)
    new_gpu_check(unproven)
  })
})

test_that("a check is one screen long: of the notes as many as there is room for", {
  notes <- lapply(1:30, function(i) a_finding(paste0("C", i), "note", "A note.", paste("seen", i)))
  check <- new_gpu_check(a_check(findings = c(a_check()$findings, notes)))
  lines <- format(check)
  expect_length(lines, 24)
  expect_match(lines[24], "and 15 more: as.data.frame()", fixed = TRUE)
  expect_identical(sum(grepl("driver", lines)), 1L)
  expect_identical(fit_screen("a", c("b", "c"), height = 3), c("a", "b", "c"))
  more <- "... and 1 more: as.data.frame()"
  expect_identical(fit_screen(letters[1:3], "d", height = 3), c("a", "b", "c", more))
})

test_that("a model and its data are handed over with what R knows", {
  skip_without_tensorflow()
  train <- gpu_dataset(mpg ~ ., data = mtcars)
  model <- gpu_mlp(train)
  sent <- NULL
  local_core(function(name, args) {
    sent <<- args
    answer(a_check())
  })
  gpu_check(model, train)
  expect_named(sent, c("session", "model", "data"))
  expect_identical(sent$data, train$handle)
  gpu_check()
  expect_named(sent, "session")
})

test_that("a model without data, or data without a model, is refused", {
  skip_without_core()
  local_answer(a_check())
  expect_snapshot(error = TRUE, {
    gpu_check(model = "model.keras")
    gpu_check(data = mtcars)
  })
})

test_that("R's readings of the environment are named and hold only what is set", {
  skip_without_tensorflow()
  withr::local_envvar(CUDA_VISIBLE_DEVICES = "-1", XLA_FLAGS = NA)
  session <- read_session()
  expect_identical(session$environment$CUDA_VISIBLE_DEVICES, "-1")
  expect_false("XLA_FLAGS" %in% names(session$environment))
  expect_identical(session$tensorflow_r_loaded, isNamespaceLoaded("tensorflow"))
  expect_true(nzchar(session$python))
  expect_false(session$forked)
  expect_identical(session$requested_python, Sys.getenv("RETICULATE_PYTHON"))
})

test_that("a fork of the process that started Python knows that it is one", {
  skip_on_os("windows")
  skip_without_tensorflow()
  child <- parallel::mccollect(parallel::mcparallel(read_session()$forked))
  expect_true(child[[1]])
})

test_that("the folders that R puts on the loader's path are read from R's own script", {
  script <- withr::local_tempfile(lines = c(
    ": ${R_LD_LIBRARY_PATH=/opt/R/lib:/usr/lib/java}",
    "LD_LIBRARY_PATH=${R_LD_LIBRARY_PATH}:${LD_LIBRARY_PATH}"
  ))
  expect_identical(read_ldpaths(script), "/opt/R/lib:/usr/lib/java")
  expect_identical(read_ldpaths("no such file"), "")
  expect_type(read_ldpaths(), "character")
})

test_that("the real check reads R's side and gives one verdict", {
  skip_without_tensorflow()
  check <- gpu_check()
  expect_true(check$verdict %in% c("CONFIRMED", "PARTIAL", "UNPROVEN", "NOT USED"))
  expect_gt(nrow(as.data.frame(check)), 6)
  expect_identical(check$facts$session$r, as.character(getRversion()))
  expect_identical(check$facts$python$executable, check$facts$session$python)
  expect_length(check$facts$unread, 0)
  expect_lte(length(format(check)), 24)
  if (!file.exists("/dev/nvidia0")) {
    expect_identical(check$verdict, "NOT USED")
  }
})

test_that("the real check observes training of a model of one's own, and leaves it as it was", {
  skip_without_tensorflow()
  train <- gpu_dataset(mpg ~ ., data = mtcars, batch_size = 8)
  model <- gpu_mlp(train)
  gpu_fit(model, train, epochs = 1, verbose = FALSE)
  before <- gpu_predict(model, mtcars)
  check <- gpu_check(model, train)
  expect_identical(gpu_predict(model, mtcars), before)
  expect_identical(check$facts$use$batch_size, 8L)
  expect_true(all(unlist(check$facts$use$variables) > 0))
  expect_length(check$facts$use$rnn, 0)
})

test_that("gpu_report() writes lines to a file or to the console", {
  skip_without_tensorflow()
  local_answer("GPU: NOT USED\n\nFacts")
  file <- withr::local_tempfile()
  expect_identical(gpu_report(file), c("GPU: NOT USED", "", "Facts"))
  expect_identical(readLines(file), c("GPU: NOT USED", "", "Facts"))
  expect_output(gpu_report(), "GPU: NOT USED\n\nFacts")
})
