# make gallery: the three pictures of README, in man/figures: a verdict, a training, many models.
# What they show was computed here and now.

library(gpukeras)
library(ggplot2)

mono <- "DejaVu Sans Mono"
ink <- "#1b1f24"
blue <- "#1f77b4"
orange <- "#d95f02"
theme_gallery <- theme_minimal(base_size = 11) + theme(
  plot.title = element_text(family = mono, face = "bold", size = 11, colour = ink),
  plot.subtitle = element_text(colour = "grey35", size = 9.5),
  plot.title.position = "plot", legend.position = "top", legend.title = element_blank(),
  panel.grid.minor = element_blank(), strip.text = element_text(hjust = 0, face = "bold")
)

save_picture <- function(name, draw) {
  grDevices::png(file.path("man", "figures", name), width = 900, height = 640, res = 130)
  on.exit(grDevices::dev.off())
  draw()
}

# As in a terminal: light on dark, the verdict in a colour, what names its lines in bold.
draw_terminal <- function(title, lines) {
  grid::grid.newpage()
  grid::grid.rect(gp = grid::gpar(fill = ink, col = NA))
  write <- function(text, y, colour, size = 11, face = "plain") {
    grid::grid.text(text, 0.03, y, just = c("left", "top"), gp = grid::gpar(
      fontfamily = mono, fontsize = size, fontface = face, col = colour
    ))
  }
  write(paste(">", title), 0.95, "#8ab4f8", 12, "bold")
  colours <- ifelse(grepl("^GPU:", lines), "#ffb86c", "#e8eaed")
  faces <- ifelse(grepl("^(GPU|Cause|Evidence|Fix):", lines), "bold", "plain")
  for (i in seq_along(lines)) write(lines[i], 0.87 - 0.062 * (i - 1), colours[i], face = faces[i])
}

# Lines about the computer itself, such as paths, stay out of a picture that is published.
draw_check <- function(check) {
  lines <- format(check)
  lines <- lines[!grepl("[/\\\\]|Operating system", lines)]
  draw_terminal("gpu_check()", utils::head(unlist(lapply(lines, strwrap, 54, exdent = 2)), 13))
}

draw_history <- function(fit) {
  print(
    autoplot(fit) + scale_y_log10() + theme_gallery +
      labs(
        title = "autoplot(gpu_fit(model, train, epochs = 30))",
        subtitle = sprintf("engine: %s (%s)", fit$engine$engine, fit$engine$reason),
        x = "epoch", y = NULL
      )
  )
}

# Each line is a model: what it makes of the rows that it held out, by epoch.
draw_many <- function(fits, seconds) {
  table <- as.data.frame(fits)
  curves <- do.call(rbind, Map(function(history, model, units) {
    loss <- history$val_mean_absolute_error
    data.frame(model = model, units = units, epoch = seq_along(loss), error = loss)
  }, fits$histories, table$model, table$units))
  curves$units <- factor(paste(curves$units, "units"), paste(sort(unique(table$units)), "units"))
  print(
    ggplot(curves, aes(.data$epoch, .data$error, group = .data$model, colour = .data$units)) +
      geom_line(linewidth = 0.4) + scale_y_log10() + theme_gallery +
      scale_colour_manual(values = c(orange, "#7570b3", blue)) +
      labs(
        title = "gpu_fit_many(train, network, folds = 5, seeds = 4, grid = units)",
        subtitle = sprintf(
          "%d networks, %d epochs each, in %.0f s on two cores: error in dollars on rows held out",
          nrow(table), max(curves$epoch), seconds
        ), x = "epoch", y = NULL
      )
  )
}

set.seed(1)
gpu_setup()
diamonds <- as.data.frame(ggplot2::diamonds)
rows <- diamonds[sample(nrow(diamonds), 0.8 * nrow(diamonds)), ]
train <- gpu_dataset(price ~ ., data = rows, batch_size = 512, validation = 0.1)
fit <- gpu_fit(gpu_mlp(train, units = c(64, 32)), train, epochs = 30)
few <- gpu_dataset(price ~ ., data = rows[1:8000, ], batch_size = 128)
network <- function(units) gpu_mlp(few, units = units)
seconds <- system.time(fits <- gpu_fit_many(
  few, network, folds = 5, seeds = 4, grid = data.frame(units = c(4, 16, 64)), epochs = 20
))[["elapsed"]]

save_picture("check.png", function() draw_check(gpu_check()))
save_picture("history.png", function() draw_history(fit))
save_picture("many.png", function() draw_many(fits, seconds))
