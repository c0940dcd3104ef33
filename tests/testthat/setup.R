# TensorFlow's notes on the hardware would drown what the tests say.
withr::local_envvar(TF_CPP_MIN_LOG_LEVEL = "3", .local_envir = teardown_env())
# Else R may ask systemd for it, and warn where there is none.
if (!nzchar(Sys.getenv("TZ"))) withr::local_envvar(TZ = "UTC", .local_envir = teardown_env())
# The programs that are kept between sessions stay out of the user's own folder.
if (!nzchar(Sys.getenv("GPUKERAS_XLA_CACHE"))) {
  folder <- withr::local_tempdir("gpukeras-cache-", .local_envir = teardown_env())
  withr::local_envvar(GPUKERAS_XLA_CACHE = folder, .local_envir = teardown_env())
}
withr::defer(close_second_session(), teardown_env())
withr::defer(
  if (python_runs() && is_fast()) stop("A test that `make test-fast` runs has started Python."),
  teardown_env()
)
# What needs the core is skipped where the Python that there is does not meet its requirements.
withr::defer(
  if (python_runs() && !can_run_examples()) stop("A test has started a Python that gpukeras refuses."),
  teardown_env()
)
