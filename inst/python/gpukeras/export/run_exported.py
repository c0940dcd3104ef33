"""Runs an exported model: `python -m gpukeras.export.run_exported FORMAT MODEL ROWS OUTPUTS`.

It is a separate process without the session's classes, so the file must be self-contained, and a
crash of another runtime does not end the session. ROWS is a NumPy file with an array for each
input, by place, and their names; OUTPUTS is a file for an array of each output. The process prints
one line of JSON: the program that ran the model, and its inputs and outputs.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.half_precision import widen_half
from gpukeras.core.messages import count_of
from gpukeras.export.stablehlo import call_stablehlo, read_stablehlo

Rows = Mapping[str, np.ndarray]
Ran = tuple[str, Sequence[np.ndarray], Sequence[str]]  # program, outputs, names of inputs


def run_saved_model(path: str, rows: Rows) -> Ran:
    """Runs a SavedModel folder with TensorFlow."""
    tf = runtime.tensorflow()
    serve = tf.saved_model.load(path).signatures["serving_default"]
    inputs = sorted(serve.structured_input_signature[1])
    arguments = match_inputs(inputs, rows)
    outputs = serve(**{name: tf.constant(values) for name, values in arguments.items()})
    return f"TensorFlow {tf.__version__}", order_outputs(outputs), inputs


def run_onnx(path: str, rows: Rows) -> Ran:
    """Runs an ONNX file on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = [each.name for each in session.get_inputs()]
    outputs = session.run(None, match_inputs(inputs, rows))
    return f"onnxruntime {onnxruntime.__version__}", outputs, inputs


def run_litert(path: str, rows: Rows) -> Ran:
    """Runs a LiteRT file; row by row if it takes one row at a time."""
    runner, interpreter = open_litert(path)
    run = interpreter.get_signature_runner()
    details = run.get_input_details()
    arguments = match_inputs(list(details), rows)
    if all(each["shape_signature"][0] == -1 for each in details.values()):
        return runner, order_outputs(run(**arguments)), list(details)
    count = len(next(iter(arguments.values())))
    parts = [
        order_outputs(run(**{name: values[row : row + 1] for name, values in arguments.items()}))
        for row in range(count)
    ]
    return runner, [np.concatenate(outputs) for outputs in zip(*parts, strict=True)], list(details)


def open_litert(path: str) -> tuple[str, Any]:
    """Returns an interpreter, TensorFlow's if there is no other, and its name with the version."""
    if importlib.util.find_spec("ai_edge_litert") is not None:
        from ai_edge_litert.interpreter import Interpreter

        return f"ai-edge-litert {importlib.metadata.version('ai-edge-litert')}", Interpreter(path)
    tf = runtime.tensorflow()
    return f"TensorFlow Lite {tf.__version__}", tf.lite.Interpreter(path)


def run_stablehlo(path: str, rows: Rows) -> Ran:
    """Runs a StableHLO file with JAX."""
    exported, inputs = read_stablehlo(path)
    outputs = call_stablehlo(exported, match_inputs(inputs, rows))
    return f"JAX {importlib.metadata.version('jax')}", outputs, inputs


RUNNERS = {
    "savedmodel": run_saved_model,
    "onnx": run_onnx,
    "litert": run_litert,
    "stablehlo": run_stablehlo,
}


def match_inputs(inputs: Sequence[str], rows: Rows) -> dict[str, np.ndarray]:
    """Returns the rows of each of the file's inputs: by name, or by place if the names differ."""
    if len(inputs) != len(rows):
        raise ValueError(f"it has {count_of(len(inputs), 'input')}, not {len(rows)}")
    if set(inputs) == set(rows):
        return {name: rows[name] for name in inputs}
    return dict(zip(inputs, rows.values(), strict=True))


def order_outputs(outputs: Mapping[str, Any]) -> list[np.ndarray]:
    """Returns outputs in the model's order: by number, or by name as Keras flattens dicts."""

    def place(name: str) -> tuple[int, str]:
        number = re.fullmatch(r"output_(\d+)", name)
        return (int(number[1]) if number else -1, name)

    return [np.asarray(outputs[name]) for name in sorted(outputs, key=place)]


def run_exported(form: str, path: str, rows_path: str, outputs_path: str) -> dict[str, Any]:
    """Runs the model on the rows; returns `{runner, inputs, error}`, or an error alone.

    Args:
        form: The format's name.
        path: The exported file or folder.
        rows_path: File with the rows.
        outputs_path: File for the outputs.
    """
    with np.load(rows_path, allow_pickle=False) as file:
        names = [str(name) for name in file["names"]]
        rows = {name: file[str(place)] for place, name in enumerate(names)}
    try:
        runner, outputs, inputs = RUNNERS[form](path, rows)
    except Exception as error:  # the runtime may raise anything; the error is the result
        said = " ".join(str(error).split())
        return {"error": f"{type(error).__name__}: {said[:300]}"}
    arrays: dict[str, Any] = {
        str(place): widen_half(np.asarray(values)) for place, values in enumerate(outputs)
    }
    np.savez(outputs_path, **arrays)
    return {"runner": runner, "inputs": list(inputs), "error": ""}


if __name__ == "__main__":
    print(json.dumps(run_exported(*sys.argv[1:5])), flush=True)
