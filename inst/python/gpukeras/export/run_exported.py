"""Runs an exported model: `python -m gpukeras.export.run_exported FORMAT MODEL ROWS OUTPUTS`.

In a process of its own, which has none of the session's classes: the file must do by itself, and
what crashes in another's runtime does not take the session along. ROWS is a file of NumPy's with
an array for each input, by place, and their names; OUTPUTS gets an array for each output. Prints
one line of JSON: which program ran the model, and its inputs and outputs.
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
from gpukeras.core.messages import count_of

Rows = Mapping[str, np.ndarray]
Ran = tuple[str, Sequence[np.ndarray], Sequence[str]]  # by which program, outputs, names of inputs


def run_saved_model(path: str, rows: Rows) -> Ran:
    """A folder of TensorFlow's."""
    tf = runtime.tensorflow()
    serve = tf.saved_model.load(path).signatures["serving_default"]
    inputs = sorted(serve.structured_input_signature[1])
    given = match_inputs(inputs, rows)
    outputs = serve(**{name: tf.constant(values) for name, values in given.items()})
    return f"TensorFlow {tf.__version__}", order_outputs(outputs), inputs


def run_onnx(path: str, rows: Rows) -> Ran:
    """A file of ONNX, on the processor."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = [each.name for each in session.get_inputs()]
    outputs = session.run(None, match_inputs(inputs, rows))
    return f"onnxruntime {onnxruntime.__version__}", outputs, inputs


def run_litert(path: str, rows: Rows) -> Ran:
    """A file of LiteRT; row by row where it takes one at a time."""
    runner, interpreter = open_litert(path)
    run = interpreter.get_signature_runner()
    details = run.get_input_details()
    given = match_inputs(list(details), rows)
    if all(each["shape_signature"][0] == -1 for each in details.values()):
        return runner, order_outputs(run(**given)), list(details)
    count = len(next(iter(given.values())))
    parts = [
        order_outputs(run(**{name: values[row : row + 1] for name, values in given.items()}))
        for row in range(count)
    ]
    return runner, [np.concatenate(outputs) for outputs in zip(*parts, strict=True)], list(details)


def open_litert(path: str) -> tuple[str, Any]:
    """An interpreter, TensorFlow's where there is no other, and its name with the version."""
    if importlib.util.find_spec("ai_edge_litert") is not None:
        from ai_edge_litert.interpreter import Interpreter

        return f"ai-edge-litert {importlib.metadata.version('ai-edge-litert')}", Interpreter(path)
    tf = runtime.tensorflow()
    return f"TensorFlow Lite {tf.__version__}", tf.lite.Interpreter(path)


RUNNERS = {"savedmodel": run_saved_model, "onnx": run_onnx, "litert": run_litert}


def match_inputs(inputs: Sequence[str], rows: Rows) -> dict[str, np.ndarray]:
    """The rows of each of the file's inputs: by name, or by place where the names are others."""
    if len(inputs) != len(rows):
        raise ValueError(f"it has {count_of(len(inputs), 'input')}, not {len(rows)}")
    if set(inputs) == set(rows):
        return {name: rows[name] for name in inputs}
    return dict(zip(inputs, rows.values(), strict=True))


def order_outputs(outputs: Mapping[str, Any]) -> list[np.ndarray]:
    """Outputs in the order of the model's: by number, or by name as Keras flattens dicts."""

    def place(name: str) -> tuple[int, str]:
        number = re.fullmatch(r"output_(\d+)", name)
        return (int(number[1]) if number else -1, name)

    return [np.asarray(outputs[name]) for name in sorted(outputs, key=place)]


def run_exported(form: str, path: str, rows_path: str, outputs_path: str) -> dict[str, Any]:
    """Runs the model on the rows; `{runner, inputs, error}`, or an error alone."""
    with np.load(rows_path, allow_pickle=False) as file:
        names = [str(name) for name in file["names"]]
        rows = {name: file[str(place)] for place, name in enumerate(names)}
    try:
        runner, outputs, inputs = RUNNERS[form](path, rows)
    except Exception as error:  # whatever another's runtime raises is the answer
        said = " ".join(str(error).split())
        return {"error": f"{type(error).__name__}: {said[:300]}"}
    arrays: dict[str, Any] = {
        str(place): np.asarray(values) for place, values in enumerate(outputs)
    }
    np.savez(outputs_path, **arrays)
    return {"runner": runner, "inputs": list(inputs), "error": ""}


if __name__ == "__main__":
    print(json.dumps(run_exported(*sys.argv[1:5])), flush=True)
