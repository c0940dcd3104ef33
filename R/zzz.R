# Declares a Python when reticulate is loaded, and again after packages that declare one themselves.
.onLoad <- function(libname, pkgname) {
  settle_under_check()
  the$python_before <- python_runs()
  on_python_start(prepare_python)
  register_tidymodels()
  register_mirai()
  if (isNamespaceLoaded("reticulate")) {
    try(declare_python(), silent = TRUE)
  }
  for (package in c("reticulate", "tensorflow", "keras3")) {
    setHook(packageEvent(package, "onLoad"), function(...) declare_python())
  }
}

# R CMD check, of this package or one that uses it.
is_under_check <- function() nzchar(Sys.getenv("_R_CHECK_PACKAGE_NAME_"))

# It wants two threads at most and nothing in the user's folders. Keras makes a folder there when it
# is imported. What is set already stays, as in processes that such a session has started.
settle_under_check <- function() {
  if (!is_under_check()) {
    return(invisible())
  }
  settings <- c(
    OMP_THREAD_LIMIT = "2", OMP_NUM_THREADS = "2",
    TF_NUM_INTRAOP_THREADS = "2", TF_NUM_INTEROP_THREADS = "2",
    GPUKERAS_XLA_CACHE = "off", GPUKERAS_CLUSTER_CACHE = "off",
    KERAS_HOME = file.path(tempdir(), "keras")
  )
  open <- settings[!nzchar(Sys.getenv(names(settings)))]
  if (length(open) > 0) do.call(Sys.setenv, as.list(open))
}
