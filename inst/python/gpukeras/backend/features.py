"""Names what needs another backend of Keras than its own, in the user's words."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from gpukeras.backend import runtime
from gpukeras.core.errors import BackendError
from gpukeras.system import pip

SESSION = 'start a new session with gpu_setup(backend = "{}")'
INSTALL = f"install TensorFlow beside JAX: install_gpukeras(), or {pip.install('tensorflow-cpu')}"


@dataclass(frozen=True)
class Feature:
    """What a user asks for.

    Args:
        name: The function or argument, at the start of a sentence.
        instead: What to do without TensorFlow, or "".
        beside: Whether TensorFlow need only be installed; otherwise Keras must run on `backend`.
        backend: The backend that it needs.
    """

    name: str
    instead: str = ""
    beside: bool = False
    backend: str = "tensorflow"


FEATURES = {
    "cluster": Feature("gpu_cluster()", "Train on one device"),
    "devices": Feature("`devices`, for more than one device,", "Leave it out"),
    "images": Feature("Reading image files", beside=True),
    "litert": Feature('gpu_export(format = "litert")'),
    "map": Feature("`map` of gpu_dataset()", "Make the function a layer of the model"),
    "onnx": Feature('gpu_export(format = "onnx")'),
    "pipeline": Feature("A tf.data pipeline in gpu_dataset()", beside=True),
    "pipeline as it is": Feature(
        "A tf.data pipeline of texts or of rows whose shape varies",
        "Give gpu_dataset() a function that makes batches",
    ),
    "records": Feature("Reading TFRecord files", beside=True),
    "savedmodel": Feature('gpu_export(format = "savedmodel")'),
    "stablehlo": Feature('gpu_export(format = "stablehlo")', backend="jax"),
    "tensorboard": Feature("`tensorboard` of gpu_fit()", beside=True),
    "text": Feature("`text` of gpu_dataset()", beside=True),
    "texts": Feature("A model of texts", "Encode the texts by gpu_dataset(text = )"),
}


def require_feature(key: str) -> None:
    """Refuses what needs another backend than Keras', or TensorFlow beside JAX.

    Args:
        key: A key of `FEATURES`.

    Raises:
        BackendError: naming the feature, and what to do.
    """
    feature = FEATURES[key]
    own = runtime.backend()
    if own == feature.backend or (feature.beside and find_spec("tensorflow") is not None):
        return
    wanted = f"Keras on {runtime.FRAMEWORKS[feature.backend]}"
    needs = "TensorFlow, which is not installed" if feature.beside else wanted
    fix = INSTALL if feature.beside else SESSION.format(feature.backend)
    hint = f"{feature.instead}, or {fix}." if feature.instead else f"{fix[0].upper()}{fix[1:]}."
    here = runtime.FRAMEWORKS.get(own, own)
    raise BackendError(f"{feature.name} needs {needs}, and Keras runs on {here} here.", hint=hint)
