# Databases for tests: SQLite in memory, and a PostgreSQL server of the test's own.

local_sqlite <- function(frame, env = parent.frame()) {
  skip_if_not_installed("RSQLite")
  con <- DBI::dbConnect(RSQLite::SQLite(), ":memory:")
  withr::defer(if (DBI::dbIsValid(con)) DBI::dbDisconnect(con), envir = env)
  DBI::dbWriteTable(con, "rows", frame)
  con
}

# The newest version of PostgreSQL's programs, where Debian puts them or on the path.
postgres_programs <- function() {
  folders <- Sys.glob("/usr/lib/postgresql/*/bin")
  found <- c(rev(folders), dirname(Sys.which("initdb")))
  found[file.exists(file.path(found, "initdb"))][1]
}

# Starts a server in a folder of its own, on a free port of this computer, and stops it at the end of
# the test. Gives its port, and functions that connect and that kill the server.
local_postgres <- function(password, env = parent.frame()) {
  skip_if_not_installed("RPostgreSQL")
  programs <- postgres_programs()
  skip_if(is.na(programs), "PostgreSQL is not installed")
  root <- Sys.info()[["user"]] == "root" # PostgreSQL refuses to run as root
  skip_if(root && !nzchar(Sys.which("runuser")), "PostgreSQL does not run as root")
  folder <- withr::local_tempdir("gpukeras-postgres-", tmpdir = "/tmp", .local_envir = env)
  secret <- file.path(folder, "password")
  writeLines(password, secret)
  if (root) system2("chown", c("-R", "postgres", folder))
  run <- function(program, ...) {
    command <- c(shQuote(file.path(programs, program)), ...)
    if (root) command <- c("runuser", "-u", "postgres", "--", command)
    output <- file.path(folder, paste0(program, ".out")) # the server keeps it open
    status <- withr::with_dir(folder, system(paste(
      paste(command, collapse = " "), ">", shQuote(output), "2>&1 </dev/null"
    )))
    if (status != 0) stop(program, " failed: ", paste(readLines(output), collapse = "\n"))
  }
  data <- shQuote(file.path(folder, "data"))
  run("initdb", "-D", data, "-U", "tester", "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8")
  port <- free_port()
  options <- sprintf("-c listen_addresses=127.0.0.1 -c fsync=off -p %d -k %s", port, folder)
  run("pg_ctl", "-D", data, "-w", "-o", shQuote(options), "start")
  stop_server <- function() {
    if (file.exists(file.path(folder, "data", "postmaster.pid"))) {
      run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    }
  }
  withr::defer(stop_server(), envir = env, priority = "first")
  connect <- function() {
    con <- DBI::dbConnect(
      RPostgreSQL::PostgreSQL(),
      host = "127.0.0.1", port = port, user = "tester", password = password, dbname = "postgres"
    )
    withr::defer(suppressWarnings(try(DBI::dbDisconnect(con), silent = TRUE)), envir = env)
    con
  }
  list(port = port, connect = connect, stop = stop_server)
}

free_port <- function() {
  for (port in sample(20000:40000, 50)) {
    free <- tryCatch(
      {
        close(serverSocket(port))
        TRUE
      },
      error = function(condition) FALSE
    )
    if (free) {
      return(port)
    }
  }
  stop("no port is free")
}
