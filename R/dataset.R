#' Rows to train on
#'
#' Prepares data once for training: checks and encodes it, casts it to float32 and reorders it to
#' rows, so that batches of shuffled rows reach the device without R. Data larger than memory is
#' read and encoded in pieces, once, and each block of batches is gathered from it. The dataset's
#' recipe is what `gpu_dataset()` learns from the training rows: levels, means, standard deviations.
#' `gpu_fit()` attaches the recipe to the model, and `gpu_predict()` applies it to new data.
#'
#' @param x Where the rows come from:
#'
#'   * a numeric matrix, or an array of up to five dimensions (rows first);
#'   * a named list of these and of data frames, one element for each of the model's inputs: see the
#'     section on several inputs and outputs;
#'   * a data frame with numeric, integer, logical, factor and character columns, dates and times,
#'     or with a column of paths of images: see the section on images of a data frame;
#'   * a formula such as `price ~ .`, with `data`: see the section on formulas; or a
#'     [recipe][gpukeras-tidymodels], with `data`;
#'   * a sparse matrix of the Matrix package;
#'   * the path of one or several files, a glob such as `"flights/*.parquet"`, a folder, or
#'     addresses in an object store: see the sections on files, on images and on object stores;
#'   * a connection to a database, a lazy table of dplyr, or an object of Arrow: see the section on
#'     databases and Arrow;
#'   * a function that returns one batch per call: see the section on functions;
#'   * a `tf.data.Dataset`, such as one from tfdatasets.
#' @param y Labels, one per row: a factor or character vector (classes), a logical or 0/1 vector
#'   (two classes), a numeric vector, a `survival::Surv()`, or a numeric or logical matrix or array
#'   with several numbers per row: masks of images, images, a class or one-hot classes for each time
#'   step. For several outputs, a named list of these with one element per output. For a data frame
#'   or files with columns, the name of the label column, or one name per output. For other `x`,
#'   also the path of a `.npy` file, which is read as a whole.
#' @param data A data frame, for a formula; or paths of files with columns, for a formula that only
#'   names columns.
#' @param ... Arguments of the other methods. Otherwise empty.
#' @param inputs For a data frame, a formula or tables in files: a named list of column names, one
#'   element for each of the model's inputs, such as
#'   `list(numbers = c("carat", "depth"), kind = "cut")`. Each feature column must be in exactly one
#'   element. `NULL` makes one input of all columns.
#' @param batch_size Rows per training step. `"auto"` is a power of two from 32 to 1024 that gives
#'   about 100 updates per epoch; for a function, the rows of its first batch.
#' @param shuffle Whether each epoch takes the training rows in a new random order. The shuffle
#'   covers all rows wherever rows have numbers; `print()` confirms that or says what is done
#'   instead.
#' @param cache Where to keep the rows. `"device"`: in the device's memory. `"host"`: in host
#'   memory, from which blocks are sent. `"disk"`: in a scratch file of the session
#'   ([gpu_dataset_save()] keeps rows for later sessions). `"auto"`: on the device if the rows fit
#'   into half of its free memory; rows that come from files or a function stay in memory up to 256
#'   MiB, and beyond that go to a scratch file, which the operating system keeps in memory while
#'   there is room. `TRUE` keeps the rows of a function or a pipeline, so that it runs for one epoch
#'   only; `FALSE` runs it again in each epoch, which is also what `"auto"` does with functions and
#'   pipelines.
#' @param validation Share of the rows to hold out for validation, drawn at random; the last ones in
#'   time of time series.
#' @param encode How to encode factors and texts: as `"onehot"` columns, as `"codes"` from 0, or as
#'   `"hash"`: 0/1 columns of `hash_bins` bins, for many levels, without unknown levels. A named
#'   vector such as `c(city = "hash")` sets it for some columns; the others are one-hot. `"none"`
#'   passes the columns of a data frame to the model unencoded: see the section on texts.
#' @param hash_bins Bins of a hashed column. Different levels may share one.
#' @param new_levels What to do with levels of factors and texts that training did not see:
#'   `"error"`, or `"own"` for zeros in all of the column's one-hot columns, or the code after the
#'   last level: an embedding of such codes needs `input_dim` = levels + 1, and is an error for a
#'   new level otherwise. [gpu_tabular()] embeds both as zeros.
#' @param text Names of text columns, which Keras' `TextVectorization` splits into words; or a list
#'   of `columns`, `max_tokens` (1000), `output` (`"tf_idf"`, `"multi_hot"`, `"count"`, or `"int"`
#'   for an embedding), `sequence_length`, `ngrams`, `standardize` and `split`. The vocabulary is
#'   learned from the training rows.
#' @param scale Whether to standardise numeric features by the mean and standard deviation of the
#'   training rows. The default is yes for columns, which have different units, and no for matrices
#'   and arrays. A sparse matrix is only divided by the standard deviation, not centred, so that its
#'   zeros stay zeros. Images are scaled to 0 to 1 instead of 0 to 255. A column that is the same in
#'   all training rows becomes 0.
#' @param na What to do with missing values (`NA` and `NaN`): `"error"` raises an error that names
#'   the column, `"drop"` drops rows with any, `"impute"` replaces them; see the section on missing
#'   values. `.npy` files and sparse matrices take `"error"` only.
#' @param augment For images (arrays of four dimensions too): a list of `flip` (`"horizontal"`,
#'   `"vertical"`, `"both"`), `rotation` (share of a full turn), `zoom`, `translation`, `crop`
#'   (height and width), `brightness`, `contrast`, `mixup` (its alpha). Augmentation runs on the
#'   device, with new random numbers in each epoch, on training rows only. With equal seeds, crops,
#'   moves and mixup are the same on TensorFlow and JAX; the random numbers of brightness, contrast
#'   and a flip alone differ between them.
#' @param map A Keras layer or model, or a function of a tensor, applied on the device to the
#'   features of a block of batches, in training and in prediction. It is traced once, so R is not
#'   called again.
#' @param drop_last Whether to drop the last batch of an epoch if it is short.
#' @param shard This worker's number, counted from 1, and the number of workers. Each worker trains
#'   its own share of the training rows; together they train all. `"workers"`: each worker of a
#'   [gpu_cluster()] reads only its part of the files; see the section on workers.
#' @param on_error What to do with a broken file or row: `"stop"` raises an error, `"skip"` leaves
#'   it out, and `print()` shows how many and the first one.
#' @param buffer Rows of the shuffle buffer for streamed rows (functions and pipelines).
#' @param weights Weights of the rows in the loss, which is the sum of the rows' weighted losses,
#'   divided by the number of rows, as in Keras; or `NULL`. For files with columns, the name of
#'   the weights column; for formulas also a column of `data`, as in `lm()`. For labels of several
#'   dimensions, an array with rows first: one weight for each time step or pixel, or a dimension of
#'   1 to use one weight for all of them. For several outputs, also a named list of these; an output
#'   that is not in it is not weighted.
#' @param class_weight `"balanced"` (rows / (classes * count)), or a numeric vector named after the
#'   levels. For integer labels, and for a column a class with a single 1 in each row (as of
#'   keras3's `to_categorical()`), `c("0" = 1, "3" = 5)`: a class that is not named weighs 1. It
#'   applies to training rows only.
#' @param recipe A [gpu_recipe()], or another `gpu_dataset` or trained model that has one. It is
#'   applied, and no new recipe is learned: use it for test data. It sets `encode`, `scale` and
#'   (unless `na` is `"drop"`) `na`; and `weights`, if training had them from columns of a formula's
#'   `data` and none are given here.
#' @param seed Seed of the split and the shuffles. The default draws it from R's generator, so
#'   `set.seed()` fixes it.
#' @param verbose Whether reading and encoding that take more than two seconds show a progress bar,
#'   where R's output is a terminal.
#' @return A `gpu_dataset`: the prepared rows and their plan, which `print()` shows with its reasons
#'   (`print(cost = TRUE)` measures the cost of each stage of the pipeline). The rows live in
#'   Python, so `saveRDS()` cannot save the object; [gpu_dataset_save()] writes the rows, and
#'   [gpu_recipe()] returns the recipe as an R value.
#' @section Rows without labels:
#' A model that computes its own loss takes rows without `y`: for example a variational autoencoder
#' or a pair of adversarial networks with a `train_step()`, or a model with layers that call
#' `add_loss()`. Give the rows as `gpu_dataset(x)` or `list(x)`, as a function that returns
#' `list(x)`, or as a `tf.data.Dataset` of `x`. As in Keras, `train_step()` gets `x` itself, or
#' `(x,)` if a function or pipeline returns that. If a loss of `compile()` needs labels and there
#' are none, an error says so before training starts.
#' @section Missing values:
#' `na = "drop"` drops rows with a missing feature or label, and their weights, before anything is
#' learned or held out for validation; `print()` shows how many. For such rows of new data,
#' [gpu_predict()] returns `NA` in their place, and [gpu_evaluate()] drops them and says so.
#'
#' `na = "impute"` replaces a missing number by the median of the training rows, a category by their
#' most frequent level (the first one on ties), and a logical by their more frequent value (`FALSE`
#' on ties). Each column with missing values in the training rows is followed by an indicator, a
#' feature named `<column>=NA` that is 1 where the value was missing and 0 elsewhere. Other columns
#' are imputed in new data too, without an indicator. Means and standard deviations come from the
#' values that are present. In an array, a column is a slice of its last dimension. A column without
#' any value in the training rows is an error, and so is a missing label: labels are never imputed.
#' Classes without a training row, such as unused levels, stay outputs of the model, with a warning.
#'
#' Infinite values are an error for every `na`.
#' @section Several inputs and outputs:
#' A model with several inputs takes a named list:
#' `gpu_dataset(list(image = pixels, table = cars), y)`. The elements are arrays, matrices, sparse
#' matrices, `.npy` files and data frames with the same rows; each is encoded separately.
#' Alternatively, `inputs` groups the columns of a data frame. A model with several outputs takes
#' `y` as a named list, `list(price = numbers, cut = factor)`. For a data frame, give the names of
#' the label columns, `y = c("price", "cut")`, or a formula, `list(price, cut) ~ .`;
#' `list(p = log(price), cut) ~ .` names the outputs. (`cbind(a, b) ~ .` is one output of two
#' numbers.)
#'
#' The names are those of the model's input layers and output layers (`keras_input(name = )`,
#' `layer_dense(name = )`), or of the dicts that the model was created from. Other names are an
#' error that lists both. A model of a custom class without such names takes unnamed lists in
#' [gpu_fit()], [gpu_evaluate()] and [gpu_predict()] and gets lists, as from Keras. The same holds
#' for a `tf.data` pipeline whose `x` or `y` is a tuple. An output without a loss needs no labels.
#' `weights` weigh a row in the losses of all outputs, or are a named list like `y`, with weights
#' for some or all outputs; `class_weight` and `mixup` need a single output, `map` a single input,
#' and `augment` one too, or the images of a data frame. [gpu_predict()] then takes such a list (or
#' a data frame, if columns were grouped) and returns a named list, one element per output.
#' [gpu_mlp()] makes a branch for each input and a head for each output.
#' @section Dates and times:
#' One date or time column of a data frame becomes several features:
#'
#' * A `Date`: the number of days since 1970-01-01, named as the column, and the sine and cosine of
#'   the day's position in the week and in the year: `<column>:weekday_sin`, `<column>:weekday_cos`,
#'   `<column>:yearday_sin`, `<column>:yearday_cos`. The week begins on Monday, the year on 1
#'   January; each year has its own 365 or 366 days.
#' * A `POSIXct` or `POSIXlt`: the same features, with the number of days since 1970-01-01 00:00 UTC
#'   including their fraction, and also `<column>:daytime_sin` and `<column>:daytime_cos`, which
#'   begin at midnight. Weekday, day and hour are in the column's time zone, or in the session's if
#'   it has none. The recipe stores the zone and converts new data to it.
#' * A `difftime`: a number in its units. The recipe stores the units and converts new data to them.
#'
#' The number of days is always standardised by the training rows, also with `scale = FALSE`: values
#' of some 20,000 would be useless to a network. The number of a `difftime` is treated like other
#' numbers. `na = "impute"` replaces a missing date by the median of the training rows; its sines
#' and cosines are 0, which favours no day. Labels cannot be dates or times.
#' @section Files and sparse matrices:
#' A `.npy` file holds one array of numbers, as `numpy.save()` writes it; its first dimension is the
#' rows. It may be larger than memory. `gpu_dataset()` reads it once, to find missing and infinite
#' values and to learn means and standard deviations. In each epoch, the rows of a block of batches
#' are then read through a memory map, a part of the file at a time. Arrays in Fortran order work
#' too, but slowly. Python objects are never loaded. Do not change the file: if it changes or
#' disappears, the next block is an error.
#'
#' A `Matrix::dgCMatrix`, or an object that converts to it, keeps only its stored values in memory.
#' They are passed to Python without their zeros, and each block of batches is expanded on its way
#' to the device. A model trained on a sparse matrix can also predict dense ones of the same width,
#' and the reverse.
#' @section Values that training rows do not have:
#' A model learns nothing of a column that is the same in all training rows, nor of a level that
#' none of them has. Where other rows, such as those for validation, have such values, a warning
#' (`gpukeras_warning_data`) names the column. Of a column that `scale` standardises, the other
#' values are 0 too: they do not count, as for `lm()`. What is not standardised stays as it is.
#'
#' @section Errors:
#' `gpukeras_error_data` for data that cannot be trained on (missing or infinite values, no rows,
#' lists, different lengths, a missing file); it names the argument or column. `gpukeras_error_spec`
#' for an invalid option.
#' @order 1
#' @examplesIf gpukeras:::can_run_examples()
#' gpu_dataset(mpg ~ ., data = mtcars, validation = 0.2)
#' gpu_dataset(as.matrix(iris[1:4]), iris$Species, batch_size = 32)
#' gpu_dataset(Ozone ~ ., data = airquality, na = "drop")
#' gpu_dataset(mpg ~ factor(cyl) * wt + poly(hp, 2) + offset(log(disp)), data = mtcars)
#' gpu_dataset(price ~ day, data.frame(price = 1:9, day = Sys.Date() - 1:9))
#' carbon <- data.frame(month = 1:468, ppm = as.numeric(datasets::co2))
#' gpu_dataset(carbon, y = "ppm", window = 24, horizon = 12, time = "month", validation = 0.2)
#' @export
gpu_dataset <- function(x, ...) {
  UseMethod("gpu_dataset")
}

#' @rdname gpu_dataset
#' @export
gpu_dataset.default <- function(x, y = NULL, ..., batch_size = "auto", shuffle = TRUE,
                                cache = "auto", validation = 0, encode = "onehot", hash_bins = 64,
                                new_levels = "error", text = NULL, scale = NULL, na = "error",
                                augment = NULL, map = NULL, drop_last = FALSE, shard = c(1, 1),
                                on_error = "stop", buffer = "auto", weights = NULL,
                                class_weight = NULL, recipe = NULL, seed = NULL, inputs = NULL,
                                verbose = TRUE) {
  check_no_dots(...)
  source <- as_source(x, y, recipe, scale)
  source$features$groups <- as_groups(inputs)
  options <- list(
    batch_size = batch_size, shuffle = shuffle, cache = cache, validation = validation,
    encode = named_list(encode), hash_bins = hash_bins,
    new_levels = new_levels, scale = scale %||% source$scale, na = na,
    drop_last = drop_last, shard = as_placed(shard, c("index", "workers")),
    on_error = on_error, buffer = buffer,
    # A saved folder has its own seed.
    seed = seed %||% if (!identical(source$features$kind, "saved")) draw_seed()
  )
  stage_rows(
    source, options,
    weights = weights, class_weight = class_weight, recipe = check_prepared(recipe, source),
    augment = as_augment(augment), map = map, text = as_text(text), verbose = verbose
  )
}

# What every method of gpu_dataset() passes to the default one: features and labels as arguments of
# the core, the default of `scale`, and the argument's name for messages.
new_source <- function(features, labels = NULL, scale = FALSE, formula = "", arg = "x") {
  structure(
    list(features = features, labels = labels, scale = scale, formula = formula, arg = arg),
    class = "gpu_source"
  )
}

as_source <- function(x, y, recipe, scale = NULL, call = caller_env()) {
  if (inherits(x, "gpu_source")) {
    return(x)
  }
  features <- as_features(x, "x", call, zones = zones_of(recipe), scale = scale)
  new_source(features, if (!is.null(y)) as_labels(y, "y", call), scale = is.data.frame(x))
}

# Makes the dataset in one call of the core.
stage_rows <- function(source, options, weights = NULL, class_weight = NULL, recipe = NULL,
                       augment = NULL, map = NULL, text = NULL, verbose = TRUE,
                       call = caller_env()) {
  record <- call_core("dataset", list(
    features = source$features,
    options = check_no_na_options(options, call),
    labels = source$labels,
    weights = if (!is.null(weights)) as_weights(weights, call),
    class_weight = as_class_weight(class_weight, call),
    recipe_of = as_recipe_source(recipe, call),
    formula = source$formula,
    arg = source$arg,
    augment = augment,
    map = map,
    text = text,
    on_event = call_listener(verbose, call = call)
  ), call = call)
  warn_notes(new_result(record, "gpu_dataset"))
}

# Warns about unexpected changes of the data, such as numbers that float32 rounds.
warn_notes <- function(data) {
  for (note in data$notes) warn_gpukeras(note, "data")
  data
}

# A named vector as a list, which becomes a dict; Python objects and others as they are.
named_list <- function(x) {
  if (is.null(names(x)) || is_python(x)) x else as.list(plain_number(x))
}

# Text columns: their names, or a list of options with them.
as_text <- function(text, call = caller_env()) {
  if (is.character(text)) {
    return(list(columns = as.list(unname(text))))
  }
  check_options(text, "text", "names of columns, or a list of options by name", call)
}

# The options of `augment`; sizes and ranges may have names.
as_augment <- function(augment, call = caller_env()) {
  augment <- check_options(named_list(augment), "augment", "a list of options by name", call)
  places <- list(crop = c("height", "width"), value_range = c("low", "high"))
  for (name in intersect(names(places), names(augment))) {
    augment[[name]] <- as_placed(augment[[name]], places[[name]], name, call)
  }
  augment
}

# Weights as an argument of the core: an array, or one for each of several outputs.
as_weights <- function(weights, call, arg = "weights") {
  if (arg == "weights" && rlang::is_bare_list(weights)) {
    return(as_output_weights(weights, call))
  }
  weights <- plain_number(weights, arg, call)
  lack <- explain_weights(weights)
  if (!is.null(lack)) {
    abort_gpukeras(
      sprintf("`%s` must be %s.", arg, lack),
      code = "data", arg = arg, call = call
    )
  }
  storage.mode(weights) <- "double"
  as.array(weights)
}

# What weights must be but are not, or NULL.
explain_weights <- function(weights) {
  if (!is.numeric(weights)) {
    paste0("numbers, not ", describe(weights))
  } else if (anyNA(weights)) {
    total <- format_count(length(weights))
    sprintf("numbers without NA, and %s of %s are NA", format_count(sum(is.na(weights))), total)
  }
}

as_class_weight <- function(class_weight, call) {
  class_weight <- plain_number(class_weight, call = call)
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

# The source of an encoding: a dataset's handle, a recipe's text, or the model trained with it.
as_recipe_source <- function(recipe, call) {
  recipe <- resolve_saved(recipe)
  if (is.null(recipe)) {
    return(NULL)
  }
  if (inherits(recipe, "gpu_dataset")) {
    return(check_alive(recipe, call)$handle)
  }
  if (inherits(recipe, "gpu_recipe")) {
    return(recipe_text(recipe, call))
  }
  if (is_dead(recipe)) {
    abort_spec(recipe, "recipe", "a gpu_recipe, a gpu_dataset or a trained model", call)
  }
  recipe
}

# The time zones recorded in an encoding, by column.
zones_of <- function(recipe, call = caller_env()) recorded_zones(recipe_record(recipe, call))

# A seed from R's generator, so that set.seed() makes training repeatable.
draw_seed <- function() sample.int(.Machine$integer.max, 1L)
