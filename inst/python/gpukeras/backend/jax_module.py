"""Imports JAX."""

from __future__ import annotations

import functools
import os
from typing import Any

from gpukeras.backend import xla_cache
from gpukeras.backend.import_errors import importing

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"


@functools.cache
def jax() -> Any:
    """Returns the jax module, imported on first use; a GPU's memory then grows on demand.

    It keeps its programs on disk, see `xla_cache`.

    Raises:
        RuntimeMissingError: if it cannot be imported.
    """
    os.environ.setdefault(PREALLOCATE, "false")
    hint = 'Install it into the Python that is used: install_gpukeras(backend = "jax").'
    with importing("JAX", "jax", hint):  # of another version than jaxlib it raises a RuntimeError
        import jax as module
    xla_cache.prepare_jax_cache(module)
    return module


def jax_export() -> Any:
    """Returns JAX's module that writes and reads programs as files."""
    jax()
    from jax import export

    return export


def jax_topologies() -> Any:
    """Returns JAX's module that describes devices that are not here, to compile for them."""
    jax()
    from jax.experimental import topologies

    return topologies
