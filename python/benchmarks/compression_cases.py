"""Compresses models of real digits; one record a seed:  compression_cases.py CASE SEED...

Every seed is another random split into rows to train on and rows to evaluate on, other first
weights, and another order of rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from compression_digits import (
    make_conv,
    make_dense,
    open_digits,
    open_rows,
    score,
    split_digits,
    train,
)

from gpukeras.compression.distillation import distill
from gpukeras.compression.pruning import prune
from gpukeras.compression.quantization import quantize
from gpukeras.compression.report import CompressionReport
from gpukeras.models.clone import copy_model
from gpukeras.training import evaluate

FIRST, MORE = 15, 10  # epochs of a model before it is compressed, and of the fine-tuning
WIDE, FILTERS, DENSE, SMALL = (2048, 2048), (64, 128), (512, 512), (32,)
TEMPERATURE, ALPHA, PATIENT, HASTY = 3.0, 0.5, 100, 20  # of a distillation
FIT = {"fit": {"engine": "graph_loop"}}


def rate(model: Any, data: Any) -> float:
    """Accuracy on the rows that a dataset holds out, in points."""
    return 100 * float(evaluate.evaluate(model, data, "validation")["metrics"]["accuracy"])


def describe(report: CompressionReport) -> dict[str, Any]:
    """Both models' figures as plain values, accuracies in points."""
    found = {side: asdict(getattr(report, side)) for side in ("before", "after")}
    for one in found.values():
        one["accuracy"] = 100 * one["metrics"]["accuracy"]
    return found


def prune_weights(seed: int) -> dict[str, Any]:
    """80 % zeros; also the same model trained for as long without any pruning."""
    data = open_digits(seed)
    model = train(make_conv(seed), data, FIRST)
    found = prune(model, data, {"sparsity": 0.8, "epochs": MORE, **FIT})["report"]
    longer = rate(train(copy_model(model), data, MORE), data)
    return {**describe(found), "longer": longer}


def take_units(make: Callable[[int], Any], rows: int) -> Callable[[int], dict[str, Any]]:
    """Half the FLOPs, timed with so many rows a batch."""

    def run(seed: int) -> dict[str, Any]:
        data = open_digits(seed)
        options = {"structured": True, "sparsity": 0.5, "epochs": MORE, "batch_size": rows, **FIT}
        return describe(prune(train(make(seed), data, FIRST), data, options)["report"])

    return run


def use_int8(seed: int) -> dict[str, Any]:
    """Dense layers alone: Keras has no int8 for convolutions."""
    data = open_digits(seed)
    model = train(make_dense(seed, DENSE), data, FIRST)
    return describe(quantize(model, data, {"mode": "int8"})["report"])


def teach(epochs: int, wrong: float = 0.0) -> Callable[[int], dict[str, Any]]:
    """A student taught, and the same one alone: the same first weights, rows, order and epochs.

    The teacher knows more than the labels of these rows tell: it was trained on them moved by a
    pixel as well (as Hinton et al. 2015 did), and is made of convolutions.

    Args:
        epochs: Of both students.
        wrong: Share of the labels to learn from that are drawn at random, for all three alike.
    """

    def run(seed: int) -> dict[str, Any]:
        rows, others = split_digits(seed, 0.5)
        shifted = open_rows(rows, seed, shifted=True, wrong=wrong)
        teacher = train(make_conv(seed, (16, 32), 64), shifted, 6)
        data, student = open_rows(rows, seed, wrong=wrong), make_dense(seed, SMALL, rate=0.01)
        options = {"temperature": TEMPERATURE, "alpha": ALPHA, "epochs": epochs, **FIT}
        taught = distill(teacher, data, options, student=student)["model"]
        models = {"teacher": teacher, "taught": taught, "alone": train(student, data, epochs)}
        return {name: score(model, others) for name, model in models.items()}

    return run


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "prune": prune_weights,
    "conv": take_units(lambda seed: make_conv(seed, FILTERS), 128),
    "wide": take_units(lambda seed: make_dense(seed, WIDE), 256),
    "small": take_units(lambda seed: make_dense(seed, SMALL), 32),
    "int8": use_int8,
    "distill": teach(PATIENT),
    "distill_wrong": teach(PATIENT, wrong=0.2),
    "distill_short": teach(HASTY),
}


if __name__ == "__main__":
    print(json.dumps([CASES[sys.argv[1]](int(seed)) for seed in sys.argv[2:]]))
