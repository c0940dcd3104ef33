# Facts about computers, as read_computer() gives them.
computers <- list(
  linux = list(system = "Linux", machine = "x86_64", nvidia = ""),
  card = list(system = "Linux", machine = "x86_64", nvidia = "/dev/nvidia0"),
  wsl = list(system = "Linux", machine = "x86_64", nvidia = "/dev/dxg and the driver of Windows"),
  arm = list(system = "Linux", machine = "aarch64", nvidia = "/dev/nvidia0"),
  mac = list(system = "Darwin", machine = "arm64", nvidia = ""),
  intel_mac = list(system = "Darwin", machine = "x86_64", nvidia = ""),
  windows = list(system = "Windows", machine = "x86-64", nvidia = "")
)
old <- numeric_version("1.28")
new <- numeric_version("1.46.0.9000")

test_that("each computer gets its build of TensorFlow, with the reason", {
  expect_snapshot({
    for (name in names(computers)) {
      for (gpu in list("auto", TRUE, FALSE)) {
        wanted <- choose_requirements(computers[[name]], gpu, new)
        cat(sprintf("%s, gpu = %s: %s\n  %s\n", name, gpu, wanted$packages[1], wanted$reason))
      }
    }
  })
})

test_that("each computer gets its build of JAX, with the reason", {
  expect_snapshot({
    for (name in names(computers)) {
      for (gpu in list("auto", TRUE, FALSE)) {
        wanted <- choose_requirements(computers[[name]], gpu, new, "jax")
        cat(sprintf("%s, gpu = %s: %s\n  %s\n", name, gpu, wanted$packages[1], wanted$reason))
      }
    }
  })
  old_packages <- choose_requirements(computers$linux, "auto", old, "jax")$packages
  expect_identical(old_packages[1], "jax>=0.6,<0.8")
})

test_that("versions go with each other, with the system and with reticulate", {
  expect_identical(
    choose_requirements(computers$linux, "auto", old),
    list(
      packages = c(
        "tensorflow-cpu>=2.21,<2.22", "keras>=3.12,<4", "numpy>=1.26,<2", "nvidia-ml-py>=12,<14",
        "psutil>=5.9,<8", "pyarrow>=16,<25"
      ),
      python = c("3.10", "3.13"), reason = choose_build(computers$linux, "auto")$reason
    )
  )
  modern <- choose_requirements(computers$linux, "auto", new)
  expect_identical(modern$packages[3], "numpy>=1.26,<3")
  expect_identical(modern$python, c("3.10", "3.14"))
  # TensorFlow 2.16 is the last for Macs with Intel's processors, and takes NumPy 1 only.
  mac <- choose_requirements(computers$intel_mac, "auto", new)
  expect_identical(mac$packages[c(1, 3)], c("tensorflow>=2.16,<2.17", "numpy>=1.23.5,<2"))
})

test_that("every line of the table goes up, and there is one for each supported reticulate", {
  known <- known_good()
  for (name in c("tensorflow", "python", "keras", "numpy")) {
    from <- numeric_version(known$lines[[name]])
    expect_true(all(from < known$lines[[paste0(name, "_below")]]))
    expect_true(all(from >= known$oldest[[name]]))
  }
  for (computer in computers) {
    expect_false(is.na(choose_line(computer, numeric_version("1.28"))$tensorflow))
  }
})

test_that("what cannot be done without depends on reticulate alone", {
  expect_identical(choose_least(old), c("tensorflow>=2.16", "keras>=3.0", "numpy>=1.23.5,<2"))
  expect_identical(choose_least(new), c("tensorflow>=2.16", "keras>=3.0", "numpy>=1.23.5"))
})

# The computer -------------------------------------------------------------------------------------

# A folder with some of a system's files.
a_root <- function(..., frame = parent.frame()) {
  root <- withr::local_tempdir(.local_envir = frame)
  files <- c(...)
  for (path in names(files)) {
    dir.create(file.path(root, dirname(path)), recursive = TRUE, showWarnings = FALSE)
    writeLines(files[[path]], file.path(root, path))
  }
  root
}

pci_device <- function(vendor, class, address = "0000:01:00.0") {
  folder <- file.path("sys/bus/pci/devices", address)
  stats::setNames(c(vendor, class), file.path(folder, c("vendor", "class")))
}

test_that("an NVIDIA GPU is seen by any of its signs", {
  sees <- function(...) find_nvidia(a_root(...))
  expect_identical(sees(), "")
  expect_identical(sees("dev/nvidia0" = ""), "/dev/nvidia0")
  expect_identical(
    sees("proc/driver/nvidia/version" = "NVRM version"), "/proc/driver/nvidia/version"
  )
  expect_identical(sees(pci_device("0x10de", "0x030000")), "PCI device 0000:01:00.0")
  expect_identical(sees(pci_device("0x10de", "0x030200")), "PCI device 0000:01:00.0")
  expect_identical(
    sees("dev/dxg" = "", "usr/lib/wsl/lib/libcuda.so.1" = ""), "/dev/dxg and the driver of Windows"
  )
})

test_that("what is no NVIDIA GPU is not taken for one", {
  sees <- function(...) find_nvidia(a_root(...))
  expect_identical(sees(pci_device("0x10de", "0x040300")), "") # its sound
  expect_identical(sees(pci_device("0x1002", "0x030000")), "") # AMD's
  expect_identical(sees("dev/dxg" = ""), "") # WSL without NVIDIA's driver
  expect_identical(sees("usr/lib/wsl/lib/libcuda.so.1" = ""), "")
  expect_identical(sees("sys/bus/pci/devices/0000:01:00.0/vendor" = "0x10de"), "")
  both <- c(pci_device("0x8086", "0x030000", "0000:00:02.0"), pci_device("0x10de", "0x030200"))
  expect_identical(sees(both), "PCI device 0000:01:00.0")
})

test_that("this computer is read", {
  computer <- read_computer()
  expect_identical(computer$system, Sys.info()[["sysname"]])
  expect_identical(computer$machine, Sys.info()[["machine"]])
  expect_type(computer$nvidia, "character")
})

# The Python ---------------------------------------------------------------------------------------

a_choice <- function(..., environments = list(), can_require = TRUE, managed = FALSE) {
  names <- c("RETICULATE_PYTHON", "RETICULATE_PYTHON_ENV", "RETICULATE_PYTHON_FALLBACK")
  variables <- stats::setNames(as.list(rep("", 3)), names)
  given <- list(...)
  variables[names(given)] <- given
  choose_python(list(
    variables = variables, managed = managed, environments = environments,
    can_require = can_require
  ))
}

test_that("who has chosen a Python has it", {
  environments <- list(`r-gpukeras` = "/e/bin/python")
  for (name in c("RETICULATE_PYTHON", "RETICULATE_PYTHON_ENV", "RETICULATE_PYTHON_FALLBACK")) {
    choice <- rlang::exec(a_choice, !!name := "/usr/bin/python3", environments = environments)
    expect_identical(choice, list(how = "given", by = name))
  }
})

test_that("an environment that is there comes before one that reticulate would make", {
  environments <- list(VIRTUAL_ENV = "/v/bin/python", `r-gpukeras` = "/e/bin/python")
  expect_identical(
    a_choice(environments = environments),
    list(how = "environment", python = "/v/bin/python", by = "VIRTUAL_ENV")
  )
  expect_identical(a_choice(), list(how = "require"))
  expect_identical(a_choice(can_require = FALSE), list(how = "reticulate"))
})

test_that("reticulate is to make one where that is asked for", {
  environments <- list(`r-gpukeras` = "/e/bin/python")
  expect_identical(a_choice(RETICULATE_PYTHON = "managed"), list(how = "require"))
  expect_identical(a_choice(environments = environments, managed = TRUE), list(how = "require"))
  # An old reticulate cannot.
  choice <- a_choice(environments = environments, managed = TRUE, can_require = FALSE)
  expect_identical(choice$how, "environment")
})

# Folders that look like environments, by their interpreters.
a_folder_of <- function(..., frame = parent.frame()) {
  paths <- file.path(c(...), "bin/python")
  rlang::inject(a_root(!!!stats::setNames(as.list(rep("", length(paths))), paths), frame = frame))
}

test_that("environments are found in their order; an active conda only with TensorFlow", {
  skip_on_os("windows")
  root <- a_folder_of("r-tensorflow", "r-keras", "r-gpukeras", "other", "conda", "active")
  none <- c(VIRTUAL_ENV = "", CONDA_PREFIX = "")
  found <- find_environments(none, root)
  expect_identical(names(found), c("r-gpukeras", "r-keras", "r-tensorflow"))
  expect_identical(found[[1]], file.path(root, "r-gpukeras/bin/python"))

  active <- c(
    VIRTUAL_ENV = file.path(root, "active"), CONDA_PREFIX = file.path(root, "conda")
  )
  expect_identical(names(find_environments(active, root))[1:2], c("VIRTUAL_ENV", "r-gpukeras"))
  dir.create(file.path(root, "conda/lib/python3.11/site-packages/tensorflow"), recursive = TRUE)
  expect_identical(names(find_environments(active, root))[1:2], c("VIRTUAL_ENV", "CONDA_PREFIX"))

  gone <- c(VIRTUAL_ENV = file.path(root, "gone"), CONDA_PREFIX = "")
  expect_identical(names(find_environments(gone, root))[1], "r-gpukeras")
  expect_identical(length(find_environments(none, withr::local_tempdir())), 0L)
})

test_that("the session's variables are read", {
  withr::local_envvar(
    RETICULATE_PYTHON = "/a", RETICULATE_PYTHON_ENV = NA, RETICULATE_USE_MANAGED_VENV = "Yes"
  )
  facts <- read_choices(withr::local_tempdir(), TRUE)
  expect_identical(facts$variables$RETICULATE_PYTHON, "/a")
  expect_identical(facts$variables$RETICULATE_PYTHON_ENV, "")
  expect_true(facts$managed)
})

# Requirements for reticulate -----------------------------------------------------------------------

test_that("without others' requirements the computer's build is declared, with room", {
  plan <- plan_declared("numpy", computers$linux, TRUE, new)
  expect_identical(plan$remove, character())
  expect_null(plan$message)
  expect_identical(
    plan$add[1:4],
    c("tensorflow-cpu>=2.16", "tensorflow-cpu<2.22", "keras>=3.0,<4", "numpy>=1.23.5,<3")
  )
  expect_identical(plan$python, c(">=3.10", "<3.14"))
  card <- plan_declared("numpy", computers$card, TRUE, new)
  expect_identical(card$add[1:2], c("tensorflow[and-cuda]>=2.16", "tensorflow[and-cuda]<2.22"))
})

test_that("keras3's guess is mended where it did not see the GPU, and said", {
  plan <- plan_declared(c("numpy", "keras", "tensorflow-cpu"), computers$card, TRUE, new)
  expect_identical(plan$remove, "tensorflow-cpu")
  expect_identical(plan$add[1], "tensorflow[and-cuda]>=2.16")
  expect_snapshot(cat(plan$message, sep = "\n"))
})

test_that("two builds of TensorFlow are never declared", {
  skip_outside_lane()
  builds <- c("tensorflow", "tensorflow-cpu", "tensorflow[and-cuda]", "tensorflow-cpu==2.20.0")
  for (first in builds) {
    for (second in builds) {
      for (computer in computers[c("linux", "card", "mac")]) {
        for (replace in c(TRUE, FALSE)) {
          declared <- unique(c("numpy", first, second))
          plan <- plan_declared(declared, computer, replace, new)
          all <- c(setdiff(declared, plan$remove), plan$add)
          kinds <- unique(sub("^(tensorflow(-cpu)?).*", "\\1", grep("^tensorflow", all, value = TRUE)))
          expect_length(kinds, 1)
        }
      }
    }
  }
})

test_that("what others declared later, or beside jax and torch, stays", {
  later <- plan_declared(c("numpy", "tensorflow-cpu"), computers$card, FALSE, new)
  expect_identical(later$remove, character())
  expect_identical(later$add[1], "tensorflow-cpu>=2.16")
  for (other in c("jax[cuda12]!=0.6.1", "torch")) {
    plan <- plan_declared(c("tensorflow-cpu", other), computers$card, TRUE, new)
    expect_identical(plan$remove, character())
    expect_null(plan$message)
  }
  # A GPU that somebody else has seen.
  seen <- plan_declared("tensorflow[and-cuda]", computers$linux, TRUE, new)
  expect_identical(seen$remove, character())
  expect_identical(seen$add[1], "tensorflow[and-cuda]>=2.16")
})

test_that("keras3 can take back what is declared of TensorFlow", {
  skip_if_not_installed("keras3")
  added <- grep("^tensorflow", plan_declared("numpy", computers$card, TRUE, new)$add, value = TRUE)
  known <- "^tensorflow(-cpu|-metal|-macos|\\[and-cuda\\])?[=~*!<>0-9.]*$" # keras3's own
  source <- deparse(get("py_require_remove_all_tensorflow", asNamespace("keras3")))
  expect_true(any(grepl(encodeString(known), source, fixed = TRUE)))
  expect_match(added, known)
})

# What is missing ----------------------------------------------------------------------------------

a_lack <- function(wanted, found = "") list(wanted = wanted, found = found)

test_that("a Python that cannot run gpukeras is named, with what to do", {
  lacks <- list(
    a_lack("tensorflow>=2.16", "tensorflow-cpu 2.15.1"), a_lack("keras>=3.0"),
    a_lack("numpy>=1.23.5,<2", "numpy 2.4.6")
  )
  computer <- computers$card
  message <- function(...) {
    withr::local_envvar(RETICULATE_PYTHON = "")
    condition <- rlang::catch_cnd(abort_missing(..., call = quote(gpu_fit())))
    expect_s3_class(condition, "gpukeras_error_runtime_missing")
    conditionMessage(condition)
  }
  fix <- function(wanted, python, given = "", managed = FALSE) {
    missing_hint(wanted, python, given, computer, old, managed)
  }
  expect_snapshot({
    cat(describe_missing(lacks), sep = "\n")
    cat(fix(c("tensorflow>=2.16", "numpy>=1.23.5,<2"), "/opt/python", "/opt/python"))
    cat(fix("keras>=3.0", "/opt/python"))
    cat(fix("keras>=3.0", "/usr/bin/python3", managed = TRUE))
    cat(fix("python>=3.10", "/opt/python"))
    cat(fix("keras>=3.0", "/home/ada/.virtualenvs/r-gpukeras/bin/python"))
    cat(message(lacks[2], python = "/envs/r-gpukeras/bin/python"))
  })
})

test_that("without NumPy, or with an old Python, nothing works; else gpu_check() does", {
  expect_true(is_numpy_missing(list(a_lack("numpy>=1.23.5,<2"))))
  expect_true(is_numpy_missing(list(a_lack("tensorflow>=2.16"), a_lack("python>=3.10", "python 3.9"))))
  expect_false(is_numpy_missing(list(a_lack("numpy>=1.23.5,<2", "numpy 2.4.6"))))
  expect_false(is_numpy_missing(list(a_lack("tensorflow>=2.16"))))
  expect_false(is_numpy_missing(list()))
})
