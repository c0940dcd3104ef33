# What crosses between R processes: R values as they are, models and datasets by files. pack() puts
# the name of a file in place of each, unpack() what the file holds.

# Where files are put. `strict` refuses models that could not be loaded again; else they would be
# lost. `seen` keeps a model that is there twice one model.
new_box <- function(folder, strict, call = caller_env()) {
  list(folder = folder, strict = strict, seen = new.env(parent = emptyenv()), call = call)
}

# `where` is the user's name for the value, for messages.
pack <- function(x, where, box) {
  if (inherits(x, "gpu_saved")) {
    live <- x$state$live
    return(if (is.null(live)) pack_saved(x, box) else pack(live, where, box))
  }
  if (inherits(x, "gpu_dataset")) {
    return(pack_once(check_alive(x, box$call)$handle, pack_dataset, x, where, box))
  }
  if (inherits(x, "python.builtin.object")) {
    check_model(x, where, box$call)
    return(pack_once(x, pack_model, x, where, box))
  }
  walk(x, where, function(item, where) pack(item, where, box))
}

pack_once <- function(handle, pack_one, x, where, box) {
  key <- python_key(handle)
  if (is.null(box$seen[[key]])) {
    box$seen[[key]] <- pack_one(x, where, box)
  }
  box$seen[[key]]
}

# A file of this session's. One of a child's goes with the child, unless it is moved.
pack_saved <- function(saved, box) {
  path <- saved$state$path
  if (is.null(box$seen[[path]])) {
    kept <- if (box$strict) path else file.path(box$folder, basename(path))
    if (kept != path) file.rename(path, kept)
    box$seen[[path]] <- new_packed(saved$kind, kept, saved$record)
  }
  box$seen[[path]]
}

pack_model <- function(model, where, box) {
  path <- tempfile("model-", box$folder, ".keras")
  record <- call_core("save_model", list(
    model = model, path = path, arg = where, loadable = box$strict
  ), box$call)
  record$formula <- hold_formula(record$recipe$recipe$formula)
  new_packed("model", path, record)
}

pack_dataset <- function(data, where, box) {
  path <- tempfile("rows-", box$folder)
  options <- call_core("feeding_of", list(data = data$handle, arg = where), box$call)
  gpu_dataset_save(data, path, verbose = FALSE)
  # What is known of the dataset without opening it.
  record <- list(options = options, text = format(data), formula = hold_formula(data$formula))
  new_packed("dataset", path, record)
}

new_packed <- function(kind, path, record) {
  structure(list(kind = kind, path = path, record = record), class = "gpu_packed")
}

# `open` takes what pack() made and gives what stands for it in this process.
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

# A list with `visit(item, name)` for each of its items that holds something of ours, or may; other
# values, and all attributes, as they are.
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
