# An S3 server for tests: moto's, a process of its own on a free port of this computer, which ends
# with the test. Credentials of it are in the environment meanwhile. Gives its address.
local_s3 <- function(env = parent.frame()) {
  python <- python_path()
  asked <- "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
  modules <- c("moto", "flask", "flask_cors")
  found <- system2(python, c("-c", shQuote(asked), modules), stdout = FALSE, stderr = FALSE)
  skip_if(found != 0, "moto, an S3 server in Python, is not installed")
  port <- free_port()
  # R's library path may hold another libssl than Python's.
  server <- callr::process$new(
    python, c("-m", "moto.server", "-H", "127.0.0.1", "-p", as.character(port)),
    env = c("current", LD_LIBRARY_PATH = "")
  )
  withr::defer(server$kill(), envir = env)
  withr::local_envvar(
    AWS_ENDPOINT_URL = sprintf("http://127.0.0.1:%d", port), AWS_ACCESS_KEY_ID = "key-of-tests",
    AWS_SECRET_ACCESS_KEY = "open-sesame", AWS_EC2_METADATA_DISABLED = "true", .local_envir = env
  )
  for (attempt in 1:300) {
    if (answers_at(port)) {
      return(sprintf("http://127.0.0.1:%d", port))
    }
    if (!server$is_alive()) break
    Sys.sleep(0.1)
  }
  stop("moto's server did not start")
}

answers_at <- function(port) {
  tryCatch(
    {
      close(suppressWarnings(socketConnection("127.0.0.1", port, timeout = 1)))
      TRUE
    },
    error = function(condition) FALSE
  )
}

# Copies files into a bucket, under their names.
put_objects <- function(url, bucket, paths) {
  fs <- reticulate::import("pyarrow.fs")
  store <- fs$S3FileSystem(
    access_key = "key-of-tests", secret_key = "open-sesame", endpoint_override = url,
    region = "us-east-1", allow_bucket_creation = TRUE
  )
  store$create_dir(bucket)
  for (path in paths) {
    fs$copy_files(path, paste0(bucket, "/", basename(path)), destination_filesystem = store)
  }
}
