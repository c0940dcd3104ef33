# Datasets of a database's rows: DBI connections and dplyr's lazy tables. The core asks for one
# chunk of rows after another and stores them; see reader/table/stream.py.

chunk_cells <- 5e5 # of a chunk; as doubles 4 MB
chunk_rows <- c(first = 1000, least = 256, most = 50000)

#' @param query,table For a connection: the query whose rows to take, or the name of a table (a
#'   string, or `DBI::Id()`).
#' @section Databases and Arrow:
#' `x` may be a connection of the package DBI (RSQLite, RPostgres, RPostgreSQL, duckdb, odbc and
#' others) with a `query` or a `table`, or a lazy table of dplyr, `dplyr::tbl(con, "flights")`, with
#' any verbs of dbplyr. It may also be a Table, RecordBatchReader, Dataset or query of the package
#' arrow, a stream of nanoarrow, or a Python object with an Arrow C stream: a table of pyarrow or
#' polars, a relation of DuckDB, or a connection of DuckDB or ADBC with a `query`. `y`, `weights`
#' and `columns` name columns, as for tables in files, and a formula that only names columns takes
#' such a source as `data`.
#'
#' The query runs once, when the dataset is made. Its rows come in chunks and are kept in the order
#' in which they came: in memory up to 32 MiB, in a scratch file of R's temporary folder beyond.
#' What is then encoded is kept as for tables in files, and the dataset needs no connection any
#' more. SQL promises an order only with `ORDER BY`: without it, the same `seed` may split and
#' shuffle other rows in another session.
#'
#' `NULL` is a missing value, like `NA` and `NaN`. 64-bit integers are read exactly, and a warning
#' says if some exceed 2^53 (RPostgreSQL itself makes doubles of them). Times keep their zone. Texts
#' are categories, as in a data frame. Columns of other types, such as blobs and arrays, are an
#' error unless `columns` leaves them out. In SQLite, the first values of a column without a type
#' decide on it; `CAST` in the query does so too.
#'
#' The database sends only the named `columns` of a `table`, and of a `query` by a connection of
#' DuckDB or ADBC (PostgreSQL), which then is a subquery. Other databases may forget the order of a
#' subquery: name the columns in the query.
#'
#' The database gets the `query` as it is, so a query that changes tables changes them. A statement
#' that gives no columns (`DELETE`, `CREATE TABLE`, ...) is refused before it runs, by its first
#' word, and in SQLite by what the database says of it. What cannot be told: functions and `WITH`
#' clauses that change tables while they give rows, statements with `RETURNING`, and what follows a
#' semicolon, which some drivers run.
#'
#' `numeric` columns of PostgreSQL become doubles.
#'
#' If the database fails midway, an error of class `gpukeras_error_data` says so, with the number of
#' the last row in its field `row`, and no row is kept. Passwords in the driver's message are
#' masked. Neither the connection nor the query is stored in the dataset or its recipe.
#' @rdname gpu_dataset
#' @export
gpu_dataset.DBIConnection <- function(x, y = NULL, ..., query = NULL, table = NULL, # nolint
                                      columns = NULL, weights = NULL) {
  check_connection(x)
  query <- as_query(x, query, table, columns, y, weights)
  if (inherits(x, "duckdb_connection") && rlang::is_installed("arrow")) {
    reader <- duckdb_reader(x, query)
    if (!is.null(reader)) {
      return(arrow_dataset(reader, y, ..., columns = columns, weights = weights))
    }
  }
  result <- query_rows(x, query)
  on.exit(result$close())
  stream_dataset(list(call = result$give), y, ..., columns = columns, weights = weights)
}

#' @export
gpu_dataset.tbl_sql <- function(x, y = NULL, ...) { # nolint: object_name_linter.
  gpu_dataset(dbplyr::remote_con(x), y, ..., query = dbplyr::remote_query(x))
}

# The dataset of rows that come once, see files/stream.py. Without names, all columns but the label
# and the weights are features.
stream_dataset <- function(stream, y = NULL, ..., columns = NULL, weights = NULL,
                           call = caller_env()) {
  check_column_names(y, "y", call)
  check_column_names(columns, "columns", call)
  check_column_names(weights, "weights", call)
  named <- list(columns = as_names(columns), label = as_names(y), weights = weights)
  features <- c(list(kind = "table", stream = stream), drop_null(named))
  gpu_dataset.default(new_source(features, scale = TRUE), ...)
}

check_column_names <- function(names, arg, call) {
  if (!is.null(names) && (!is.character(names) || anyNA(names))) {
    abort_spec(names, arg, "names of columns", call)
  }
}

# Whether `x` is a source of rows in sequence, with names for its columns.
is_row_stream <- function(x) {
  inherits(x, c("DBIConnection", "tbl_sql", arrow_classes)) || is_python_stream(x)
}

check_connection <- function(con, call = caller_env()) {
  # RPostgreSQL has no method for some of its objects.
  valid <- tryCatch(DBI::dbIsValid(con), error = function(condition) TRUE)
  if (!valid) {
    abort_gpukeras(
      "`x` is a connection that is closed.",
      code = "data", hint = "Open it again, by DBI::dbConnect().", arg = "x", call = call
    )
  }
}

# The query as text.
as_query <- function(con, query, table, columns, y, weights, call = caller_env()) {
  if (is.null(query) == is.null(table)) {
    abort_no_query("A connection needs one of `query` and `table`.", call)
  }
  if (is.null(query)) {
    shown <- if (is.null(columns)) "*" else table_columns(con, table, c(columns, y, weights))
    return(paste("SELECT", shown, "FROM", DBI::dbQuoteIdentifier(con, table)))
  }
  if (!rlang::is_string(query)) {
    abort_spec(query, "query", "one string", call)
  }
  query <- sub(";\\s*$", "", as.character(query))
  check_columns_of(query, con, call)
  query
}

# Statements of SQL that give no columns in any database, unless they end with RETURNING or OUTPUT.
no_columns <- c(
  "ALTER", "ATTACH", "BEGIN", "COMMIT", "CREATE", "DELETE", "DETACH", "DROP", "GRANT", "INSERT",
  "LOCK", "MERGE", "REINDEX", "RENAME", "REPLACE", "REVOKE", "ROLLBACK", "SAVEPOINT", "SET",
  "TRUNCATE", "UPDATE", "USE", "VACUUM"
)

# Refuses a query that would give no columns, before it runs: by its first word, or as SQLite says.
check_columns_of <- function(query, con = NULL, call = caller_env()) {
  first <- first_word(query)
  gives <- grepl("\\b(RETURNING|OUTPUT)\\b", query, ignore.case = TRUE)
  known <- if (inherits(con, "SQLiteConnection")) sqlite_gives_rows(con, query)
  if (!(known %||% (gives || !first %in% no_columns))) {
    abort_gpukeras(
      sprintf("`query` is a statement (%s) that gives no columns. It was not run.", first),
      code = "spec", arg = "query", call = call,
      hint = 'Run it by DBI::dbExecute(), and give a query such as "SELECT * FROM flights".'
    )
  }
}

# The first word of a query, after spaces, comments and brackets.
first_word <- function(query) {
  rest <- sub("(?s)^(\\s|\\(|--[^\\n]*(\\n|$)|/\\*.*?\\*/)+", "", query, perl = TRUE)
  toupper(sub("(?s)^([A-Za-z]*).*$", "\\1", rest, perl = TRUE))
}

# Whether a statement of SQLite gives rows, from its program, which is compiled and not run. NULL if
# it does not compile, as the query itself says then, or may act when it is compiled.
sqlite_gives_rows <- function(con, query) {
  if (first_word(query) %in% c("PRAGMA", "EXPLAIN")) {
    return(NULL)
  }
  program <- tryCatch(
    suppressWarnings(DBI::dbGetQuery(con, paste("EXPLAIN", query))),
    error = function(condition) NULL
  )
  if (!is.null(program)) "ResultRow" %in% program$opcode
}

# Columns of a table as SQL; all of them where one is missing, which the core reports.
table_columns <- function(con, table, names) {
  # RPostgreSQL lists no fields of a DBI::Id().
  known <- tryCatch(DBI::dbListFields(con, table), error = function(condition) NULL)
  if (!is.character(names) || !all(names %in% known)) {
    return("*")
  }
  paste(DBI::dbQuoteIdentifier(con, unique(names)), collapse = ", ")
}

abort_no_query <- function(message, call = caller_env()) {
  hint <- 'For example query = "SELECT * FROM flights".'
  abort_gpukeras(message, code = "spec", hint = hint, arg = "query", call = call)
}

# The rows of a query as a function that gives a chunk per call, and one that releases the result.
# The query starts with the first call, so that the core reports its errors like later ones.
query_rows <- function(con, query) {
  force(query)
  open <- if (inherits(con, "PostgreSQLConnection")) open_cursor else open_result
  result <- NULL
  size <- chunk_rows[["first"]]
  give <- function(names) {
    first <- is.null(result)
    if (first) result <<- open(con, query)
    chunk <- result$fetch(size)
    size <<- min(chunk_rows[["most"]], max(chunk_rows[["least"]], chunk_cells %/% length(chunk)))
    if (nrow(chunk) > 0 || first) as_chunk(chunk, names)
  }
  list(
    give = function(names = NULL) keep_condition(keep_reason(give(names))),
    close = function() if (!is.null(result)) try(result$close(), silent = TRUE)
  )
}

# An error of the database as its reason. The core makes an error of it that names the row.
keep_reason <- function(code) {
  tryCatch(code, error = function(condition) list(failed = said_by(condition)))
}

open_result <- function(con, query) {
  result <- DBI::dbSendQuery(con, query)
  list(
    fetch = function(rows) DBI::dbFetch(result, n = rows),
    close = function() DBI::dbClearResult(result)
  )
}

# The rows of a query in DuckDB as arrow's reader, because dbFetch() makes a data frame of them all.
# NULL if the query fails: as chunks it fails again, with an error of the core's.
duckdb_reader <- function(con, query) {
  result <- NULL
  tryCatch(
    {
      result <- DBI::dbSendQuery(con, query, arrow = TRUE)
      getExportedValue("duckdb", "duckdb_fetch_record_batch")(result)
    },
    error = function(condition) {
      if (!is.null(result)) DBI::dbClearResult(result)
      NULL
    }
  )
}

# RPostgreSQL holds the whole result of a query in memory, but not that of a cursor. WITH HOLD needs
# no transaction, and leaves one of the user's alone.
open_cursor <- function(con, query) {
  name <- basename(tempfile("gpukeras_"))
  # dbGetQuery() of RPostgreSQL gives NULL where the connection is lost.
  run <- function(statement, read) {
    result <- DBI::dbSendQuery(con, statement)
    on.exit(DBI::dbClearResult(result))
    if (read) DBI::dbFetch(result, n = -1)
  }
  run(paste("DECLARE", name, "NO SCROLL CURSOR WITH HOLD FOR", query), read = FALSE)
  list(
    fetch = function(rows) run(sprintf("FETCH %d FROM %s", as.integer(rows), name), read = TRUE),
    close = function() run(paste("CLOSE", name), read = FALSE)
  )
}

# A chunk as the core takes it: the columns named, or all. A column that cannot be a feature has no
# values; it is an error only where it is chosen.
as_chunk <- function(frame, names = NULL) {
  places <- if (is.null(names)) seq_along(frame) else match(unlist(names), names(frame))
  columns <- lapply(places, function(place) chunk_column(frame[[place]], names(frame)[place]))
  list(columns = columns, rows = nrow(frame))
}

chunk_column <- function(x, name) {
  if (inherits(x, "integer64")) { # the bits of doubles, which the core reads
    return(list(name = name, kind = "integer64", values = as.array(as.double(unclass(x)))))
  }
  x <- if (inherits(x, c("AsIs", "POSIXlt"))) plain_column(x) else x
  kind <- column_kind(x) %||% "other"
  values <- switch(kind,
    other = list(rows = length(x)),
    time = list(values = as.array(as.double(x)), zone = time_zone(x)),
    duration = list(values = as.array(as.double(x, units = "secs"))),
    column_values(x, kind)
  )
  c(list(name = name, kind = kind), values)
}
