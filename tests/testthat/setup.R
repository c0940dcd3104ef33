# TensorFlow's notes on the hardware would drown what the tests say.
withr::local_envvar(TF_CPP_MIN_LOG_LEVEL = "3", .local_envir = teardown_env())
# Else R may ask systemd for it, and warn where there is none.
if (!nzchar(Sys.getenv("TZ"))) withr::local_envvar(TZ = "UTC", .local_envir = teardown_env())
# The programs that XLA keeps between sessions stay out of the user's own folder.
if (!nzchar(Sys.getenv("GPUKERAS_XLA_CACHE"))) {
  withr::local_envvar(
    GPUKERAS_XLA_CACHE = withr::local_tempdir("gpukeras-xla-", .local_envir = teardown_env()),
    .local_envir = teardown_env()
  )
}
withr::defer(close_second_session(), teardown_env())
