#' Rows that can be trained on
#'
#' Stages data once for training: checked, encoded, cast to float32 and reordered to rows, so that
#' batches of shuffled rows reach the device without R. A sparse matrix and a file stay as they are,
#' and a block of batches is made of them at a time. What is learned on the way (levels, means,
#' standard deviations; from the training rows only) is the dataset's recipe; `gpu_fit()` ties it to
#' the model, and `gpu_predict()` applies it to new data.
#'
#' @param x A numeric matrix or an array of up to five dimensions (rows first), a data frame, or a
#'   formula such as `price ~ .`. Data frames may have numeric, integer, logical, factor and
#'   character columns, dates and times. Or a sparse matrix of the Matrix package, or the path of a
#'   `.npy` file: see the section below.
#' @param y Labels, one a row: a factor or character vector (classes), a logical or 0/1 vector (two
#'   classes), a numeric vector, or a numeric matrix (several outputs). For a data frame also the
#'   name of its label column; for other `x` also the path of a `.npy` file, which is read as a
#'   whole.
#' @param data A data frame, for a formula.
#' @param ... Not used; must be empty.
#' @param batch_size Rows a training step. `"auto"` is a power of two that gives about 100 updates
#'   an epoch, within 32 and 1024.
#' @param shuffle Whether each epoch takes the training rows in a new random order (a true shuffle).
#' @param cache Where rows live: `"device"` (in the device's memory), `"host"` (gathered in host
#'   memory, sent in blocks), or `"auto"`: on the device when they fit into half of its free memory.
#'   With `"auto"`, rows of a file or a sparse matrix are made a block at a time; the other two load
#'   or expand all of them first.
#' @param validation Share of the rows, drawn at random, that is kept for validation.
#' @param encode Factors and texts as `"onehot"` columns or as `"codes"` from 0.
#' @param scale Whether numeric features are standardised by mean and standard deviation of the
#'   training rows. By default yes for data frames, whose columns have different units, and no for
#'   matrices and arrays, which are taken as they are. A sparse matrix is only divided by the
#'   standard deviation, not centred: its zeros stay zeros.
#' @param na What happens to missing values (`NA` and `NaN`): `"error"` names the column, `"drop"`
#'   leaves out rows that have any, `"impute"` replaces them; see the section on missing values.
#'   Files and sparse matrices take `"error"` only.
#' @param weights Weights of the rows in the loss, or `NULL`.
#' @param class_weight `"balanced"` (rows / (classes * count)), or a numeric vector named after the
#'   levels; applies to training rows only.
#' @param recipe Another `gpu_dataset` whose recipe is applied instead of learning a new one: for
#'   test data. `encode`, `scale` and (unless it is `"drop"`) `na` are then those of the recipe.
#' @param seed Seed of the split and the shuffles; drawn from R's generator by default, so
#'   `set.seed()` fixes it.
#' @return A `gpu_dataset`: the staged rows and their plan, which `print()` shows with its reasons.
#'   The rows live in Python: the object cannot be saved with `saveRDS()`.
#' @section Missing values:
#' With `na = "drop"`, rows with a missing feature or label are left out, with their weights, before
#' anything is learned or set apart for validation; `print()` says how many. [gpu_predict()] gives
#' `NA` for such rows of new data, in their place, and [gpu_evaluate()] leaves them out and says so.
#'
#' With `na = "impute"`, a number becomes the median of the training rows, a category their most
#' frequent level (the first one on ties), a logical their more frequent value (`FALSE` on ties).
#' Each column that lacks values in the training rows is followed by an indicator, a feature named
#' `<column>=NA` that is 1 where the value was missing and else 0. Columns that lack none there are
#' imputed in new data all the same, without an indicator. Means and standard deviations are those
#' of the values that are there. In an array, a column is a slice of its last dimension. A column
#' without any value in the training rows is an error, and so is a missing label: labels are never
#' imputed.
#'
#' Infinite values are an error whatever `na` is.
#' @section Dates and times:
#' In data frames, one column becomes several features:
#'
#' * A `Date`: the number of days since 1970-01-01, named as the column, and the sine and cosine of
#'   the day's place in the week and in the year: `<column>:weekday_sin`, `<column>:weekday_cos`,
#'   `<column>:yearday_sin`, `<column>:yearday_cos`. The week begins on Monday, the year on
#'   1 January; the year has its own 365 or 366 days.
#' * A `POSIXct` or `POSIXlt`: the same, where the number is the days since 1970-01-01 00:00 UTC
#'   with their fraction, and besides `<column>:daytime_sin` and `<column>:daytime_cos`, which begin
#'   at midnight. Weekday, day and hour are those of the column's time zone, or of the session's if
#'   it has none. The zone belongs to the recipe: new data in another zone is converted to it.
#' * A `difftime`: a number in its units. The units belong to the recipe: new data in other units is
#'   converted to them.
#'
#' The number of days is always standardised by the training rows, also with `scale = FALSE`: as it
#' is, some 20,000, no network could use it. The number of a `difftime` is treated as other numbers
#' are. `na = "impute"` replaces a missing date by the median of the training rows; its sines and
#' cosines are 0, which is no day more than another. Labels cannot be dates or times.
#' @section Files and sparse matrices:
#' A `.npy` file holds one array of numbers, such as `numpy.save()` writes; its first dimension is
#' the rows. It may be larger than memory. It is read once when the dataset is made, to find missing
#' and infinite values and to learn means and deviations. In each epoch the rows of a block of
#' batches are then read through a memory map, a part of the file at a time. Arrays in Fortran order
#' are read too, slowly. Python objects are never loaded. The file must stay as it is: if it changes
#' or vanishes, the next block is an error.
#'
#' A `Matrix::dgCMatrix`, or what converts to it, keeps only its stored values in memory. They cross
#' to Python without their zeros, and each block of batches is expanded on its way to the device.
#' A model trained on a sparse matrix also predicts dense ones of the same width, and the reverse.
#' @section Errors:
#' `gpukeras_error_data` for data that cannot be trained on (missing or infinite values, no rows,
#' lists, different lengths, a file that is not there); it names the argument or column.
#' `gpukeras_error_spec` for a bad option.
#' @examplesIf interactive()
#' gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' gpu_dataset(as.matrix(iris[1:4]), iris$Species, batch_size = 32)
#' gpu_dataset(Ozone ~ ., data = airquality, na = "drop")
#' gpu_dataset(price ~ day, data.frame(price = 1:9, day = Sys.Date() - 1:9))
#' @export
gpu_dataset <- function(x, ...) {
  UseMethod("gpu_dataset")
}

#' @rdname gpu_dataset
#' @export
gpu_dataset.default <- function(x, y = NULL, ..., batch_size = "auto", shuffle = TRUE,
                                cache = "auto", validation = 0, encode = "onehot", scale = NULL,
                                na = "error", weights = NULL, class_weight = NULL, recipe = NULL,
                                seed = NULL) {
  check_no_dots(...)
  options <- list(
    batch_size = batch_size, shuffle = shuffle, cache = cache, validation = validation,
    encode = encode, scale = scale %||% is.data.frame(x), na = na, seed = seed %||% draw_seed()
  )
  stage_rows(
    as_features(x, "x", zones = zones_of(recipe)), if (!is.null(y)) as_labels(y, "y"),
    options = options, weights = weights, class_weight = class_weight, recipe = recipe
  )
}

#' @rdname gpu_dataset
#' @export
gpu_dataset.data.frame <- function(x, y = NULL, ...) {
  check_names(x)
  if (rlang::is_string(y)) {
    check_column(y, x)
    features <- lapply(setdiff(names(x), y), as.name)
    return(gpu_dataset(sum_formula(as.name(y), features, caller_env()), data = x, ...))
  }
  gpu_dataset.default(x, y, ...)
}

#' @rdname gpu_dataset
#' @export
gpu_dataset.formula <- function(x, data, ..., batch_size = "auto", shuffle = TRUE, cache = "auto",
                                validation = 0, encode = "onehot", scale = TRUE, na = "error",
                                weights = NULL, class_weight = NULL, recipe = NULL, seed = NULL) {
  check_no_dots(...)
  check_data_frame(data)
  parts <- split_formula(x, data, env = environment(x))
  options <- list(
    batch_size = batch_size, shuffle = shuffle, cache = cache, validation = validation,
    encode = encode, scale = scale, na = na, seed = seed %||% draw_seed()
  )
  features <- as_features(parts$x, "data", zones = zones_of(recipe))
  stage_rows(
    features, if (!is.null(parts$y)) as_labels(parts$y, "y"),
    options = options, weights = weights, class_weight = class_weight, recipe = recipe,
    formula = parts$formula, arg = "data"
  )
}

# Crosses the border once with everything.
stage_rows <- function(features, labels, options, weights = NULL, class_weight = NULL,
                       recipe = NULL, formula = "", arg = "x", call = caller_env()) {
  record <- call_core("dataset", list(
    features = features,
    options = check_no_na_options(options, call),
    labels = labels,
    weights = if (!is.null(weights)) as_weights(weights, call),
    class_weight = as_class_weight(class_weight, call),
    recipe_of = as_recipe_source(recipe, call),
    formula = formula,
    arg = arg
  ), call = call)
  new_gpu_dataset(record)
}

as_weights <- function(weights, call) {
  if (!is.numeric(weights) || anyNA(weights)) {
    abort_gpukeras(
      sprintf("`weights` must be numbers without NA, not %s.", describe(weights)),
      code = "data", arg = "weights", call = call
    )
  }
  as.array(as.double(weights))
}

as_class_weight <- function(class_weight, call) {
  if (!is.numeric(class_weight)) {
    return(class_weight)
  }
  twice <- names(class_weight)[duplicated(names(class_weight))]
  if (length(twice) > 0) {
    abort_gpukeras(
      sprintf("`class_weight` names the level `%s` more than once.", twice[1]),
      code = "spec", arg = "class_weight", call = call
    )
  }
  as.list(class_weight)
}

# Where an encoding comes from: a dataset's handle, or the model that was trained with it.
as_recipe_source <- function(recipe, call) {
  if (is.null(recipe)) {
    return(NULL)
  }
  if (inherits(recipe, "gpu_dataset")) {
    return(check_alive(recipe, call)$handle)
  }
  if (is_dead(recipe)) {
    abort_spec(recipe, "recipe", "a gpu_dataset", call)
  }
  recipe
}

# The time zones of an encoding that is to be applied, by column.
zones_of <- function(recipe) {
  if (inherits(recipe, "gpu_dataset")) recorded_zones(recipe) else list()
}

# Rows given as a dataset, a data frame, a matrix, or list(x, y), encoded as those that trained
# `source`, a dataset's handle or a model, whose recipe has `formula` and `columns`.
as_dataset <- function(data, source, recipe, y = NULL, arg = "data", env = caller_env(2),
                       call = caller_env()) {
  if (inherits(data, "gpu_dataset")) {
    return(check_alive(data, call))
  }
  formula <- recipe$formula %||% ""
  if (rlang::is_bare_list(data, n = 2)) {
    y <- data[[2]]
    data <- data[[1]]
  }
  if (is.data.frame(data) && nzchar(formula)) {
    parts <- split_formula(stats::as.formula(formula, env = env), data, env, call)
    data <- parts$x
    y <- parts$y
  }
  features <- as_features(known_columns(data, recipe), arg, call, recorded_zones(recipe))
  tell_dropped(stage_rows(
    features, if (!is.null(y)) as_labels(y, "y", call),
    options = list(shuffle = FALSE), recipe = source, formula = formula, arg = arg, call = call
  ))
}

# A dataset that nobody prints still says how many rows it left out.
tell_dropped <- function(data) {
  if (data$plan$dropped_rows > 0) {
    cli::cli_inform(c(i = data$plan$na_reason))
  }
  data
}

# Only the columns that the recipe names: others may hold anything.
known_columns <- function(data, recipe) {
  if (!is.data.frame(data) || length(recipe$columns) == 0) {
    return(data)
  }
  data[intersect(vapply(recipe$columns, `[[`, "", "name"), names(data))]
}

new_gpu_dataset <- function(record) {
  structure(record, class = "gpu_dataset")
}

#' @export
format.gpu_dataset <- function(x, ...) {
  plan <- x$plan
  c(
    sprintf(
      "<gpu_dataset> %s training and %s validation rows",
      count_text(plan$rows), count_text(plan$validation_rows)
    ),
    paste("features:", format_features(x)),
    paste("labels:  ", format_label(x$label)),
    sprintf(
      "batches:  %s rows, %s an epoch, the last of %s (%s)",
      count_text(plan$batch_size), count_text(plan$steps_per_epoch),
      count_text(plan$last_batch), plan$batch_reason
    ),
    paste("shuffle: ", if (plan$shuffle == "rows") "all rows, anew each epoch" else "none"),
    sprintf("rows:     %s (%s)", plan$mode, plan$reason),
    paste("missing: ", plan$na_reason),
    if (isTRUE(x$weighted)) "weights:  a weight for each row"
  )
}

#' @export
print.gpu_dataset <- function(x, ...) {
  cli::cat_line(format(x, ...))
  invisible(x)
}

format_features <- function(x) {
  shape <- paste(unlist(x$shape), collapse = " x ")
  if (length(x$columns) == 0) {
    return(paste0(shape, " a row, ", format_scaling(x)))
  }
  kinds <- vapply(x$columns, `[[`, "", "kind")
  count <- function(...) sum(kinds %in% c(...))
  times <- count("date", "time")
  sprintf(
    "%s from %d numbers and %d categories%s", shape, count("number", "duration"),
    count("category"), if (times > 0) sprintf(", and %d dates or times", times) else ""
  )
}

format_scaling <- function(x) {
  if (!isTRUE(x$scaled)) {
    "as they are"
  } else if (isFALSE(x$centred)) {
    "divided by their standard deviation, not centred: zeros stay zeros"
  } else {
    "standardised"
  }
}

format_label <- function(label) {
  switch(label$kind %||% "none",
    none = "none",
    number = sprintf("numbers from %s to %s", signif(label$minimum, 4), signif(label$maximum, 4)),
    binary = "two classes, 0 and 1",
    class = sprintf("%d classes (%s)", label$units, shorten(unlist(label$levels))),
    matrix = sprintf("%d numbers a row", label$units)
  )
}

shorten <- function(x, most = 5) {
  if (length(x) > most) x <- c(utils::head(x, most), "...")
  paste(x, collapse = ", ")
}

count_text <- function(x) format(x, big.mark = ",", scientific = FALSE, trim = TRUE)

# A seed from R's own generator: set.seed() makes everything that follows repeatable.
draw_seed <- function() sample.int(.Machine$integer.max, 1L)
