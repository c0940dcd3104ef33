# How far an installation has come: a bar for each large download, and one for what is installed.

# Runs an interpreter for one step of an installation, with a bar where one can be drawn. Elsewhere
# its own output is shown if `verbose`, and otherwise returned.
run_step <- function(python, args, verbose, frame, verb = "") {
  if (!(verbose && can_draw())) {
    return(run_python(python, args, shown = verbose && !nzchar(verb)))
  }
  scratch <- tempfile("gpukeras-pip-") # where pip puts what it downloads
  dir.create(scratch)
  before <- list_installed(python)
  began <- Sys.time()
  told <- call_bar(frame, verb, "seconds")
  process <- processx::process$new(
    python, args, stdout = "|", stderr = "2>&1",
    env = c("current", own_libraries(python), TMPDIR = scratch, PIP_PROGRESS_BAR = "off")
  )
  on.exit({
    process$kill_tree()
    process$wait(5000) # it may write until then
    unlink(scratch, recursive = TRUE)
  })
  lines <- character()
  while (process$is_incomplete_output() || process$is_alive()) {
    process$poll_io(200)
    lines <- c(lines, process$read_output_lines())
    told(if (nzchar(verb)) {
      list(step = round(as.numeric(Sys.time() - began, units = "secs")))
    } else {
      read_pip(lines, scratch, setdiff(list_installed(python), before))
    })
  }
  list(status = process$get_exit_status(), lines = lines)
}

# The event that pip's lines tell of: what is collected, downloaded or installed.
read_pip <- function(lines, scratch, installed) {
  named <- grep("^Installing collected packages: ", lines, value = TRUE)
  last <- utils::tail(grep("^Collecting |^ *Downloading .*[.]whl \\(", lines, value = TRUE), 1)
  if (length(named) > 0) {
    total <- lengths(strsplit(named[1], ", ", fixed = TRUE))
    list(
      verb = "installing", units = "packages", step = min(length(installed), total), steps = total
    )
  } else if (length(last) == 1 && !startsWith(last, "Collecting")) {
    file <- sub("^ *Downloading (\\S+) .*", "\\1", last)
    found <- file.size(Sys.glob(file.path(scratch, "*", basename(file))))
    list(
      verb = paste("downloading", sub("[^A-Za-z0-9_.].*", "", basename(file))), units = "bytes",
      step = sum(found, na.rm = TRUE), steps = parse_size(sub(".*\\((.*)\\)$", "\\1", last))
    )
  } else {
    list(verb = "collecting", units = "packages", step = sum(startsWith(lines, "Collecting ")))
  }
}

# The bytes of a size as pip writes it, such as "230.1 MB", whose units are powers of 1000; NULL for
# what is none: a bar must not end an installation.
parse_size <- function(text) {
  if (!grepl("^[0-9]+([.][0-9]+)? (bytes|kB|MB|GB)$", text)) {
    return(NULL)
  }
  parts <- strsplit(text, " ", fixed = TRUE)[[1]]
  as.numeric(parts[1]) * c(bytes = 1, kB = 1e3, MB = 1e6, GB = 1e9)[[parts[2]]]
}

# The packages of an interpreter's environment, by the folders that pip writes last.
list_installed <- function(python) {
  root <- dirname(dirname(python))
  list.files(
    Sys.glob(file.path(root, c("lib/python3*/site-packages", "Lib/site-packages"))), "dist-info$"
  )
}
