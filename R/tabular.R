#' A network for a table
#'
#' Builds a compiled Keras model for the rows of a data frame, a file of columns or a matrix: one of
#' five architectures, with learned embeddings of factors. Output, loss and metric fit the labels as
#' those of [gpu_mlp()] do, or are those of a [gpu_family()]. Members of `"tabm"` learn a family
#' each, whose parameters are averaged for predictions; they cannot learn `"cox"`, which compares
#' the rows of a batch. Offsets are for [gpu_mlp()].
#'
#' @section Kinds:
#' * `"tabm"`: TabM, `members` perceptrons that share their weights but for some vectors each
#'   (Gorishniy et al. 2025). In training each member has its own loss; a prediction is the mean of
#'   theirs, for classes of their probabilities. From 10,000 training rows on it has the size of the
#'   paper, whose step takes sixteen times as long as that of the smaller network (80 ms for 64 rows
#'   of 16 numbers on one core): without a GPU take `"mlp"` then, or `units = 128, members = 8`.
#' * `"mlp"`: dense layers after the embeddings of all columns.
#' * `"resnet"`: residual blocks with batch normalisation (Gorishniy et al. 2021).
#' * `"dcn"`: DCN-v2, cross layers that multiply columns, then dense layers (Wang et al. 2021).
#'   `rank` makes the cross layers' matrices low-rank.
#' * `"ft_transformer"`: a token for each column and attention between them (Gorishniy et al. 2021).
#'   Its time and memory grow with the square of the number of columns.
#'
#' With the same weights the residual network, the transformer, TabM and both embeddings of numbers
#' give what the papers' Python packages give (rtdl_revisiting_models, tabm, rtdl_num_embeddings).
#' They deviate from these in what they are given: factors are embedded for TabM and the residual
#' network too, which have one-hot columns there; biases start at 0; weight decay applies to all
#' weights; the first frequencies of `"periodic"` are cut at two deviations, not three; numbers are
#' scaled as below rather than mapped to normal quantiles.
#'
#' @section Columns:
#' Numbers are scaled as in RealMLP (Holzmüller et al. 2024): the median is subtracted, the distance
#' of the quartiles divides, and z becomes z / sqrt(1 + (z / 3)^2), so that a value far out stays
#' between -3 and 3. Median and quartiles are of at most 100,000 training rows; 0/1 columns are not
#' divided. These values are part of the model, as are the bins of `"piecewise_linear"`.
#'
#' Factors are embedded, whether `gpu_dataset()` encodes them as `"onehot"` columns or as
#' `"codes"`. Both give the same model, and codes are cheaper: use `gpu_dataset(encode = "codes")`.
#' 100,000 rows with a factor of 1,000 levels took 382 MiB and 2.4 s as one-hot columns, and 0.8 MiB
#' and 0.04 s as codes, and three epochs of a small network 3.5 s and 1.3 s, on two cores, with the
#' same losses.
#' With `gpu_dataset(new_levels = "own")`, new rows may have levels that training did not see: their
#' embedding is zeros.
#'
#' @section How to fit it:
#' Hold out rows, stop at the best epoch, and average the weights:
#'
#' ```
#' train <- gpu_dataset(y ~ ., data, encode = "codes", batch_size = 64, validation = 0.2)
#' model <- gpu_tabular(train)
#' gpu_fit(model, train, epochs = 200, early_stopping = 16, ema = 0.99)
#' ```
#'
#' `make bench-tabular` fits so. This fit, the scaling of numbers and the default `kind` were chosen
#' on tables of 1,400 training rows that the benchmark does not have. Larger tables allow larger
#' batches.
#'
#' @inheritParams gpu_mlp
#' @param data A [gpu_dataset()] with labels, of one table: a data frame, a file of columns or a
#'   matrix.
#' @param kind The architecture, see below.
#' @param units Width of the blocks, at most 16384. `NULL` for that of the kind, as for the next
#'   two: 192 for `"resnet"`; 256 for `"dcn"` and `"mlp"`; for `"tabm"` 128 below 10,000 training
#'   rows, otherwise 512; 96, 128, 192, 256, 320 or 384 for a transformer of 1 to 6 blocks.
#' @param blocks Number of blocks: 2 for `"resnet"`, and for `"tabm"` with embedded numbers,
#'   otherwise 3. For `"dcn"` it is the number of cross layers, and of dense layers after them.
#' @param dropout Share of a block's hidden values that training drops: 0.3 for `"resnet"`, 0.1 for
#'   others. Attention drops 0.1 more.
#' @param embeddings Numbers per level of a factor; `"auto"` is fastai's rule for n levels,
#'   min(600, 1.6 n^0.56). A transformer has `units`.
#' @param numeric_embeddings How numbers enter (Gorishniy et al. 2022): `"piecewise_linear"` by
#'   learned vectors that change linearly between the edges of at most `bins` bins, `"none"` as they
#'   are, or `"periodic"` by sines and cosines of learned frequencies.
#' @param bins Most bins of a number: quantiles of the training rows.
#' @param members Members of `"tabm"`; `NULL` is 8 below 10,000 training rows, otherwise 32.
#' @param heads Attention heads of `"ft_transformer"`; they divide `units`.
#' @param rank Rank of the matrices of `"dcn"`, or `NULL` for full matrices.
#' @param learning_rate Its learning rate; `NULL` is 0.0001 for `"ft_transformer"`, 0.002 for
#'   `"tabm"`, 0.004 for that below 10,000 training rows, and 0.001 for others.
#' @param weight_decay Its weight decay; `NULL` is 0.0003 for `"tabm"` and 0.00001 for others.
#' @param seed Seed of the initial weights and of dropout; drawn from R's generator by default.
#' @return A compiled functional Keras 3 model: a Python object that keras3 can use like any other
#'   model. [gpu_load()] loads it after [gpu_save()]; to load the file by Keras itself, call
#'   `gpukeras.models.registry.custom_objects()` in Python first.
#' @references
#' Gorishniy, Y., Rubachev, I., Khrulkov, V. & Babenko, A. (2021). Revisiting deep learning models
#' for tabular data. arXiv:2106.11959.
#'
#' Gorishniy, Y., Rubachev, I. & Babenko, A. (2022). On embeddings for numerical features in tabular
#' deep learning. arXiv:2203.05556.
#'
#' Gorishniy, Y., Kotelnikov, A. & Babenko, A. (2025). TabM: advancing tabular deep learning with
#' parameter-efficient ensembling. arXiv:2410.24210.
#'
#' Holzmüller, D., Grinsztajn, L. & Steinwart, I. (2024). Better by default: strong pre-tuned MLPs
#' and boosted trees on tabular data. arXiv:2407.04491.
#'
#' Wang, R. et al. (2021). DCN V2: improved deep & cross network and practical lessons for web-scale
#' learning to rank systems. arXiv:2008.13535.
#' @examplesIf gpukeras:::can_run_examples()
#' train <- gpu_dataset(Sepal.Length ~ ., data = iris, encode = "codes")
#' model <- gpu_tabular(train, "tabm", units = 16, blocks = 1, members = 4)
#' model$count_params()
#' @export
gpu_tabular <- function(data, kind = c("tabm", "mlp", "resnet", "dcn", "ft_transformer"),
                        units = NULL, blocks = NULL, dropout = NULL, embeddings = "auto",
                        numeric_embeddings = c("piecewise_linear", "none", "periodic"),
                        bins = 48, members = NULL, heads = 8, rank = NULL, optimizer = "adamw",
                        learning_rate = NULL, weight_decay = NULL, seed = NULL, family = NULL) {
  data <- check_dataset(data)
  if (missing(kind)) kind <- "tabm"
  if (missing(numeric_embeddings)) numeric_embeddings <- "piecewise_linear"
  options <- list(
    kind = kind, units = units, blocks = blocks, dropout = dropout,
    embeddings = embeddings, numeric_embeddings = numeric_embeddings, bins = bins,
    members = members, heads = heads, rank = rank, optimizer = optimizer,
    learning_rate = learning_rate, weight_decay = weight_decay, seed = seed %||% draw_seed(),
    family = as_family(family)
  )
  model <- call_core("tabular", list(data = data$handle, options = check_no_na_options(options)))
  inform_labels(data, options$family)
  model
}
