"""Lists TensorFlow's GPUs: `python -m gpukeras.diagnostics.probes.listing`.

It runs as a child process, because importing TensorFlow opens the driver: a bad driver may hang or
abort the process, and only the parent can read its log. Listing starts no device. It prints one
line of JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gpukeras.backend import cuda_preload, runtime
from gpukeras.backend.devices import capability_text, short_name
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


def describe_gpu(gpu: Any) -> dict[str, str]:
    """Returns the device name, product name and compute capability of a physical GPU."""
    details = runtime.device_details(gpu)
    return {
        "name": short_name(gpu),
        "label": str(details.get("device_name", "")),
        "capability": capability_text(details),
    }


if __name__ == "__main__":
    print(json.dumps(list_gpus()), flush=True)
