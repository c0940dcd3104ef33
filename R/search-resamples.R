# Resamples of gpu_tune(): folds by number, row numbers, and splits of the package rsample.

# As the core takes them: a number, or a list by name of row numbers.
as_resamples <- function(resamples, data, arg = caller_arg(resamples), call = caller_env()) {
  force(arg)
  if (inherits(resamples, "rset")) {
    return(as_rsample_folds(resamples, data, arg, call))
  }
  if (inherits(resamples, "rsplit")) {
    resamples <- list(splits = list(resamples), id = "Resample1")
    return(as_rsample_folds(resamples, data, arg, call))
  }
  check_no_na_options(rlang::set_names(list(resamples), arg), call)
  if (rlang::is_bare_list(resamples)) as_folds(resamples, arg, call) else resamples
}

# Folds with names of their own, or without any.
as_folds <- function(folds, arg, call) {
  if (!is.null(names(folds))) check_options(folds, arg, "a list of folds, all with a name", call)
  lapply(folds, as_fold)
}

# The rows that a fold holds out, or a list of `train` and `validation` rows.
as_fold <- function(fold) {
  if (is.list(fold)) lapply(fold, as_row_numbers) else as_row_numbers(fold)
}

as_row_numbers <- function(rows) {
  rows <- plain_number(rows)
  if (is.numeric(rows)) as.array(as.numeric(rows)) else rows
}

# rsample's splits know both parts: bootstraps repeat rows, and folds in time leave some out.
as_rsample_folds <- function(resamples, data, arg, call) {
  rlang::check_installed("rsample", "to read its splits.")
  splits <- resamples$splits
  rows <- nrow(splits[[1]]$data)
  if (!is.null(rows) && rows != dim(data)[1]) {
    abort_gpukeras(
      sprintf(
        "`%s` splits %s, and `data` has %s.", arg,
        count_of(rows, "rows"), count_of(dim(data)[1], "rows")
      ),
      code = "spec", hint = "Split the data frame that the dataset was made of.",
      arg = arg, call = call
    )
  }
  labels <- c(list(resamples$id), resamples[grepl("^id[0-9]+$", names(resamples))])
  names(splits) <- do.call(paste, c(lapply(labels, as.character), sep = "."))
  as_folds(lapply(splits, function(split) {
    list(
      train = as.integer(split, data = "analysis"),
      validation = as.integer(split, data = "assessment")
    )
  }), arg, call)
}

# Values that are compared only: for text and dates as they are, of bit64 as numbers.
plain_key <- function(x, arg = caller_arg(x), call = caller_env()) {
  force(arg)
  if (inherits(x, "POSIXlt")) x <- as.POSIXct(x)
  if (!is.atomic(x)) abort_spec(x, arg, "one value a row", call)
  if (inherits(x, "integer64")) exact_integer64(x, arg, call) else x
}

# Groups of rows as numbers; missing ones stay missing, and the core refuses them.
as_group_codes <- function(group, arg = caller_arg(group), call = caller_env()) {
  force(arg)
  if (is.null(group)) {
    return(NULL)
  }
  group <- plain_key(group, arg, call)
  codes <- match(group, unique(group))
  as.array(as.numeric(ifelse(is.na(group), NA, codes)))
}

# Times of rows as ranks: dates, times, numbers or ordered text.
as_times <- function(time, arg = caller_arg(time), call = caller_env()) {
  force(arg)
  if (is.null(time)) {
    return(NULL)
  }
  time <- plain_key(time, arg, call)
  as.array(as.numeric(rank(time, na.last = "keep", ties.method = "min")))
}
