"""gpukeras: proof that the GPU works, and Keras training that keeps it busy.

The Python core of the R package gpukeras. R enters through `api.invoke()` only.
Importing this package before TensorFlow lets TensorFlow find the CUDA libraries of its wheels.
"""

from gpukeras.backend.import_hook import await_tensorflow
from gpukeras.core.errors import (
    BackendError,
    CheckpointError,
    ClusterError,
    CompressionError,
    DataError,
    DeviceBusyError,
    ForkError,
    GeneratorError,
    GpuKerasError,
    ModelError,
    NoDeviceError,
    OutOfMemoryError,
    PreemptedError,
    RuntimeMissingError,
    ServiceError,
    SpecError,
)

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "CheckpointError",
    "ClusterError",
    "CompressionError",
    "DataError",
    "DeviceBusyError",
    "ForkError",
    "GeneratorError",
    "GpuKerasError",
    "ModelError",
    "NoDeviceError",
    "OutOfMemoryError",
    "PreemptedError",
    "RuntimeMissingError",
    "ServiceError",
    "SpecError",
]

await_tensorflow()
