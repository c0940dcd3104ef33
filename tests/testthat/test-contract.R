# R's calls into the core against contract.json, which the core generates from itself.

contract <- function() {
  skip_if_not_installed("jsonlite")
  path <- system.file("python", "contract.json", package = "gpukeras", mustWork = TRUE)
  jsonlite::read_json(path, simplifyVector = TRUE)
}

# All calls within an expression.
calls_in <- function(code) {
  if (!is.call(code)) {
    return(list())
  }
  parts <- lapply(as.list(code), function(part) if (!missing(part)) calls_in(part))
  c(list(code), unlist(parts, recursive = FALSE))
}

# Names in list(...) calls assigned to a variable, and those added by `variable$name <-`.
names_of_variable <- function(variable, calls) {
  assigned <- Filter(function(call) identical(call[[1]], quote(`<-`)), calls)
  whole <- Filter(function(call) identical(call[[2]], variable), assigned)
  added <- Filter(function(call) {
    is.call(call[[2]]) && identical(call[[2]][[1]], quote(`$`)) &&
      identical(call[[2]][[2]], variable)
  }, assigned)
  always <- as.character(unlist(lapply(whole, function(call) names(call[[3]])[-1])))
  sometimes <- vapply(added, function(call) as.character(call[[2]][[3]]), "")
  list(always = always, sometimes = sometimes)
}

# Each call of call_core() in the package: its caller, entry point and the names of its arguments.
find_core_calls <- function() {
  namespace <- asNamespace("gpukeras")
  names <- ls(namespace, all.names = TRUE)
  functions <- Filter(function(name) is.function(namespace[[name]]), names)
  found <- lapply(functions, function(caller) {
    calls <- calls_in(body(namespace[[caller]]))
    core <- Filter(function(call) identical(call[[1]], quote(call_core)), calls)
    lapply(core, function(call) {
      call <- as.list(match.call(call_core, call))
      args <- call$args
      names <- if (is.symbol(args)) {
        names_of_variable(args, calls)
      } else {
        list(always = as.character(names(args)[-1]), sometimes = character())
      }
      c(list(caller = caller, entry = call$name), names)
    })
  })
  unlist(found, recursive = FALSE)
}
core_calls <- find_core_calls()

test_that("the walk finds the calls that are there", {
  calls <- core_calls
  described <- vapply(calls, function(call) {
    paste0(call$caller, ": ", call$entry, "(", toString(c(call$always, call$sometimes)), ")")
  }, "")
  predict <- "predict(model, type, buffer, devices, callbacks, on_event, times, data, features)"
  expect_true(paste("gpu_predict:", predict) %in% described)
  expect_true("with_device: enter_device(device)" %in% described)
  expect_true("gpu_devices: devices()" %in% described)
  for (call in calls) {
    expect_type(call$entry, "character")
  }
})

test_that("R calls only entry points that exist, with arguments that they have", {
  contract <- contract()
  for (call in core_calls) {
    expect_true(call$entry %in% names(contract), label = call$entry)
    known <- unlist(contract[[call$entry]])
    unknown <- setdiff(c(call$always, call$sometimes), known)
    expect_identical(unknown, character(), label = paste("unknown names in", call$caller))
  }
})

test_that("R gives every required argument", {
  contract <- contract()
  for (call in core_calls) {
    lacking <- setdiff(as.character(contract[[call$entry]]$required), call$always)
    expect_identical(lacking, character(), label = paste("names that lack in", call$caller))
  }
})

test_that("every entry point has a caller in R", {
  called <- vapply(core_calls, `[[`, "", "entry")
  expect_setequal(names(contract()), called)
})

test_that("gpu_setup() has the arguments of its entry point", {
  setup <- contract()$setup
  expect_setequal(unlist(setup), c(names(formals(gpu_setup)), "on_wait")) # shows why it waits
})

test_that("the contract is the core's own", {
  skip_without_tensorflow()
  now <- as_r(core()$contract())
  file <- contract()
  expect_identical(sort(names(now)), sort(names(file)))
  for (entry in names(now)) {
    expect_identical(
      lapply(now[[entry]], function(names) as.character(unlist(names))),
      lapply(file[[entry]], function(names) as.character(unlist(names))),
      label = entry
    )
  }
})
