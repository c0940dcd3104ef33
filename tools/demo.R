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

grDevices::png("demo-loss.png", width = 900, height = 700, res = 120)
plot(fit)
invisible(grDevices::dev.off())
cli::cat_line("the loss over the epochs: demo-loss.png")

say("5. Is a GPU used?")
gpu_check()
