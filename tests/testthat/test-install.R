# Environments are made for real, of packages that the tests write: no network.

# Installs packages of `wheels` into `path`, quietly.
install_from <- function(wheels, path, packages, ...) {
  suppressMessages(install_gpukeras(
    path, python = a_starter(), wheels = wheels, packages = packages, verbose = FALSE, ...
  ))
}

versions_in <- function(path, packages) {
  code <- paste(
    "import sys; from importlib.metadata import version;",
    "print(*[version(name) for name in sys.argv[1:]])"
  )
  run_python(environment_python(path), c("-I", "-c", code, packages))$lines
}

# The message of what an expression raises, without this computer's paths.
message_without <- function(expr, folder) {
  condition <- rlang::catch_cnd(expr, "error")
  expect_s3_class(condition, "gpukeras_error_runtime_missing")
  gsub(folder, "FOLDER", gsub("[[:space:]]+", " ", conditionMessage(condition)))
}

# What pip and Python say themselves differs from version to version.
without_pip <- function(message) sub(": .* (Without access)", ": <...> \\1", message)

# Runs the printed command in `folder`, against a package index of `wheels` alone; gives the folder
# that it fills. The environment's own Python has pip, whichever runs this session.
fetch_by <- function(command, wheels, folder) {
  withr::local_envvar(PIP_NO_INDEX = "1", PIP_FIND_LINKS = wheels)
  work <- file.path(folder, "elsewhere")
  dir.create(work)
  withr::local_dir(work)
  expect_match(command, "^python3[.][0-9]+ -m pip download ")
  words <- scan(text = command, what = "", quote = "\"", quiet = TRUE)
  said <- run_python(environment_python(file.path(folder, "environments/own")), words[-1])
  expect_identical(said$status, 0L, info = toString(said$lines))
  file.path(work, "wheels")
}

# An environment that install_gpukeras() has made, once for this file: to make one takes seconds.
own <- new.env()

own_environment <- function() {
  if (is.null(own$path)) {
    own$folder <- normalizePath(withr::local_tempdir(.local_envir = teardown_env()))
    own$wheels <- write_wheels(file.path(own$folder, "wheels"),
      "tensorflow-cpu" = "2.21.0", "tensorflow" = "2.21.0", "gk-one" = "1.0", "gk-two" = "1.0",
      "gk-two" = "2.0", "gk-three" = c("1.0", "gk-two>=2")
    )
    own$path <- file.path(own$folder, "environments/own")
    packages <- c("tensorflow-cpu>=2.21,<2.22", "gk-one", "gk-two<2")
    own$plan <- install_from(own$wheels, own$path, packages)
  }
  own
}

test_that("an environment is made, kept, and left as it was by a failure", {
  skip_outside_lane()
  skip_on_os("windows")
  own_environment()
  expect_s3_class(own$plan, c("gpu_install", "gpu_result"), exact = TRUE)
  expect_identical(
    versions_in(own$path, c("tensorflow-cpu", "gk-one", "gk-two")), "2.21.0 1.0 1.0"
  )
  expect_true(is_environment(own$path))

  # Complete: nothing is done.
  before <- fingerprint(own$path)
  packages <- c("tensorflow-cpu", "gk-two<2")
  expect_snapshot(
    done <- install_gpukeras(own$path, packages = packages, wheels = own$wheels),
    transform = function(lines) gsub(own$folder, "FOLDER", lines, fixed = TRUE)
  )
  expect_identical(fingerprint(own$path), before)

  # A failure leaves it as it was, whatever else could have been installed.
  message <- message_without(
    install_from(own$wheels, own$path, c("gk-two>=2", "gk-absent")), own$folder
  )
  expect_match(message, "No matching distribution found for gk-absent", fixed = TRUE)
  expect_snapshot(cat(without_pip(message)))

  # Two builds of TensorFlow are never in one place, and nothing is removed unasked.
  expect_snapshot(cat(message_without(
    install_from(own$wheels, own$path, "tensorflow[and-cuda]>=2.21,<2.22"), own$folder
  )))

  # What an installation that was ended left is not overwritten.
  dir.create(paste0(own$path, ".before"))
  expect_snapshot(cat(message_without(install_from(own$wheels, own$path, "gk-absent"), own$folder)))
  unlink(paste0(own$path, ".before"), recursive = TRUE)
  expect_identical(fingerprint(own$path), before)
})

test_that("an environment is mended, and what the printed command fetches is all it needs", {
  skip_outside_lane(slow = TRUE)
  skip_on_os("windows")
  own_environment()
  before <- fingerprint(own$path)
  message <- message_without(
    install_from(own$wheels, own$path, "gk-two>=2", pip_options = "--dry-run"), own$folder
  )
  expect_snapshot(cat(message))
  expect_identical(fingerprint(own$path), before)

  # Only what is too old is replaced.
  plan <- install_from(own$wheels, own$path, c("gk-one", "gk-two>=2"))
  expect_identical(vapply(plan$lacking, `[[`, "", "install"), "gk-two>=2")
  expect_identical(versions_in(own$path, c("gk-one", "gk-two")), "1.0 2.0")

  # Without a network.
  packages <- c("tensorflow>=2.21,<2.22", "gk-three>=1")
  plan <- install_gpukeras(own$path, packages = packages, new = TRUE, dry_run = TRUE)
  fetched <- fetch_by(plan$download, own$wheels, own$folder)
  expect_setequal(sub("-.*", "", list.files(fetched)), c("tensorflow", "gk_two", "gk_three"))
  expect_identical(list.files(dirname(own$path), all.files = TRUE, no.. = TRUE), "own")

  # Anew of it: the other build takes the place of the first. How one environment replaces another
  # is tested below, without Python: to make one takes ten seconds.
  skip_unless_nightly()
  install_from(fetched, own$path, packages, new = TRUE)
  expect_identical(
    versions_in(own$path, c("tensorflow", "gk-two", "gk-three")), "2.21.0 2.0 1.0"
  )
  expect_false(file.exists(file.path(
    Sys.glob(file.path(own$path, "lib/python3*/site-packages")), "gk_one_module.py"
  )))
  expect_identical(list.files(dirname(own$path), all.files = TRUE, no.. = TRUE), "own")
})

test_that("an environment that is not completed is removed, and the one before is back", {
  folder <- withr::local_tempdir()
  path <- file.path(folder, "own")
  make <- function(text, fails = FALSE) {
    dir.create(path)
    writeLines(text, file.path(path, "file"))
    if (fails) stop("not completed")
  }
  expect_error(replace_environment(path, make("first", fails = TRUE)), "not completed")
  expect_identical(list.files(folder), character())
  replace_environment(path, make("first"))
  expect_error(replace_environment(path, make("second", fails = TRUE)), "not completed")
  expect_identical(readLines(file.path(path, "file")), "first")
  replace_environment(path, make("second"))
  expect_identical(readLines(file.path(path, "file")), "second")
  expect_identical(list.files(folder), "own")
})

# The same with environments, which take seconds each to make.
test_that("an installation that fails leaves nothing, or what was there", {
  skip_unless_nightly()
  skip_on_os("windows")
  folder <- normalizePath(withr::local_tempdir())
  wheels <- write_wheels(
    file.path(folder, "wheels"), "gk-one" = c("1.0", "gk-absent"), "gk-two" = "1.0"
  )
  path <- file.path(folder, "own")
  message_without(install_from(wheels, path, "gk-one"), folder)
  expect_identical(list.files(folder), "wheels")
  install_from(wheels, path, "gk-two")
  before <- fingerprint(path)
  message_without(install_from(wheels, path, "gk-absent", new = TRUE), folder)
  expect_identical(fingerprint(path), before)
  expect_setequal(list.files(folder, all.files = TRUE, no.. = TRUE), c("own", "wheels"))
})

test_that("an environment that Python cannot make is named", {
  skip_outside_lane()
  skip_on_os("windows")
  folder <- normalizePath(withr::local_tempdir())
  writeLines("mine", file.path(folder, "file"))
  message <- message_without(install_from(folder, file.path(folder, "file/own"), "gk"), folder)
  expect_snapshot(cat(without_pip(message)))
  expect_identical(readLines(file.path(folder, "file")), "mine")
})

test_that("a folder that is no environment is never touched", {
  skip_outside_lane()
  folder <- normalizePath(withr::local_tempdir())
  path <- file.path(folder, "data")
  dir.create(path)
  writeLines("mine", file.path(path, "file"))
  for (new in c(TRUE, FALSE)) {
    message <- message_without(
      suppressMessages(install_gpukeras(path, packages = "numpy", new = new)), folder
    )
    expect_match(message, "is no virtual environment")
  }
  expect_identical(readLines(file.path(path, "file")), "mine")
})

test_that("an environment that this session uses is not changed under it", {
  skip_without_tensorflow()
  prefix <- dirname(dirname(python_path()))
  expect_true(is_running(prefix))
  expect_false(is_running(dirname(prefix) |> file.path("other")))
  plan <- list(
    path = prefix, problem = "", exists = TRUE, python = python_path(), lacking = all_missing("keras")
  )
  expect_snapshot(cat(message_without(check_feasible(plan, call = NULL), prefix)))
  plan$lacking <- list()
  expect_null(check_feasible(plan, call = NULL))
})

test_that("without a Python that fits, it says how to get one", {
  skip_on_os(c("windows", "mac"))
  folder <- normalizePath(withr::local_tempdir())
  expect_snapshot(cat(message_without(
    install_gpukeras(file.path(folder, "own"), python = file.path(folder, "python3")), folder
  )), transform = function(lines) gsub("to 3[.]1[23]", "to 3.1x", lines))
})

test_that("what comes next is said", {
  plan <- list(path = "/project/own")
  told <- unname(describe_installed(plan))
  expect_match(told[1], "/project/own is complete.", fixed = TRUE)
  expect_match(told[2], "RETICULATE_PYTHON=/project/own/bin/python", fixed = TRUE)
  withr::local_envvar(WORKON_HOME = "/envs", RETICULATE_VIRTUALENV_ROOT = NA)
  expect_false(any(grepl("RETICULATE_PYTHON", describe_installed(list(path = "/envs/r-gpukeras")))))
})

test_that("bad arguments are refused by name", {
  skip_outside_lane()
  expect_snapshot(error = TRUE, {
    install_gpukeras(1)
    install_gpukeras(gpu = NA)
    install_gpukeras(python = 3)
    install_gpukeras(new = "yes")
    install_gpukeras(wheels = "no such folder")
    install_gpukeras(packages = "-r file")
    install_gpukeras(packages = c("keras", "keras 3"))
    install_gpukeras(packages = character())
    install_gpukeras(pip_options = TRUE)
    install_gpukeras(verbose = NA)
  })
})

test_that("a GPU that cannot be had is refused, with the way that there is", {
  skip_outside_lane()
  computer <- list(system = "Windows", machine = "x86-64", nvidia = "")
  expect_snapshot(error = TRUE, {
    check_gpu(TRUE, computer, call = NULL)
    check_gpu(TRUE, list(system = "Darwin", machine = "arm64", nvidia = ""), call = NULL)
    check_gpu(TRUE, computer, "jax", call = NULL)
    install_gpukeras(backend = "torch", dry_run = TRUE)
    check_compiler(computer, call = NULL)
  })
  expect_silent(check_gpu("auto", computer))
})

test_that("what compiles for cards gets an environment of its own", {
  skip_on_os(c("windows", "mac"))
  root <- withr::local_tempdir()
  withr::local_envvar(WORKON_HOME = root)
  plan <- install_gpukeras(cards = TRUE, dry_run = TRUE)
  expect_identical(basename(plan$path), "r-gpukeras-cards")
  expect_match(plan$packages, "^[a-z0-9-]+==[0-9.]+$")
  expect_true(all(c("jax", "jax-cuda12-pjrt", "keras") %in% sub("==.*", "", plan$packages)))
  expect_match(format(plan), "^JAX that compiles for NVIDIA GPUs", all = FALSE)
  other <- install_gpukeras(file.path(root, "other"), cards = TRUE, dry_run = TRUE)
  expect_identical(basename(other$path), "other")
  expect_match(describe_installed(other), "GPUKERAS_CARDS_PYTHON=", all = FALSE)
  expect_no_match(describe_installed(plan), "RETICULATE_PYTHON")
})

test_that("the plan is for this computer", {
  plan <- install_gpukeras(file.path(withr::local_tempdir(), "own"), dry_run = TRUE)
  expect_identical(plan$packages, choose_requirements(read_computer())$packages)
  expect_false(dir.exists(plan$path))
})
