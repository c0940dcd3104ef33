"""Lists TensorFlow's GPUs: `python -m gpukeras.diagnostics.probes.listing`.

In a process of its own, because importing TensorFlow opens the driver: a bad one may hang or end
the process, and its log can be read only from outside. Listing starts no device. Prints one line of
JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gpukeras.backend import cuda_preload, runtime
from gpukeras.backend.devices import capability_text, short_name
from gpukeras.core.errors import RuntimeMissingError


def list_gpus() -> dict[str, Any]:
    """TensorFlow's version, its GPUs (`name`, `label`, `capability`), and what was preloaded."""
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
    """Name, maker's name and compute capability of a physical GPU."""
    details = runtime.device_details(gpu)
    return {
        "name": short_name(gpu),
        "label": str(details.get("device_name", "")),
        "capability": capability_text(details),
    }


if __name__ == "__main__":
    print(json.dumps(list_gpus()), flush=True)
