# make demo: from a table to a trained model and a verdict on the GPU, in plain sight.

library(gpukeras)
say <- function(...) cli::cat_line("\n", cli::rule(left = paste0(...)), "\n")

set.seed(1)
diamonds <- as.data.frame(ggplot2::diamonds)
i <- sample(nrow(diamonds), 0.8 * nrow(diamonds))

say("1. Set up TensorFlow before the first model")
gpu_setup()

say("2. Stage the rows: diamonds, price by nine columns")
train <- gpu_dataset(price ~ ., data = diamonds[i, ], batch_size = 512, validation = 0.1)
print(train)

say("3. Train a network")
model <- gpu_mlp(train, units = c(64, 32))
fit <- gpu_fit(model, train, epochs = 30)
print(fit)

say("4. Predict the prices of rows that training never saw")
test <- diamonds[-i, ]
error <- function(price) mean(abs(price - test$price))
network <- error(gpu_predict(model, test))
linear <- error(predict(stats::lm(price ~ ., data = diamonds[i, ]), test))
cli::cat_line(sprintf("mean absolute error of the network: %5.0f dollars", network))
cli::cat_line(sprintf("mean absolute error of lm():        %5.0f dollars", linear))
cli::cat_line(sprintf("the network errs by %.2f times as much", network / linear))

say("5. Is a GPU used?")
check <- gpu_check()
print(check)

# The verdict as text beside the training's curves. Lines about the computer itself, such as paths
# and the kernel's version, stay out of a picture that may be published.
draw_demo <- function(check, fit, file, lines_at_most = 9) {
  lines <- format(check)
  lines <- lines[!grepl("[/\\\\]|Operating system", lines)]
  verdict <- unlist(lapply(utils::head(lines, lines_at_most), strwrap, width = 46, exdent = 2))
  curves <- ggplot2::autoplot(fit) +
    ggplot2::scale_y_log10() +
    ggplot2::labs(title = "autoplot(fit)", x = "epoch", y = NULL) +
    ggplot2::theme_minimal(base_size = 11) +
    ggplot2::theme(legend.position = "top", legend.title = ggplot2::element_blank())
  grDevices::png(file, width = 1400, height = 560, res = 130)
  on.exit(grDevices::dev.off())
  grid::grid.newpage()
  grid::grid.text(
    "gpu_check()", 0.02, 0.965, just = c("left", "top"), gp = grid::gpar(fontsize = 14)
  )
  grid::grid.text(
    paste(verdict, collapse = "\n"), 0.02, 0.875, just = c("left", "top"),
    gp = grid::gpar(fontfamily = "mono", fontsize = 12, lineheight = 1.15)
  )
  print(curves, vp = grid::viewport(0.76, 0.5, width = 0.48))
}

draw_demo(check, fit, "demo.png")
cli::cat_line("\nthe verdict and the training's curves as a picture: demo.png")
