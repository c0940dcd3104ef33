# Declares a Python when reticulate is loaded, and again after packages that declare one themselves.
.onLoad <- function(libname, pkgname) {
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
