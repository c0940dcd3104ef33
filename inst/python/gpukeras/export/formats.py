"""The export formats: their packages, and how their files are run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpukeras.backend.features import require_feature
from gpukeras.core.errors import RuntimeMissingError, SpecError
from gpukeras.core.options import check_choice
from gpukeras.system import pip

Code = Callable[[str, Sequence[str]], list[str]]  # lines of Python, from a path and input names


@dataclass(frozen=True)
class Format:
    """An export format.

    Args:
        title: Its name for messages.
        keras: Keras' name for it; "" if gpukeras writes it.
        suffix: Suffix of its files, or "" for a folder.
        needs: Python packages that convert and run it: name to import, pip's requirement. The
            versions are those tested with TensorFlow 2.21, Keras 3.15 and NumPy 1.26.
        code: Returns the lines of Python that run its file.
    """

    title: str
    keras: str
    suffix: str
    needs: tuple[tuple[str, str], ...]
    code: Code


def _code_saved_model(path: str, inputs: Sequence[str]) -> list[str]:
    arguments = ", ".join(f"{name}=rows" for name in inputs)
    return [
        "import tensorflow as tf",
        f"model = tf.saved_model.load({path!r})",
        f'model.signatures["serving_default"]({arguments})',
    ]


def _code_onnx(path: str, inputs: Sequence[str]) -> list[str]:
    arguments = ", ".join(f"{name!r}: rows" for name in inputs)
    return [
        "import onnxruntime",
        f"session = onnxruntime.InferenceSession({path!r})",
        f"session.run(None, {{{arguments}}})",
    ]


def _code_litert(path: str, inputs: Sequence[str]) -> list[str]:
    arguments = ", ".join(f"{name}=rows" for name in inputs)
    return [
        "from ai_edge_litert.interpreter import Interpreter",
        f"run = Interpreter({path!r}).get_signature_runner()",
        f"run({arguments})",
    ]


def _code_stablehlo(path: str, inputs: Sequence[str]) -> list[str]:
    arguments = ", ".join(f"{name!r}: rows" for name in inputs)
    return [
        "from jax import export",
        f'model = export.deserialize(bytearray(open({path!r}, "rb").read()))',
        f"model.call({{{arguments}}})",
    ]


FORMATS = {
    "savedmodel": Format("SavedModel", "tf_saved_model", "", (), _code_saved_model),
    "onnx": Format(
        "ONNX",
        "onnx",
        ".onnx",
        (
            ("tf2onnx", "tf2onnx>=1.17"),
            ("onnx", "onnx>=1.17"),
            ("onnxruntime", "onnxruntime>=1.20"),
        ),
        _code_onnx,
    ),
    "litert": Format("LiteRT", "litert", ".tflite", (), _code_litert),
    "stablehlo": Format(
        "StableHLO", "", ".stablehlo", (("flatbuffers", "flatbuffers>=23"),), _code_stablehlo
    ),
}
OTHERS = (".keras", ".h5", ".onnx", ".tflite", ".stablehlo")  # not allowed for a folder


def choose_format(name: str, path: str) -> str:
    """Returns the format's name; "auto" uses the path's suffix.

    Raises:
        SpecError: for an unknown format, or a path that has the suffix of another one.
    """
    check_choice("format", name, ("auto", *FORMATS))
    if not isinstance(path, str) or not path:
        raise SpecError("`path` must be a path.", arg="path")
    suffix = Path(path).suffix.lower()
    if name == "auto":
        by_suffix = {form.suffix: key for key, form in FORMATS.items() if form.suffix}
        name = by_suffix.get(suffix, "savedmodel")
    form = FORMATS[name]
    if form.suffix and suffix != form.suffix:
        raise SpecError(
            f'`path` must end with "{form.suffix}" for {form.title}, not "{suffix}".', arg="path"
        )
    if not form.suffix and suffix in OTHERS:
        hint = "gpu_save() writes .keras files." if suffix == ".keras" else "Give `format`."
        raise SpecError(
            f"`path` must be a folder for {form.title}, not a {suffix} file.", hint=hint, arg="path"
        )
    return name


def open_format(name: str) -> Format:
    """Returns a format that Keras' backend and the installed packages can write.

    Args:
        name: A key of `FORMATS`.

    Raises:
        BackendError: if Keras runs on another backend.
        RuntimeMissingError: see `check_packages()`.
    """
    require_feature(name)
    check_packages(FORMATS[name])
    return FORMATS[name]


def check_packages(form: Format) -> None:
    """Checks that the packages of a format are installed.

    Raises:
        RuntimeMissingError: naming the missing packages, with the command that installs them.
    """
    missing = [need for need in form.needs if importlib.util.find_spec(need[0]) is None]
    if missing:
        names = ", ".join(name for name, _ in missing)
        requested = " ".join(f'"{requirement}"' for _, requirement in missing)
        raise RuntimeMissingError(
            f"{form.title} needs Python packages that are not installed: {names}.",
            hint=f"Install them into the Python that is used: {pip.install(requested)}.",
            arg="format",
        )
