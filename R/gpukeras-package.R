#' @keywords internal
#' @importFrom rlang .data caller_arg caller_env %||%
"_PACKAGE"

# The session's only mutable state, declared field by field.
the <- new.env(parent = emptyenv())
the$core <- NULL # the Python module gpukeras.border, loaded on first use
