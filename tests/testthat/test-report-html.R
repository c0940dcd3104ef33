html_of <- function(x) {
  file <- gpu_report(x, tempfile(fileext = ".html"))
  on.exit(unlink(file))
  paste(readLines(file, encoding = "UTF-8"), collapse = "\n")
}

a_history <- function(...) new_gpu_history(a_report(...))

a_checked <- function() {
  new_gpu_check(list(
    verdict = "NOT USED", cause = "CUDA_VISIBLE_DEVICES hides every GPU.", cause_id = "D1",
    fix = "Restart R.", evidence = list("C reads '-1'", "R reads '-1'"),
    findings = list(
      list(id = "D1", status = "problem", title = "Hidden.", evidence = "'-1'", fix = "Unset it."),
      list(id = "driver", status = "ok", title = "Driver", evidence = "550", fix = "")
    ),
    facts = list()
  ))
}

count_of <- function(pattern, text) lengths(regmatches(text, gregexpr(pattern, text)))

# Which file -------------------------------------------------------------------------------------

test_that("a path is given first or by name, with or without results", {
  skip_without_core() # what R knows of the session is read from Python
  local_answer("GPU: NOT USED")
  folder <- withr::local_tempdir()
  file <- file.path(folder, "report.txt")
  expect_identical(gpu_report(file), "GPU: NOT USED")
  expect_identical(readLines(file), "GPU: NOT USED")
  expect_identical(withVisible(gpu_report(NULL, file))$visible, FALSE)
  page <- file.path(folder, "report.html")
  expect_identical(gpu_report(a_profile(), page), page)
  expect_match(readLines(page)[1], "<!DOCTYPE html>", fixed = TRUE)
  expect_identical(sort(list.files(folder)), c("report.html", "report.txt"))
})

test_that("without a path a page goes into the session's folder", {
  file <- gpu_report(a_history())
  withr::defer(unlink(file))
  expect_identical(dirname(file), tempdir())
  expect_match(file, "[.]html$")
})

test_that("what cannot be written or reported is refused", {
  skip_outside_lane()
  folder <- withr::local_tempdir()
  nowhere <- file.path(folder, "none", "x.html")
  error <- expect_error(gpu_report(a_profile(), nowhere), class = "gpukeras_error_data")
  expect_match(one_line(error), "`x.html` is in a folder that does not exist", fixed = TRUE)
  expect_identical(error$path, nowhere)
  expect_error(gpu_report(a_profile(), folder), "is a folder", class = "gpukeras_error_data")
  for (wrong in list(mtcars, list(), list(a_profile(), 1), 3, identity)) {
    expect_error(gpu_report(wrong, tempfile()), class = "gpukeras_error_spec")
  }
  expect_snapshot(error = TRUE, {
    gpu_report(a_profile(), "none/x.html")
    gpu_report(mtcars, "x.html")
  })
  expect_identical(list.files(folder), character())
})

test_that("a page that fails leaves the older one as it was", {
  file <- withr::local_tempfile(fileext = ".html", lines = "old")
  expect_error(gpu_report(list(a_profile(), 1), file))
  broken <- a_profile()
  broken$layers <- "no data frame"
  expect_error(gpu_report(broken, file))
  expect_identical(readLines(file), "old")
})

# What it says -----------------------------------------------------------------------------------

test_that("a profile's page has the verdict, its number, advice, tables and the plot", {
  html <- html_of(a_gpu_profile())
  for (text in c(
    "<strong>input-bound</strong> The device waits for rows in 62 % of a step.",
    "<dd>input 62 %, compared with 28 %</dd>", "gpu_fit(batch_size = 512)",
    "<strong>expected: about 12 times as fast, measured: 10 times</strong>",
    "<h3>Layers</h3>", "<h3>Operations</h3>", "ampere_sgemm_128x64_nt", "logs/profile",
    '<td class="number share" style="--part: 71.2%">71 %</td>'
  )) {
    expect_match(html, text, fixed = TRUE)
  }
  expect_identical(count_of("<figure>", html), 1L)
  expect_false(grepl("<nav>", html, fixed = TRUE))
})

test_that("a list gives a section each, with its name or a heading", {
  fit <- a_history()
  both <- rbind(a = fit, b = fit)
  html <- html_of(list(a_profile(), "The <training>" = fit, a_checked(), both))
  titles <- regmatches(html, gregexpr("<h2>[^\n]*</h2>", html))[[1]]
  expect_identical(titles, c(
    "<h2>Where the time goes</h2>", "<h2>The &lt;training&gt;</h2>",
    "<h2>Is the GPU used?</h2>", "<h2>Trainings</h2>"
  ))
  expect_identical(count_of('<a href="#part-[1-4]">', html), 4L)
  expect_identical(count_of("<figure>", html), 3L) # a check has no plot
  expect_match(html, "<dt>Engine</dt><dd>compiled (measured fastest", fixed = TRUE)
  expect_match(html, "<dt>Evidence</dt><dd>R reads &#39;-1&#39;</dd>", fixed = TRUE)
  expect_match(html, "<gpu_histories> 2 trainings" |> html_text(), fixed = TRUE)
})

test_that("a monitor stands after what was monitored", {
  monitor <- structure(list(value = 1), class = "gpu_monitor")
  fit <- a_history()
  fit$monitor <- monitor
  parts <- report_parts(list(first = fit, a_profile()))
  expect_identical(
    vapply(parts, `[[`, "", "title"), c("first", "first: monitor", "Where the time goes")
  )
  expect_identical(vapply(parts, `[[`, "", "class"), c("gpu_history", "gpu_monitor", "gpu_profile"))
  expect_identical(parts[[2]]$value, monitor)
  monitor$value <- a_history()
  parts <- report_parts(monitor)
  expect_identical(vapply(parts, `[[`, "", "class"), c("gpu_history", "gpu_monitor"))
})

test_that("a result that cannot be drawn says why", {
  empty <- a_history(history = list(), epochs = 0L, epoch_s = list(), stopped = "interrupted")
  html <- html_of(empty)
  expect_match(html, "The history has no finished epoch to plot.", fixed = TRUE)
  expect_match(html, "0 epochs on CPU:0 in 12.3 s, interrupted", fixed = TRUE)
  expect_match(html_of(an_undetermined_profile()), 'class="verdict unknown"', fixed = TRUE)
})

test_that("of many layers the slowest are in the page", {
  layers <- lapply(1:30, function(i) a_layer_time(paste0("dense_", i), "Dense", i / 1e4, 0, i / 465))
  html <- html_of(a_profile(layers = layers))
  expect_match(html, "10 more are left out.", fixed = TRUE)
  expect_match(html, "<td>dense_11</td>", fixed = TRUE)
  expect_false(grepl("<td>dense_10</td>", html, fixed = TRUE))
})

test_that("texts are escaped, whatever they hold", {
  expect_identical(html_text("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;")
  expect_identical(html_code("Use `x = \"<a>\"`."), "Use <code>x = &quot;&lt;a&gt;&quot;</code>.")
  bad <- "</pre><script>alert(1)</script>"
  html <- html_of(list(a_profile(
    sentence = bad, notes = list(bad), ops = list(an_op(bad, bad, 1, 1, 1)), reason = bad,
    layers = list(a_layer_time(bad, bad, 1, 1, 1))
  ), a_history(notes = list(bad), device = bad)))
  expect_false(grepl("<script", html, fixed = TRUE))
  expect_match(html, "&lt;script&gt;", fixed = TRUE)
})

test_that("texts of all languages reach the page as UTF-8", {
  html <- html_of(a_profile(notes = list("Gr\u00fc\u00dfe, \u4e16\u754c")))
  expect_match(html, "Gr\u00fc\u00dfe, \u4e16\u754c", fixed = TRUE)
})

test_that("the names of user, host and home folder are left out", {
  info <- c(user = "jane", login = "jane", nodename = "box-7")
  expect_identical(
    redact_names("/data/jane/x on box-7 by jane (janet)", info, home = "/data/jane"),
    "~/x on <host> by <user> (janet)"
  )
  expect_identical(redact_names("/home/joe/x", info, ""), "/home/<user>/x")
  expect_identical(redact_names("the root cause", c(user = "root", login = "root", nodename = ""), "/"),
    "the root cause"
  )
  expect_identical(redact_names("a.b c", c(user = "a.b", login = "", nodename = "x[")), "<user> c")
})

# Figures ----------------------------------------------------------------------------------------

test_that("drawings on one page do not share names, and refer to their own", {
  skip_if_not(capabilities("cairo"), "no cairo")
  html <- html_of(list(a_profile(), a_gpu_profile(), a_history()))
  ids <- regmatches(html, gregexpr('\\bid="[^"]*"', html))[[1]]
  expect_false(anyDuplicated(ids) > 0)
  used <- regmatches(html, gregexpr('(?<=href="#|url\\(#)[^")]*', html, perl = TRUE))[[1]]
  expect_gt(length(used), 50)
  expect_true(all(sprintf('id="%s"', used) %in% ids))
  expect_identical(count_of('<svg role="img" aria-label="', html), 3L)
})

test_that("without cairo figures are PNG, and without that a sentence", {
  skip_if_not(capabilities("png"), "no png")
  part <- report_parts(a_profile())[[1]]
  drawn <- html_figures(part, "part-1", kind = "png")
  expect_match(drawn[2], '^<img alt="Where the time goes: plot" src="data:image/png;base64,')
  code <- sub('">$', "", sub(".*base64,", "", drawn[2]))
  bytes <- jsonlite::base64_dec(code)
  expect_identical(bytes[2:4], charToRaw("PNG"))
  expect_match(html_figures(part, "part-1", kind = "none"), "no plot", fixed = TRUE)
})

test_that("plots of several pages are all there", {
  metrics <- rlang::set_names(rep(list(list(1, 2)), 20), paste0("metric_", 1:20))
  drawn <- html_figures(report_parts(a_history(history = metrics))[[1]], "part-1")
  expect_identical(sum(drawn == "<figure>"), 2L)
})

test_that("the user's own graphics device stays the current one", {
  grDevices::pdf(NULL)
  withr::defer(grDevices::dev.off())
  before <- grDevices::dev.list()
  current <- grDevices::dev.cur()
  html_of(a_profile())
  expect_identical(grDevices::dev.list(), before)
  expect_identical(grDevices::dev.cur(), current)
})

# In a browser -----------------------------------------------------------------------------------

find_chromium <- function() {
  skip_on_cran() # it keeps files in the home folder
  found <- Sys.which(c("chromium", "chromium-browser", "google-chrome"))
  found <- found[nzchar(found)]
  skip_if(length(found) == 0, "no chromium to open the page in")
  unname(found[1])
}

# Opens a page as a reader would; gives its console, the addresses it asked for, and its DOM.
browse <- function(file, frame = parent.frame()) {
  chromium <- find_chromium()
  folder <- withr::local_tempdir(.local_envir = frame)
  netlog <- file.path(folder, "net.json")
  out <- file.path(folder, c("dom", "log"))
  flags <- c(
    "headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "disable-extensions", "disable-dev-shm-usage",
    "enable-logging=stderr", paste0("user-data-dir=", file.path(folder, "profile")),
    paste0("log-net-log=", netlog),
    "host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE 127.0.0.1'", "dump-dom"
  )
  address <- paste0("file://", normalizePath(file))
  status <- system2(
    chromium, c(paste0("--", flags), shQuote(address)), stdout = out[1], stderr = out[2],
    timeout = 600
  )
  # The browser asks for things of its own, which have no page as their origin.
  events <- jsonlite::read_json(netlog)$events
  asked <- lapply(events, function(event) event$params[c("initiator", "url")])
  by_page <- Filter(function(one) !(one$initiator %||% "not an origin") %in% "not an origin", asked)
  list(
    status = status, dom = paste(readLines(out[1], encoding = "UTF-8"), collapse = "\n"),
    console = grep("CONSOLE", readLines(out[2]), value = TRUE),
    requests = unique(vapply(by_page, `[[`, "", "url"))
  )
}

test_that("the browser's log shows what a page does wrong", {
  skip_outside_lane(slow = TRUE)
  page <- withr::local_tempfile(fileext = ".html", lines = c(
    "<!DOCTYPE html><title>x</title>", "<script>nobody()</script>",
    '<img src="http://127.0.0.1:9/x.png">'
  ))
  seen <- browse(page)
  expect_match(seen$console, "nobody is not defined", fixed = TRUE, all = FALSE)
  expect_identical(seen$requests, "http://127.0.0.1:9/x.png")
})

test_that("a browser opens the page without a complaint and without a network", {
  skip_outside_lane()
  page <- withr::local_tempfile(fileext = ".html")
  gpu_report(list(a_profile(), "<b>" = a_gpu_profile(), a_history(), a_checked()), page)
  seen <- browse(page)
  expect_identical(seen$status, 0L)
  expect_identical(seen$console, character())
  expect_identical(seen$requests, character())
  expect_match(seen$dom, "<strong>launch-bound</strong>", fixed = TRUE)
  expect_identical(count_of("<section ", seen$dom), 4L)
  expect_identical(count_of("</figure>", seen$dom), 3L)
})
