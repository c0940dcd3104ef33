"""Lists the GPUs of Keras' backend: `python -m gpukeras.diagnostics.probes.listing`.

It runs as a child process, because importing TensorFlow opens the driver: a bad driver may hang or
abort the process, and only the parent can read its log. Listing starts no device of TensorFlow, and
all of JAX. It prints one
line of JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gpukeras.backend import cuda_preload, runtime
from gpukeras.backend.devices import capability_text, short_name
from gpukeras.backend.jax_module import jax
from gpukeras.core.errors import RuntimeMissingError


def list_gpus() -> dict[str, Any]:
    """Returns TensorFlow's version, its GPUs (`name`, `label`, `capability`) and the preload."""
    try:
        version = runtime.tensorflow().__version__
    except RuntimeMissingError as error:
        return {"gpus": None, "version": "", "error": error.message}
    return {
        "gpus": [describe_gpu(gpu) for gpu in runtime.physical_devices("GPU")],
        "version": version,
        "error": "",
        "preload": None if cuda_preload.done is None else asdict(cuda_preload.done),
    }


def list_jax_gpus() -> dict[str, Any]:
    """Starts JAX and returns its version and GPUs; `gpus` is None if it cannot be imported."""
    try:
        version = jax().__version__
    except Exception as error:  # JAX raises RuntimeError for a jaxlib of another version
        message = getattr(error, "message", f"{type(error).__name__}: {error}")
        return {"gpus": None, "version": "", "error": message}
    try:
        jax().devices()
    except Exception as error:  # a plugin that cannot start keeps JAX from computing at all
        return {"gpus": [], "version": version, "error": f"{type(error).__name__}: {error}"}
    gpus = [describe_gpu(gpu) for gpu in runtime.physical_devices("GPU")]
    return {"gpus": gpus, "version": version, "error": ""}


def describe_gpu(gpu: Any) -> dict[str, str]:
    """Returns the device name, product name and compute capability of a physical GPU."""
    details = runtime.device_details(gpu)
    return {
        "name": short_name(gpu),
        "label": str(details.get("device_name", "")),
        "capability": capability_text(details),
    }


if __name__ == "__main__":
    found = list_jax_gpus() if runtime.backend() == "jax" else list_gpus()
    print(json.dumps(found), flush=True)
