# TensorFlow's notes on the hardware would drown what the tests say.
withr::local_envvar(TF_CPP_MIN_LOG_LEVEL = "3", .local_envir = teardown_env())
# Else R may ask systemd for it, and warn where there is none.
if (!nzchar(Sys.getenv("TZ"))) withr::local_envvar(TZ = "UTC", .local_envir = teardown_env())
