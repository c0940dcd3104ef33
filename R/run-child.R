# Runs in the R process that gpu_run() starts.

# Calls the function, and writes its result or error atomically.
run_child <- function(folder) {
  call <- readRDS(file.path(folder, "call.rds"))
  prepare_child(call)
  options(rlang_trace_top_env = environment())
  trace <- NULL
  outcome <- tryCatch(
    withCallingHandlers(
      {
        value <- call_function(call, folder)
        list(value = pack(value, "result", new_packing(folder, strict = FALSE)))
      },
      error = function(condition) trace <<- child_trace(condition, sys.nframe()),
      warning = new_sender(folder, "muffleWarning"),
      message = new_sender(folder, "muffleMessage")
    ),
    error = function(condition) list(error = plain_condition(condition, trace))
  )
  partial <- file.path(folder, "outcome.partial")
  saveRDS(outcome, partial, compress = FALSE)
  file.rename(partial, file.path(folder, "outcome.rds"))
}

prepare_child <- function(call) {
  options(call$options)
  for (package in call$packages) {
    suppressPackageStartupMessages(library(package, character.only = TRUE))
  }
  suppressWarnings(do.call(RNGkind, as.list(call$kind))) # of the sampler of R before 3.6
  set.seed(call$seed)
}

# Calls f(x = args$x): the calls of a traceback stay short, and an argument in a file is loaded when
# `f` first uses it.
call_function <- function(call, folder) {
  args <- call$args
  given <- rlang::names2(args)
  names <- given
  names[!nzchar(given)] <- which(!nzchar(given))
  names <- make.unique(names)
  frame <- new.env(parent = globalenv())
  frame$f <- call$f
  frame$args <- delay(rlang::set_names(args, names), folder)
  parts <- lapply(names, function(name) base::call("$", quote(args), as.name(name)))
  before <- options(rlang_trace_top_env = frame) # tracebacks begin there
  on.exit(options(before))
  eval(as.call(c(quote(f), rlang::set_names(parts, given))), frame)
}

# The values in an environment, each unpacked on first use.
delay <- function(values, folder) {
  delayed <- new.env(parent = emptyenv())
  seen <- new.env(parent = emptyenv()) # the same model, given twice, stays one
  for (name in names(values)) {
    local({
      packed <- values[[name]]
      delayedAssign(name, unpack(packed, folder, load_packed, seen), assign.env = delayed)
    })
  }
  delayed
}

# Writes conditions to files, and a marker to standard error, which keeps their order with output.
new_sender <- function(folder, restart) {
  function(condition) {
    the$events <- the$events + 1
    file <- file.path(folder, sprintf("event-%d.rds", the$events))
    saveRDS(plain_condition(condition), file)
    flush(stdout())
    cat(sprintf("\001gpukeras:%d\002", the$events), file = stderr())
    tryInvokeRestart(restart)
  }
}

# The traceback of an error; errors of rlang have one. `frame` is that of the handler, which follows
# the frame that signalled the error.
child_trace <- function(condition, frame) {
  if (is.list(condition) && !is.null(condition$trace)) {
    return(condition$trace)
  }
  signals <- c(".handleSimpleError", "stop")
  repeat {
    frame <- frame - 1
    name <- rlang::call_name(sys.call(frame)) %||% ""
    if (!name %in% signals) break
  }
  top <- getOption("rlang_trace_top_env")
  tryCatch(rlang::trace_back(top = top, bottom = sys.frame(frame)), error = function(failed) NULL)
}

# A condition without Python objects, which cannot be serialized.
plain_condition <- function(condition, trace = NULL) {
  classes <- setdiff(class(condition), "python.builtin.object")
  fields <- if (is.list(condition)) {
    Filter(function(field) !inherits(field, "python.builtin.object"), unclass(condition))
  } else {
    list(message = conditionMessage(condition), call = conditionCall(condition))
  }
  if (inherits(fields$parent, "condition")) {
    fields$parent <- plain_condition(fields$parent)
  }
  fields$trace <- trace %||% fields$trace
  structure(fields, class = classes)
}
