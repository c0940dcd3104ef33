a_plan <- function(...) {
  lacking <- all_missing(c("tensorflow[and-cuda]>=2.21,<2.22", "keras>=3.12,<4"))
  plan <- list(
    envname = "r-gpukeras", path = "/home/ada/.virtualenvs/r-gpukeras", exists = FALSE, new = FALSE,
    packages = c("tensorflow[and-cuda]>=2.21,<2.22", "keras>=3.12,<4"),
    reason = "with CUDA: there is an NVIDIA GPU (/dev/nvidia0)", wheels = NULL, problem = "",
    python = "/usr/bin/python3", version = "3.11.2", lacking = lacking
  )
  changes <- list(...)
  plan[names(changes)] <- changes
  plan$download <- download_command(plan)
  new_result(plan, "gpu_install")
}

test_that("a plan says what, where and why", {
  expect_snapshot({
    a_plan()
    a_plan(exists = TRUE, lacking = list())
    a_plan(exists = TRUE, lacking = a_plan()$lacking[2], wheels = "/media/wheels")
    a_plan(exists = TRUE, new = TRUE)
    a_plan(python = "", version = "", problem = "there is no Python 3.10 to 3.13")
  })
})

test_that("names lie in reticulate's folder, what has a slash is a path", {
  root <- normalizePath(withr::local_tempdir(), winslash = "/")
  withr::local_envvar(WORKON_HOME = root, RETICULATE_VIRTUALENV_ROOT = NA)
  expect_identical(as_environment_path("r-gpukeras"), file.path(root, "r-gpukeras"))
  expect_identical(as_environment_path(file.path(root, "a b", "e")), file.path(root, "a b", "e"))
  expect_identical(as_environment_path("./e"), file.path(normalizePath(".", winslash = "/"), "e"))
})

test_that("what stands against mending an environment is told", {
  folder <- withr::local_tempdir()
  told <- function(...) {
    gsub(folder, "FOLDER", read_environment(file.path(folder, "env"), "numpy", ...)$problem)
  }
  dir.create(file.path(folder, "env"))
  expect_snapshot(told(c("3.10", "3.14")))
  file.create(file.path(folder, "env/pyvenv.cfg"))
  expect_snapshot(told(c("3.10", "3.14")))
  expect_identical(describe_clash(all_missing("keras")), "")
  expect_snapshot(cat(describe_clash(list(list(
    wanted = "tensorflow[and-cuda]", found = "tensorflow-cpu 2.21.0", clash = TRUE
  )))))
})

test_that("planning changes nothing, and needs no Python that fits", {
  folder <- withr::local_tempdir()
  wanted <- choose_requirements(read_computer())
  missing <- file.path(folder, "python3")
  plan <- plan_install(wanted, file.path(folder, "env"), missing, FALSE, NULL, NULL)
  expect_identical(list.files(folder, all.files = TRUE, no.. = TRUE), character())
  expect_match(plan$problem, "it is not there", fixed = TRUE)
  expect_identical(plan$packages, wanted$packages)
  expect_output(print(plan), "Cannot be done")
})
