# gpu_cache(): encoded rows, and programs, that lie on disk between sessions.

#' What is kept on disk between sessions
#'
#' `gpu_dataset(cache = "disk")` keeps the encoded rows of files on disk. A later call with the same
#' files and options, in this session or another one, neither reads the files nor learns from them
#' again. `gpu_cache()` lists what is kept, and removes it. So it does with the programs that XLA
#' has compiled, which are kept too (see the section Engines of [gpu_fit()]).
#'
#' @section What is kept:
#' The rows of tables, TFRecord and `.npy` files, of folders of images, and of data frames with a
#' column of images: encoded, with labels, weights, the validation split and the recipe, in the
#' format of [gpu_dataset_save()]. An entry belongs to the paths, sizes and times of its files (in
#' nanoseconds), to the options that change the rows (`y`, `columns`, `scale`, `encode`, `na`,
#' `validation` and so on), to what R holds beside the files (labels, further columns), and to the
#' versions of gpukeras and of the packages that read the files. If any of it changes, the files are
#' read anew and get a new entry. With `validation`, the split depends on the `seed`, which is drawn
#' from R's generator: give one, or call `set.seed()` before, so that another session finds the
#' entry.
#'
#' Rows without files (data frames and matrices of R, functions, databases and streams, whose rows
#' may be others next time) are kept in a scratch file of the session, and `print()` of the dataset
#' says so. It also says whether rows came from the cache.
#'
#' @section Where:
#' In `tools::R_user_dir("gpukeras", "cache")`, in the folder `data`. The environment variable
#' `GPUKERAS_DATA_CACHE` names another folder for it, or is `"off"`. Only you can open `data` (mode
#' 700); one that other users can open is not used. **The rows of your data stay there after the
#' session, unencrypted, until they are removed**: for data that must not lie on this disk, use
#' another `cache`, or `"off"`.
#'
#' The entries take at most 2 GiB, or as many GiB as the environment variable
#' `GPUKERAS_DATA_CACHE_GIB` says; rows that are more are not kept, and `print()` of the dataset
#' says so. Beyond that, those that were used least recently are removed, but none that a dataset
#' reads. Several sessions may use the cache at once. Checksums are verified
#' whenever an entry is opened; a damaged one is made anew, with a warning. A first call takes
#' longer than without the cache, because it writes the rows and reads them back to verify them.
#' @param clean Whether to remove all entries first, but those that a dataset of this or another
#'   session reads, and all programs of XLA.
#' @return A `gpu_cache`: a data frame with one row per entry, the last used first, and the columns
#'   `kind`, `source` (the name of the file or folder, without its path), `rows`, `bytes`, `used`
#'   (the time of the last use) and `in_use`. Its attributes `folder` and `limit_bytes` are the
#'   folder and the bound, `program_bytes` the bytes of XLA's programs.
#' @section Errors:
#' `gpukeras_error_spec` if `GPUKERAS_DATA_CACHE_GIB` is no number.
#' @seealso [gpu_dataset_save()] writes rows to a folder of your choice, where they stay.
#' @examplesIf gpukeras:::can_run_examples()
#' Sys.setenv(GPUKERAS_DATA_CACHE = tempfile("cache-"))
#' path <- tempfile(fileext = ".csv")
#' write.csv(mtcars, path, row.names = FALSE)
#' gpu_dataset(path, y = "mpg", cache = "disk") # reads the file
#' gpu_dataset(path, y = "mpg", cache = "disk") # reads the cache
#' gpu_cache()
#' gpu_cache(clean = TRUE)
#' Sys.unsetenv("GPUKERAS_DATA_CACHE")
#' @export
gpu_cache <- function(clean = FALSE) {
  check_flag(clean)
  new_gpu_cache(call_core("data_cache", list(clean = clean)))
}

new_gpu_cache <- function(record) {
  columns <- list(kind = "", source = "", rows = 0, bytes = 0, used = 0, in_use = NA)
  frame <- typed_frame(record$entries, columns)
  frame$used <- as.POSIXct(frame$used, origin = "1970-01-01")
  facts <- c("folder", "limit_bytes", "reason", "program_bytes")
  attributes(frame)[facts] <- record[facts]
  new_result_frame(frame, "gpu_cache")
}

#' @rdname gpu_cache
#' @param x A `gpu_cache`.
#' @param ... Not used.
#' @export
format.gpu_cache <- function(x, ...) {
  reason <- attr(x, "reason") %||% ""
  if (!all(c("kind", "source", "rows", "bytes", "used", "in_use") %in% names(x))) {
    return(format_frame(x)) # some of its columns
  }
  head <- sprintf(
    "<gpu_cache> %s, %s of %s", count_of(nrow(x), "entries"),
    format_bytes(sum(x$bytes)), format_bytes(attr(x, "limit_bytes"))
  )
  cells <- list(
    kind = x$kind, source = shorten_middle(x$source), rows = vapply(x$rows, format_count, ""),
    size = format_bytes(x$bytes), "last used" = format(x$used, "%Y-%m-%d %H:%M"),
    " " = ifelse(x$in_use, "in use", "")
  )
  c(
    head,
    if (nzchar(attr(x, "folder") %||% "")) paste("folder:  ", attr(x, "folder")),
    if (nzchar(reason)) paste0("No rows are kept: ", reason, "."),
    if (attr(x, "program_bytes") > 0) {
      paste("programs:", format_bytes(attr(x, "program_bytes")), "that XLA compiled")
    },
    if (nrow(x) > 0) format_columns(cells, c("left", "left", "right", "right", "left", "left"))
  )
}
