# The HTML page of gpu_report(): a section for each result.

# The page has no script and requests nothing; a content security policy enforces that.
html_page <- function(parts, made = made_text()) {
  style <- readLines(system.file("report", "style.css", package = "gpukeras", mustWork = TRUE))
  policy <- "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
  ids <- paste0("part-", seq_along(parts))
  c(
    "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
    sprintf('<meta http-equiv="Content-Security-Policy" content="%s">', policy),
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<link rel="icon" href="data:,">', "<title>gpukeras report</title>",
    "<style>", style, "</style>", "</head>", "<body>",
    "<header>", "<h1>gpukeras report</h1>", html_tag("p", made, class = "made"),
    if (length(parts) > 1) html_contents(parts, ids), "</header>", "<main>",
    unlist(Map(html_section, parts, ids)),
    "</main>", "</body>", "</html>"
  )
}

made_text <- function() {
  sprintf(
    "Made on %s with gpukeras %s and R %s.", format(Sys.time(), "%Y-%m-%d %H:%M %Z"),
    utils::packageVersion("gpukeras"), getRversion()
  )
}

html_contents <- function(parts, ids) {
  titles <- html_text(vapply(parts, `[[`, "", "title"))
  c("<nav>", sprintf('<a href="#%s">%s</a>', ids, titles), "</nav>")
}

html_section <- function(part, id) {
  figures <- html_figures(part, id)
  body <- switch(part$class,
    gpu_profile = html_profile(part$value, figures),
    gpu_history = html_history(part$value, figures),
    gpu_check = html_check(part$value),
    c(html_pre(cli::ansi_strip(format(part$value))), figures)
  )
  c(sprintf('<section id="%s">', id), html_tag("h2", part$title), body, "</section>")
}

html_profile <- function(x, figures, most = 20) {
  layers <- slowest_first(x$layers)
  c(
    html_verdict(x$verdict, x$sentence, verdict_mood(x$verdict)),
    html_facts(c(
      "Step" = format_step(x), "Engine" = paste0(x$engine, in_brackets(x$reason)),
      "Decided by" = if (!is.null(x$decided_by$value)) format_decision(x$decided_by),
      "Input" = format_input(x$input),
      "Copied" = if (!is.null(x$bytes)) format_copied(x$bytes),
      "Trace" = if (nzchar(x$trace)) x$trace
    )),
    figures,
    html_advice(x$advice),
    html_shared("Layers", format_layers(layers), layers$share, most),
    html_shared("Operations", format_ops(x$ops), x$ops$share, most),
    html_shared("Kernels", format_ops(x$kernels), x$kernels$share, most),
    html_shared("Stages of the input", format_stages(x$stages), x$stages$share, most),
    html_notes(x$notes)
  )
}

# The colour of a verdict: it is good if the device computes.
verdict_mood <- function(verdict) {
  moods <- c(
    "compute-bound" = "good", "memory-bound" = "good", undetermined = "unknown",
    CONFIRMED = "good", UNPROVEN = "unknown"
  )
  if (verdict %in% names(moods)) moods[[verdict]] else "bad"
}

format_stages <- function(stages) {
  data.frame(
    stage = stages$stage, what = stages$what, batch = format_time(stages$batch_s),
    share = format_percent(stages$share)
  )
}

html_advice <- function(advice) {
  if (nrow(advice) == 0) {
    return(NULL)
  }
  gains <- format_gains(advice)
  apply <- sprintf("<br><code>%s</code>", html_text(advice$apply))
  items <- sprintf(
    "<li>%s%s<br>%s%s</li>", html_code(advice$text),
    ifelse(nzchar(gains), sprintf(" <strong>%s</strong>", html_text(gains)), ""),
    html_code(advice$why), ifelse(nzchar(advice$apply), apply, "")
  )
  c("<h3>Advice</h3>", "<ol>", items, "</ol>")
}

html_history <- function(x, figures) {
  about <- summary(x)
  choices <- about$choices
  reasons <- as.list(about$reasons)[names(choices)]
  because <- vapply(reasons, function(reason) in_brackets(reason %||% ""), "")
  names <- sub("batch size", "Batch size", gsub("_", " ", names(choices), fixed = TRUE))
  c(
    html_tag("p", sub("^<gpu_history> ", "", about$header)),
    figures,
    html_metrics(about$metrics),
    html_facts(c(
      Time = format_times(x$epoch_s, x$elapsed_s), Speed = format_fastest(x),
      Placed = format_placed(x),
      rlang::set_names(paste0(choices, because), capitalise(names))
    )),
    html_notes(x$notes)
  )
}

html_metrics <- function(metrics) {
  if (is.null(metrics)) {
    return(NULL)
  }
  epoch <- ifelse(is.na(metrics$best_epoch), "-", metrics$best_epoch)
  frame <- data.frame(
    metric = metrics$metric, data = metrics$data, first = format_number(metrics$first),
    best = ifelse(is.na(metrics$best), "-", format_number(metrics$best)), "best epoch" = epoch,
    last = format_number(metrics$last), check.names = FALSE
  )
  html_table(frame)
}

html_check <- function(x) {
  findings <- as.data.frame(x)
  shown <- data.frame(
    status = findings$status, what = findings$title, evidence = findings$evidence,
    fix = ifelse(findings$status == "problem", findings$fix, "")
  )
  c(
    html_verdict(x$verdict, paste("Cause:", format_cause(x)), verdict_mood(x$verdict)),
    html_facts(c(
      Fix = if (nzchar(x$fix)) x$fix,
      rlang::set_names(x$evidence, rep("Evidence", length(x$evidence)))
    )),
    html_table(shown)
  )
}

# Elements -----------------------------------------------------------------------------------------

# Escaped text without the names of user, host and home folder.
html_text <- function(x) {
  x <- enc2utf8(redact_names(as.character(x)))
  marks <- c("&" = "&amp;", "<" = "&lt;", ">" = "&gt;", '"' = "&quot;", "'" = "&#39;")
  for (mark in names(marks)) x <- gsub(mark, marks[[mark]], x, fixed = TRUE)
  x
}

# Text with code in backquotes.
html_code <- function(x) gsub("`([^`]+)`", "<code>\\1</code>", html_text(x))

# The same redaction as the core's for text reports.
redact_names <- function(x, info = Sys.info(), home = path.expand("~")) {
  quoted <- function(name) paste0("\\Q", name, "\\E")
  if (nchar(home) > 1) x <- gsub(paste0(quoted(home), "(?![\\w.-])"), "~", x, perl = TRUE)
  folders <- "(/home/|/Users/|[A-Za-z]:\\\\Users\\\\)[^/\\\\\\s:;,'\"]+"
  x <- gsub(folders, "\\1<user>", x, perl = TRUE)
  names <- c(info[["user"]], info[["login"]], info[["nodename"]])
  marks <- c("<user>", "<user>", "<host>")
  for (i in which(nzchar(names) & !names %in% c("root", "localhost", "unknown"))) {
    x <- gsub(sprintf("(?<![\\w-])%s(?![\\w-])", quoted(names[i])), marks[i], x, perl = TRUE)
  }
  x
}

html_tag <- function(name, text, class = "") {
  class <- if (nzchar(class)) sprintf(' class="%s"', class) else ""
  sprintf("<%s%s>%s</%s>", name, class, html_text(text), name)
}

html_pre <- function(lines) {
  paste0("<pre>", paste(html_text(lines), collapse = "\n"), "</pre>")
}

html_verdict <- function(verdict, sentence, mood) {
  sprintf(
    '<p class="verdict %s"><strong>%s</strong> %s</p>', mood, html_text(verdict),
    html_text(sentence)
  )
}

html_facts <- function(facts) {
  if (length(facts) == 0) {
    return(NULL)
  }
  c("<dl>", sprintf("<dt>%s</dt><dd>%s</dd>", html_text(names(facts)), html_text(facts)), "</dl>")
}

html_notes <- function(notes) {
  if (length(notes) > 0) c("<h3>Notes</h3>", "<ul>", html_tag("li", notes), "</ul>")
}

# A table with a bar behind each share, the largest first.
html_shared <- function(title, frame, shares, most) {
  if (nrow(frame) == 0) {
    return(NULL)
  }
  more <- nrow(frame) - most
  c(
    html_tag("h3", title),
    html_table(utils::head(frame, most), utils::head(shares, most)),
    if (more > 0) html_tag("p", sprintf("%d more are left out.", more), class = "note")
  )
}

# A table; columns of numbers are right-aligned.
html_table <- function(frame, shares = NULL) {
  numbers <- vapply(frame, function(column) all(grepl("^([<0-9].*|-.*|)$", column)), logical(1))
  classes <- ifelse(numbers, ' class="number"', "")
  cells <- Map(
    function(column, class) sprintf("<td%s>%s</td>", class, html_text(column)), frame, classes
  )
  if (!is.null(shares)) {
    shares[is.na(shares)] <- 0
    style <- sprintf('<td class="number share" style="--part: %.1f%%">', 100 * shares)
    cells$share <- paste0(style, html_text(frame$share), "</td>")
  }
  c(
    '<div class="wide"><table>', "<thead><tr>",
    sprintf("<th%s>%s</th>", classes, html_text(names(frame))), "</tr></thead>", "<tbody>",
    paste0("<tr>", do.call(paste0, unname(cells)), "</tr>"), "</tbody></table></div>"
  )
}

in_brackets <- function(text) if (nzchar(text)) sprintf(" (%s)", text) else ""

capitalise <- function(text) paste0(toupper(substr(text, 1, 1)), substring(text, 2))
