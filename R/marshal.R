# gpu_marshal(): models and datasets as plain R values, which survive saveRDS() and other processes.

#' Turn models and datasets into R values that can be saved and sent
#'
#' A Keras model and a [gpu_dataset()] live in Python. After `saveRDS()` and `readRDS()`, or on a
#' worker of future, mirai, parallel or targets, only a dead reference is left of them.
#' `gpu_marshal()` returns an R value with all that they consist of, which can be saved and sent
#' like any other; `gpu_unmarshal()` makes the model or the dataset again.
#'
#' A `gpu_marshalled` model holds the bytes of the file that [gpu_save()] writes: with the state of
#' its optimizer, the recipe of its training data, its history, its calibration and its masks. A
#' `gpu_marshalled` dataset holds the files of [gpu_dataset_save()]: its encoded rows, all of them.
#'
#' [gpu_predict()], [gpu_evaluate()], [gpu_save()] and other functions that read a model or a
#' dataset take the marshalled one too: they load it when they first use it, and keep the last
#' four that were used in memory. [gpu_fit()], [gpu_prune()] and [gpu_calibrate()] change a model in
#' place, so they need one of `gpu_unmarshal()`.
#'
#' `print()` starts neither Python nor TensorFlow, and says what loading needs.
#'
#' @section Where to use it:
#' - `saveRDS(gpu_marshal(model), path)`, and `gpu_predict(readRDS(path), rows)` in another session.
#' - future, mirai and parallel: send `gpu_marshal(model)`, and use it there as a model. A worker
#'   that trains returns `gpu_marshal(model)`. Forks (`multicore`, `mclapply()`) cannot use
#'   TensorFlow: see [gpu_run()], which marshals by itself.
#'   With mirai 2.4 or newer, models themselves can be sent too: gpukeras registers them by
#'   `mirai::register_serial()`. (That was tested with R's own `serialize()`, not with mirai.)
#' - targets: `tar_target(model, train(), format = tar_gpu_model())`; see [tar_gpu_model()].
#' - tidymodels: a fit of the engine `"gpukeras"` holds its archive itself and needs no marshalling.
#'
#' @section Safety:
#' Loading checks the bytes as [gpu_load()] checks a file, in Keras' safe mode, and the rows as
#' [gpu_dataset()] checks a folder. A marshalled value holds no functions: of a formula that calls
#' functions of your own, it has the text only, and `gpu_predict()` in another session says so.
#' `readRDS()` itself is R's: read only files whose code you would run.
#' @param x A Keras model, a [gpu_dataset()], or a list in which they occur at any depth. Other
#'   values of the list stay as they are. For `gpu_unmarshal()`, a `gpu_marshalled`, or a list in
#'   which they occur; a model or dataset stays as it is.
#' @param custom_objects,safe_mode See [gpu_load()].
#' @return `gpu_marshal()`: a `gpu_marshalled`, with `$kind` (`"model"` or `"dataset"`), `$files`
#'   (a named list of raw vectors), `$record` (what `print()` shows) and `$versions` of gpukeras and
#'   Keras; or the list with these in it. `gpu_unmarshal()`: a model or dataset, a new one with each
#'   call.
#' @section Errors:
#' `gpukeras_error_model` for a model that cannot be saved or loaded, and for a marshalled one that
#' should be changed in place; `gpukeras_error_data` for a dataset that cannot be saved, or a value
#' that is damaged; `gpukeras_error_spec` for another Python object, and for what is
#' neither a model, a dataset nor a list.
#' @seealso [gpu_save()] for files that plain Keras opens too.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(mpg ~ ., data = mtcars)
#' model <- gpu_mlp(train)
#' fit <- gpu_fit(model, train, epochs = 5, verbose = FALSE)
#' kept <- gpu_marshal(model)
#' kept
#' path <- tempfile(fileext = ".rds")
#' saveRDS(kept, path)
#' head(gpu_predict(readRDS(path), mtcars)) # in any session
#' again <- gpu_unmarshal(readRDS(path)) # to train on
#' @export
gpu_marshal <- function(x) {
  check_holder(x)
  marshal_at(x, "x", rlang::current_env())
}

#' @rdname gpu_marshal
#' @export
gpu_unmarshal <- function(x, custom_objects = NULL, safe_mode = TRUE) {
  check_holder(x)
  check_flag(safe_mode)
  needs <- list(custom_objects = as_custom_objects(custom_objects), safe_mode = safe_mode)
  unmarshal_at(x, needs, rlang::current_env())
}

# What may be a model or a dataset or hold one; results and data frames are lists.
check_holder <- function(x, arg = caller_arg(x), call = caller_env()) {
  force(arg)
  check_given(x, arg, call)
  if (typeof(x) != "list" && !inherits(x, "python.builtin.object")) {
    abort_spec(x, arg, "a model, a dataset, or a list in which they may occur", call)
  }
}

# `where` is the name of the value in messages.
marshal_at <- function(x, where, call) {
  if (inherits(x, "gpu_marshalled")) {
    return(x)
  }
  if (inherits(x, "gpu_mlp_fit")) { # holds its archive; the live model does not survive
    x$state <- rlang::env(model = NULL)
    return(x)
  }
  if (inherits(x, "gpu_saved")) x <- resolve_saved(x, call)
  if (inherits(x, "gpu_dataset")) {
    return(marshal_dataset(check_alive(x, call), where, call))
  }
  if (inherits(x, "gpu_fits")) {
    abort_gpukeras(
      sprintf("`%s` is a gpu_fits, whose models are marshalled one by one.", where),
      code = "spec", hint = "Such as gpu_marshal(fits[[1]]).", arg = where, call = call
    )
  }
  if (inherits(x, "python.builtin.object")) {
    return(marshal_model(check_model(x, where, call), where, call))
  }
  walk(x, where, function(item, where) marshal_at(item, where, call))
}

unmarshal_at <- function(x, needs, call) {
  if (inherits(x, "gpu_marshalled")) {
    return(load_marshalled(x, call, needs))
  }
  walk(x, "", function(item, where) unmarshal_at(item, needs, call))
}

marshal_model <- function(model, where, call) {
  folder <- tempfile("marshal-")
  dir.create(folder)
  on.exit(unlink(folder, recursive = TRUE))
  record <- call_core("marshal_model", list(
    model = model, path = file.path(folder, "model.keras"), arg = where
  ), call)
  warn_shared_names(record$needs$shared)
  new_marshalled("model", folder, record)
}

marshal_dataset <- function(data, where, call) {
  options <- call_core("feeding_of", list(data = data$handle, arg = where), call)
  folder <- tempfile("marshal-")
  on.exit(unlink(folder, recursive = TRUE))
  gpu_dataset_save(data, folder, verbose = FALSE)
  new_marshalled("dataset", folder, list(options = options, text = format(data)))
}

new_marshalled <- function(kind, folder, record) {
  names <- list.files(folder)
  read <- function(name) {
    path <- file.path(folder, name)
    readBin(path, "raw", file.size(path))
  }
  keras <- record$keras
  new_result(
    list(
      kind = kind, files = rlang::set_names(lapply(names, read), names), record = record,
      versions = list(gpukeras = as.character(utils::packageVersion("gpukeras")), keras = keras)
    ),
    "gpu_marshalled"
  )
}

# Loading ------------------------------------------------------------------------------------------

# Always a new model or dataset.
load_marshalled <- function(x, call, needs = NULL) {
  folder <- write_marshalled(x, call)
  if (x$kind == "model") {
    on.exit(unlink(folder, recursive = TRUE))
    return(call_core("load_archive", list(
      path = file.path(folder, "model.keras"), arg = "x", custom_objects = needs$custom_objects,
      safe_mode = needs$safe_mode %||% TRUE
    ), call)$model)
  }
  options <- Filter(Negate(is.null), x$record$options)
  options <- options[intersect(names(options), feeding_options)]
  data <- do.call(gpu_dataset, c(list(folder), options), quote = TRUE)
  attr(data, "files") <- keep_folder(folder) # as long as the dataset reads from them
  data
}

# What a dataset is opened with; nothing else of a file becomes an argument.
feeding_options <- c("batch_size", "shuffle", "drop_last", "augment")

# The files in a new folder. Their names are of a closed set, since a stranger may have made them.
write_marshalled <- function(x, call) {
  known <- if (rlang::is_string(x$kind)) marshalled_files[x$kind] else NA
  if (is.na(known) || !are_files(x$files, known) || !rlang::is_bare_list(x$record)) {
    abort_gpukeras(
      "This gpu_marshalled value is damaged: its files are not those of gpu_marshal().",
      code = "data", hint = "Make it again by gpu_marshal().", arg = "x", call = call
    )
  }
  folder <- tempfile("unmarshal-")
  dir.create(folder)
  for (name in names(x$files)) writeBin(x$files[[name]], file.path(folder, name))
  folder
}

marshalled_files <- c(
  model = "^model[.]keras$",
  dataset = "^((x|y|weights|validation)[.]npy|gpukeras-dataset[.]json)$"
)

are_files <- function(x, known) {
  named <- rlang::is_bare_list(x) && length(x) > 0 && rlang::is_named(x)
  named && all(vapply(x, is.raw, NA)) && all(grepl(known, names(x)))
}

# An object whose finalizer removes a folder; a fork must not remove it.
keep_folder <- function(folder) {
  session <- Sys.getpid()
  state <- rlang::env(path = folder)
  reg.finalizer(state, function(state) {
    if (Sys.getpid() == session) unlink(state$path, recursive = TRUE)
  }, onexit = TRUE)
  state
}

# For functions that only read: the model or dataset of a marshalled value, loaded once. The hash of
# the bytes is the key, so that equal values share one, and a changed one is another.
resolve_marshalled <- function(x, call) {
  key <- rlang::hash(x$files)
  live <- the$unmarshalled[[key]]
  handle <- if (inherits(live, "gpu_dataset")) live$handle else live
  if (is.null(live) || is_dead(handle)) live <- load_marshalled(x, call)
  the$unmarshalled[[key]] <- NULL
  the$unmarshalled[[key]] <- live
  the$unmarshalled <- utils::tail(the$unmarshalled, most_unmarshalled)
  live
}

# Loaded ones that are kept for further calls; each takes memory of the device.
most_unmarshalled <- 4

# For functions that change a model in place: the value would not change, and the work were lost.
refuse_marshalled <- function(model, arg = caller_arg(model), call = caller_env()) {
  force(arg)
  check_given(model, arg, call)
  fit <- inherits(model, "gpu_mlp_fit") # whose archive is of the model as parsnip trained it
  if (fit || inherits(model, "gpu_marshalled")) {
    abort_gpukeras(
      sprintf(
        "`%s` is %s, and this function changes a model in place.", arg,
        if (fit) "an engine fit of parsnip" else "a marshalled value"
      ),
      code = "model", arg = arg, call = call,
      hint = if (fit) {
        sprintf("Use gpu_save(%s, path), then model <- gpu_load(path).", arg)
      } else {
        sprintf("Use model <- gpu_unmarshal(%s).", arg)
      }
    )
  }
}

#' @export
format.gpu_marshalled <- function(x, ...) {
  bytes <- sum(lengths(x$files))
  format_fields(
    sprintf(
      "<gpu_marshalled> a %s, %s, of gpukeras %s", x$kind, format_bytes(bytes), x$versions$gpukeras
    ),
    if (x$kind == "model") format_marshalled_model(x) else x$record$text
  )
}

format_marshalled_model <- function(x) {
  record <- x$record
  recipe <- record$recipe
  c(
    sprintf(
      "model:    %s \"%s\", %s", record$kind, record$name, count_of(record$parameters, "weights")
    ),
    if (!is.null(recipe)) format(new_gpu_recipe(recipe))[-1],
    sprintf("needs:    Python with Keras %s or newer; see install_gpukeras()", x$versions$keras),
    sub("gpu_load()", "gpu_unmarshal()", format_needs(record$needs), fixed = TRUE)
  )
}

# mirai --------------------------------------------------------------------------------------------

# Models in calls of mirai() are marshalled without being asked. What is serialized is the reference
# that a model consists of, for a callable one in an attribute.
register_mirai <- function() {
  setHook(packageEvent("mirai", "onLoad"), function(...) try(register_models(), silent = TRUE))
  if (isNamespaceLoaded("mirai")) try(register_models(), silent = TRUE)
}

# mirai before 2.4 has no register_serial().
register_models <- function(register = get0("register_serial", asNamespace("mirai"))) {
  if (is.null(register)) {
    return(invisible())
  }
  register(
    "keras.src.models.model.Model",
    function(x) serialize(gpu_marshal(x), NULL),
    function(bytes) {
      model <- gpu_unmarshal(unserialize(bytes))
      attr(model, "py_object") %||% model
    }
  )
}

# targets ------------------------------------------------------------------------------------------

#' Store models and datasets of a targets pipeline
#'
#' `tar_target(model, train(), format = tar_gpu_model())` stores what the command returns by
#' [gpu_marshal()], sends it to workers in that form, and gives the next target a live model or
#' dataset again. The value may be a list, such as `list(model = model, history = history)`.
#' A target that trains the model of another one gets a copy: stored targets do not change.
#' @return The value of `targets::tar_format()`.
#' @section Errors:
#' `gpukeras_error_runtime_missing` if the package targets is not installed.
#' @seealso [gpu_marshal()] for other ways between sessions.
#' @examplesIf rlang::is_installed("targets")
#' # In _targets.R:
#' tar_gpu_model()
#' @export
tar_gpu_model <- function() {
  if (!rlang::is_installed("targets")) {
    abort_gpukeras(
      "tar_gpu_model() needs the package targets, which is not installed.",
      code = "runtime_missing", hint = "Install it by install.packages(\"targets\")."
    )
  }
  do.call(getExportedValue("targets", "tar_format"), target_functions)
}

# targets keeps the text of these functions and runs it in other processes: they use nothing from
# here but what the package exports. A target may have any value, such as NULL after an error: it
# goes through in a list.
target_functions <- list(
  read = function(path) gpukeras::gpu_unmarshal(list(readRDS(path)))[[1]],
  write = function(object, path) saveRDS(gpukeras::gpu_marshal(list(object))[[1]], path),
  marshal = function(object) gpukeras::gpu_marshal(list(object))[[1]],
  unmarshal = function(object) gpukeras::gpu_unmarshal(list(object))[[1]]
)
