"""Imports JAX."""

from __future__ import annotations

import functools
import os
from typing import Any

from gpukeras.core.errors import RuntimeMissingError

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


@functools.cache
def jax() -> Any:
    """Returns the jax module, imported on first use; a GPU's memory then grows on demand.

    Raises:
        RuntimeMissingError: if it cannot be imported.
    """
    os.environ.setdefault(PREALLOCATE, "false")
    try:
        import jax as module
    except ImportError as error:
        raise RuntimeMissingError(
            f"JAX cannot be imported: {error}.",
            hint='Install it into the Python that is used: install_gpukeras(backend = "jax").',
        ) from error
    return module
