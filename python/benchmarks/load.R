# How busy the computer was with other work during a run, and whether that forbids to judge by it.

# At most: the 1-minute load average before the first run, when nothing of ours has run yet; and the
# cores that other processes, and other computers on the same processor, took during a run.
most_load <- 1
most_others <- 0.25
ticks_s <- 100 # of /proc/stat, a second

read_load <- function(path = "/proc/loadavg") {
  tryCatch(as.numeric(scan(path, "", n = 1, quiet = TRUE)), error = function(e) NA_real_)
}

# Seconds of all cores since the computer was started: at work, and stolen by its host.
read_cores <- function(path = "/proc/stat") {
  line <- tryCatch(readLines(path, n = 1), error = function(e) "", warning = function(w) "")
  parse_cores(line)
}

# Of a line such as "cpu  user nice system idle iowait irq softirq steal guest guest_nice", in which
# guests are counted as user too.
parse_cores <- function(line) {
  found <- suppressWarnings(as.numeric(strsplit(sub("^cpu +", "", line), " +")[[1]]))
  if (!grepl("^cpu ", line) || length(found) < 8 || anyNA(found[1:8])) {
    return(c(busy = NA_real_, stolen = NA_real_))
  }
  c(busy = sum(found[c(1:3, 6:7)]), stolen = found[8]) / ticks_s
}

# Seconds of this process and of those that it has waited for.
read_own <- function() sum(proc.time()[c("user.self", "sys.self", "user.child", "sys.child")])

read_moment <- function() {
  list(time = proc.time()[["elapsed"]], load = read_load(), cores = read_cores(), own = read_own())
}

# `others` and `stolen` in cores, means of the time between two moments; NA where that is unknown.
compare_moments <- function(before, after) {
  took <- max(after$time - before$time, 1e-3)
  cores <- (after$cores - before$cores) / took
  others <- cores[["busy"]] - (after$own - before$own) / took
  list(
    load_before = before$load, load_after = after$load,
    others = max(0, others), stolen = cores[["stolen"]]
  )
}

# Why nothing may be judged at all: "" if it may.
refuse_all <- function(load) {
  if (is.na(load)) {
    return("the load of this computer is unknown")
  }
  if (load <= most_load) {
    return("")
  }
  sprintf("the 1-minute load average was %.1f before the first run, above %g", load, most_load)
}

# Why nothing may be judged by some runs: "" if it may. Where cores are unknown, the load average
# before a run must do, which holds what the run before has left.
refuse <- function(runs) {
  loads <- Filter(Negate(is.null), lapply(runs, `[[`, "load"))
  reasons <- vapply(loads, refuse_run, "")
  c(reasons[nzchar(reasons)], "")[1]
}

refuse_run <- function(load) {
  number <- function(x) if (is.null(x) || is.na(x)) NA_real_ else as.numeric(x)
  others <- number(load$others) + number(load$stolen)
  before <- number(load$load_before)
  if (is.na(others)) {
    return(if (is.na(before) || before > most_load) sprintf("load %.1f", before) else "")
  }
  if (others > most_others) sprintf("others took %.1f cores", others) else ""
}
