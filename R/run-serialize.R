# Values for another R process. R values are serialized as they are; models and datasets are written
# to files. pack() replaces each of these by a record of its file, unpack() loads it.

# The folder for the files. `strict` refuses models that cannot be loaded again. `seen` keeps a
# model that occurs twice one model.
new_packing <- function(folder, strict, call = caller_env()) {
  list(folder = folder, strict = strict, seen = new.env(parent = emptyenv()), call = call)
}

# `where` is the name of the value in messages.
pack <- function(x, where, packing) {
  if (inherits(x, "gpu_saved")) {
    live <- x$state$live
    return(if (is.null(live)) pack_saved(x, packing) else pack(live, where, packing))
  }
  if (inherits(x, "gpu_dataset")) {
    return(pack_once(check_alive(x, packing$call)$handle, pack_dataset, x, where, packing))
  }
  if (inherits(x, "python.builtin.object")) {
    check_model(x, where, packing$call)
    return(pack_once(x, pack_model, x, where, packing))
  }
  walk(x, where, function(item, where) pack(item, where, packing))
}

pack_once <- function(handle, pack_one, x, where, packing) {
  key <- python_key(handle)
  if (is.null(packing$seen[[key]])) {
    packing$seen[[key]] <- pack_one(x, where, packing)
  }
  packing$seen[[key]]
}

# The file of a gpu_saved object. A child's files are removed with it, so they are moved first.
pack_saved <- function(saved, packing) {
  path <- saved$state$path
  if (is.null(packing$seen[[path]])) {
    kept <- if (packing$strict) path else file.path(packing$folder, basename(path))
    if (kept != path) file.rename(path, kept)
    packing$seen[[path]] <- new_packed(saved$kind, kept, saved$record)
  }
  packing$seen[[path]]
}

pack_model <- function(model, where, packing) {
  path <- tempfile("model-", packing$folder, ".keras")
  record <- call_core("save_model", list(
    model = model, path = path, arg = where, loadable = packing$strict
  ), packing$call)
  record$formula <- formula_record(record$recipe$recipe$formula)
  new_packed("model", path, record)
}

pack_dataset <- function(data, where, packing) {
  path <- tempfile("rows-", packing$folder)
  options <- call_core("feeding_of", list(data = data$handle, arg = where), packing$call)
  gpu_dataset_save(data, path, verbose = FALSE)
  # What is shown of the dataset without opening it.
  record <- list(options = options, text = format(data), formula = formula_record(data$formula))
  new_packed("dataset", path, record)
}

new_packed <- function(kind, path, record) {
  structure(list(kind = kind, path = path, record = record), class = "gpu_packed")
}

# `open` loads a packed value, or makes an object that loads it later.
unpack <- function(x, folder, open, seen = new.env(parent = emptyenv())) {
  if (!inherits(x, "gpu_packed")) {
    return(walk(x, "", function(item, where) unpack(item, folder, open, seen)))
  }
  if (is.null(seen[[x$path]])) {
    own <- x$record$formula
    if (!is.null(own)) remember_formula(own$text, own$functions)
    seen[[x$path]] <- open(x)
  }
  seen[[x$path]]
}

# Applies `visit(item, name)` to the items of a list that are lists or Python objects; other values
# and all attributes stay as they are.
walk <- function(x, where, visit) {
  if (typeof(x) != "list" || isS4(x)) {
    return(x)
  }
  parts <- unclass(x)
  names <- rlang::names2(parts)
  for (i in seq_along(parts)) {
    item <- parts[[i]]
    if (typeof(item) == "list" || inherits(item, "python.builtin.object")) {
      name <- if (nzchar(names[i])) paste0("$", names[i]) else sprintf("[[%d]]", i)
      parts[[i]] <- visit(item, paste0(where, name))
    }
  }
  oldClass(parts) <- oldClass(x)
  parts
}

load_packed <- function(packed, call = caller_env(), needs = NULL) {
  record <- packed$record
  if (packed$kind == "model") {
    return(call_core("load_model", list(
      path = packed$path, recipe = record$recipe$portable, arg = record$name,
      custom_objects = needs$custom_objects, safe_mode = needs$safe_mode %||% TRUE
    ), call = call))
  }
  do.call(gpu_dataset, c(list(packed$path), Filter(Negate(is.null), record$options)))
}
