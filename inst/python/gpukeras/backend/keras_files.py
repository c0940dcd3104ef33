"""Loads files of Keras models in the precision that they were saved in.

A file tells the policy of each layer, and of the model; Keras gives the model the session's
instead, by which `compile()` decides on loss scaling. So a model of float16 would train without it
under another policy, and one of float32 with it, and both would lose their optimizer's state.
"""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime

SETTINGS = "config.json"


def load_model(path: Path, **options: Any) -> Any:
    """Loads a model as Keras' function of this name, in its own precision."""
    with runtime.dtype_policy_scope(read_policy(read_settings(path))):
        return runtime.keras().saving.load_model(str(path), **options)


def read_settings(path: Path) -> Any:
    """Returns the settings, or None if they are unreadable; Keras then reports the error."""
    damaged = suppress(OSError, KeyError, ValueError, zipfile.BadZipFile)
    with damaged, zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(SETTINGS))
    return None


def read_policy(settings: Any) -> str | None:
    """Returns the name of a model's policy from its settings, or None if they do not tell one."""
    try:
        policy = settings["config"]["dtype"]
        name = policy if isinstance(policy, str) else policy["config"]["name"]
    except (KeyError, TypeError):
        return None
    return str(name)
