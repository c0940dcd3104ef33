"""The environment that compiles for cards which are not here, where there is one."""

import os
from pathlib import Path

import pytest

PYTHON = Path(
    os.environ.get("GPUKERAS_CARDS_PYTHON") or Path(__file__).parents[3] / ".aot/bin/python"
)
needs_compiler = pytest.mark.skipif(
    not PYTHON.exists(), reason="JAX's compiler for GPUs is not here: see CONTRIBUTING"
)
