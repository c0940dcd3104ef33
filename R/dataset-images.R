# Images from a data frame: a column of paths, beside labels and further columns.

#' @param image For a data frame, or a formula with a data frame as `data`: the name of the column
#'   with the paths of image files. See the section on images of a data frame, also for `classes`.
#' @param classes For labels that are mask images: the values of their pixels for each class, such
#'   as `c(0, 255)`. `NULL` takes 0 and 255 as two classes if there are no other values, and
#'   otherwise all numbers from 0 to the highest.
#' @section Images of a data frame:
#' `gpu_dataset(d, y = "count", image = "path")` takes the image of each row from the file that the
#' column `path` names, and its label from the column `count`. Relative paths start at the working
#' directory; `d$path <- file.path(folder, d$path)` puts a folder before them. `image_size`,
#' `color`, `cache`, `augment` and `scale` apply as to a folder, and images of different sizes are
#' resized alike. [gpu_predict()] and [gpu_evaluate()] take a data frame with the same columns.
#'
#' Other columns are not used unless you name them, in `columns` or in a formula:
#' `gpu_dataset(count ~ path + age + site, data = d, image = "path")`, or `count ~ .` for all. They
#' are a second input: the model has the inputs `"image"` and `"columns"`
#' (`keras_input(name = "image")`). `inputs` gives other names, or more inputs:
#' `inputs = list(photo = "path", person = "age", place = "site")`. The columns are encoded as
#' those of other data frames and standardised, unless `scale = FALSE`; images are scaled to 0 to 1
#' by `scale = TRUE` only. `augment` varies the images alone, except for `mixup`.
#'
#' If `y` names a character column of paths of images, the labels are these images: masks, for
#' segmentation. The value of each pixel is its class. Masks are resized without mixing classes (by
#' the nearest pixel), and `augment` crops, flips, rotates, zooms and moves a mask as its image;
#' brightness and contrast do not change it. A mask must have the size of its image and one
#' channel; of a palette PNG the indices of the palette are read, not its colours. The model gives
#' (height, width, classes) for `"sparse_categorical_crossentropy"`, or (height, width, 1) for
#' `"binary_crossentropy"`; `gpu_predict(type = "class")` returns the values of the pixels. A value
#' outside of the classes of training is an error; a loss with `ignore_class = 255` leaves such
#' pixels out in training. Masks are kept as bytes, with `cache = FALSE` too.
#'
#' Errors name the column and the row. `na = "drop"` leaves out rows without a path.
#' @section Depth and channels of images:
#' `color` chooses 1, 3 or 4 channels, whatever the file has. Numbers of 16 bits in PNG and TIFF
#' files are divided by 257, so that they too are from 0 to 255, with fractions. If one of the files
#' has 16 bits, the rows of all are kept as floats, which need four times the memory of bytes. A
#' 16-bit file of which only the lower bits are used, such as 12 bits of a camera, is dark: divide
#' by the highest value in the model, by `layer_rescaling()`.
#'
#' TIFF files need the Python packages tifffile and, if they are compressed, imagecodecs; their
#' first page is read. Their numbers must be unsigned, of 1, 8 or 16 bits, in up to 4 channels.
#' @param columns For a data frame of images: names of the columns of a second input; `NULL` takes
#'   none. For tables in files: names of the feature columns; `NULL` takes all columns except the
#'   label and the weights. Other columns are not read.
#' @name gpu_dataset
NULL

# A data frame of images as a dataset: features and labels of a formula, one of which is the image.
image_dataset <- function(parts, image, classes = NULL, ..., image_size = NULL, color = NULL,
                          interpolation = NULL, crop_to_aspect_ratio = NULL, inputs = NULL,
                          scale = NULL, recipe = NULL, arg = "x", call = caller_env()) {
  options <- drop_null(list(
    image_size = as_placed(image_size, c("height", "width")), color = color,
    interpolation = interpolation, crop_to_aspect_ratio = crop_to_aspect_ratio
  ))
  groups <- if (is.null(recipe)) {
    image_groups(inputs, image, names(parts$x), call)
  } else {
    recipe_groups(recipe_record(recipe, call), image)
  }
  zones <- zones_of(recipe)
  features <- as_image_features(parts$x, image, groups, arg, call, zones, options, scale)
  labels <- as_image_labels(parts$y, parts$label %||% "y", classes, call)
  source <- new_source(features, labels, formula = parts$formula, arg = arg)
  gpu_dataset.default(source, ..., scale = scale, recipe = recipe)
}

# A data frame of images: of the columns that are named, or those of the recipe.
image_frame <- function(x, y, image, columns, classes, record, ..., weights = NULL, inputs = NULL,
                        call = caller_env()) {
  known <- image_column(record)
  if (!is.null(known)) {
    parts <- split_new_rows(record$formula, x, call)
    parts$formula <- record$formula
    weights <- weights %||% parts$weights()
    return(image_dataset(
      parts, known, classes, ...,
      weights = weights, inputs = inputs, call = call
    ))
  }
  if (is.null(image)) {
    arg <- if (is.null(columns)) "classes" else "columns"
    abort_gpukeras(
      sprintf("`%s` needs `image`, the column with the paths of images.", arg),
      code = "spec", arg = arg, call = call
    )
  }
  columns <- columns %||% unlist(inputs, use.names = FALSE)
  check_image_names(x, y, image, columns, call)
  label <- if (!is.null(y)) label_of(y)
  features <- lapply(c(image, setdiff(columns, image)), as.name)
  parts <- split_formula(sum_formula(label, features, caller_env()), x, caller_env(), call)
  image_dataset(parts, image, classes, ..., weights = weights, inputs = inputs, call = call)
}

check_image_names <- function(x, y, image, columns, call) {
  if (!is.null(y) && !is.character(y) || length(y) >= max(2, nrow(x))) {
    abort_spec(y, "y", "the name of the column of labels, beside `image`", call)
  }
  used <- list(y = y, image = image, columns = columns)
  for (arg in names(used)) for (column in used[[arg]]) check_column(column, x, arg, call)
  check_image_column(image, names(x), call)
}

# The column of images that a recipe names, of the rows or of one of several inputs; NULL for none.
image_column <- function(recipe) {
  own <- c(recipe$path_column, unlist(lapply(recipe$inputs, function(part) {
    part$recipe$path_column
  })))
  own <- own[nzchar(own)]
  if (length(own) > 0) own[[1]]
}

# The columns of each input by name; NULL for images alone.
image_groups <- function(inputs, image, names, call) {
  others <- setdiff(names, image)
  if (!is.null(inputs)) {
    as_groups(inputs, call) # checks
    return(check_image_groups(inputs, image, names, call))
  }
  if (length(others) > 0) list(image = image, columns = others)
}

check_image_groups <- function(inputs, image, names, call) {
  grouped <- unlist(inputs, use.names = FALSE)
  apart <- Filter(function(columns) image %in% columns && length(columns) > 1, inputs)
  problem <- if (length(setdiff(grouped, names)) > 0) {
    sprintf("names the column `%s`, which is no feature", setdiff(grouped, names)[1])
  } else if (anyDuplicated(grouped)) {
    sprintf("names the column `%s` more than once", grouped[duplicated(grouped)][1])
  } else if (length(setdiff(names, grouped)) > 0) {
    sprintf("lacks the feature `%s`", setdiff(names, grouped)[1])
  } else if (length(apart) > 0) {
    sprintf("puts other columns beside the image in `%s`", names(apart)[1])
  }
  if (is.null(problem)) {
    return(inputs)
  }
  abort_gpukeras(
    sprintf("`inputs` %s.", problem),
    code = "spec", hint = "Each column is in one element, and the image is alone in its own.",
    arg = "inputs", call = call
  )
}

recipe_groups <- function(recipe, image) {
  if (length(recipe$inputs) == 0) {
    return(NULL)
  }
  columns <- lapply(recipe$inputs, function(part) {
    if (length(part$recipe$columns) == 0) image else vapply(part$recipe$columns, `[[`, "", "name")
  })
  stats::setNames(columns, vapply(recipe$inputs, `[[`, "", "name"))
}

# Features as arguments of the core: images, or several inputs of which one is the images.
as_image_features <- function(x, image, groups, arg, call, zones = list(), options = list(),
                              scale = NULL) {
  images <- c(
    list(kind = "images", paths = as_path_list(x, image, arg, call), column = image), options
  )
  if (is.null(groups)) {
    return(images)
  }
  inputs <- lapply(names(groups), function(name) {
    if (identical(groups[[name]], image)) {
      return(list(name = name, features = images, scale = scale %||% FALSE))
    }
    columns <- as_features(
      x[groups[[name]]], sprintf("%s$%s", arg, name), call, as.list(zones[[name]])
    )
    list(name = name, features = columns, scale = scale %||% TRUE)
  })
  list(kind = "inputs", inputs = inputs, listed = FALSE)
}

# The values of a column of paths, absolute, and "" for NA.
as_path_list <- function(x, column, arg, call) {
  paths <- x[[column]]
  paths <- if (is.factor(paths)) as.character(paths) else paths
  if (!is.character(paths) || !is.null(dim(paths))) {
    abort_gpukeras(
      sprintf(
        "Column `%s` of `%s` must hold paths of images, not %s.", column, arg, describe(paths)
      ),
      code = "data", arg = arg, column = column, call = call
    )
  }
  there <- !is.na(paths) & nzchar(paths)
  paths[!there] <- ""
  paths[there] <- absolute_paths(paths[there])
  as.list(paths)
}

# Labels as an argument of the core: masks if they are paths of images.
as_image_labels <- function(y, arg, classes = NULL, call = caller_env()) {
  if (is.null(y)) {
    return(NULL)
  }
  if (are_masks(y)) {
    paths <- as_path_list(stats::setNames(list(y), arg), arg, "y", call)
    return(list(
      kind = "masks", name = arg, arg = arg, values = paths,
      classes = if (!is.null(classes)) as.list(unname(classes))
    ))
  }
  if (is_named_list(y) && any(vapply(y, are_masks, NA))) {
    abort_gpukeras(
      "Mask images are the labels of a single output.",
      code = "data", hint = "Name one column by `y`.", arg = "y", call = call
    )
  }
  if (!is.null(classes)) {
    abort_gpukeras(
      sprintf("`classes` is for mask images, and `%s` holds no paths of images.", arg),
      code = "spec", arg = "classes", call = call
    )
  }
  as_labels(y, arg, call)
}

are_masks <- function(y) {
  y <- if (is.character(y) && is.null(dim(y))) y[!is.na(y)]
  length(y) > 0 && all(grepl(image_suffix, y, ignore.case = TRUE))
}

check_image_column <- function(image, names, call) {
  if (!rlang::is_string(image)) abort_spec(image, "image", "the name of one column", call)
  if (!image %in% names) {
    abort_gpukeras(
      sprintf("`image` names the column `%s`, which is no feature of the data.", image),
      code = "spec", hint = "Name it in the formula too, as it is.", arg = "image", call = call
    )
  }
}

# The columns of new rows as features, by the recipe of the training.
as_recipe_features <- function(x, recipe, arg, call) {
  image <- if (is.data.frame(x)) image_column(recipe)
  if (is.null(image)) {
    return(as_features(x, arg, call, recorded_zones(recipe)))
  }
  groups <- recipe_groups(recipe, image)
  as_image_features(x, image, groups, arg, call, recorded_zones(recipe))
}

# Labels of new rows.
as_recipe_labels <- function(y, arg, recipe, call) {
  masks <- length(recipe$label$pixels) > 0
  if (masks) as_image_labels(y, arg, NULL, call) else as_labels(y, arg, call)
}
