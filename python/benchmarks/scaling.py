"""What more devices bring, reckoned before they are there.

Each replica computes the gradients of its own rows, then all add theirs up. What a step loses is
the part of that exchange which is not hidden behind computing. Keras exchanges all gradients in
one piece once a step's gradients are there (TensorFlow's `bytes_per_pack` is 0), so nothing is
hidden: `overlap` is 0 unless stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ring_costs import Exchange

from gpukeras.core.options import (
    check_choice,
    check_count,
    check_fraction,
    check_number,
    check_positive,
)

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Prediction:
    """A training step on several replicas.

    Args:
        replicas: How many.
        batch_size: Rows of all replicas in a step.
        compute_s: Seconds in which each replica computes.
        reduce_s: Seconds that the exchange takes.
        step_s: Seconds of the whole step: computing, and what of the exchange is not hidden.
        efficiency: Rows a second of a replica, as a share of what one alone would train.
        samples_per_s: Rows a second of all.
    """

    replicas: int
    batch_size: int
    compute_s: float
    reduce_s: float
    step_s: float
    efficiency: float
    samples_per_s: float


@dataclass(frozen=True)
class TableRow:
    """One model on one kind of link, with ever more replicas.

    Args:
        parameters: Trained parameters of the model.
        dtype: Of the gradients exchanged.
        link: The link's name.
        predictions: One for each number of replicas.
    """

    parameters: float
    dtype: str
    link: str
    predictions: tuple[Prediction, ...]


def count_gradient_bytes(parameters: float, dtype: str = "float32") -> float:
    """Bytes that a replica gives into the exchange.

    With the policies "mixed_float16" and "mixed_bfloat16" Keras' variables stay float32, and so do
    the gradients that are exchanged.

    Args:
        parameters: Trained parameters.
        dtype: "float32", "float16" or "bfloat16".
    """
    check_choice("dtype", dtype, tuple(BYTES))
    return check_number("parameters", parameters, 0.0) * BYTES[dtype]


def predict(
    step_s: float,
    gradient_bytes: float,
    replicas: int,
    ring: Exchange,
    overlap: float = 0.0,
    batch_size: int = 1,
) -> Prediction:
    """A step where each replica keeps its batch, and the global batch grows (weak scaling).

    Args:
        step_s: Seconds of a step on one replica alone, with its input.
        gradient_bytes: What is exchanged; see `count_gradient_bytes()`.
        replicas: How many.
        ring: What an exchange costs.
        overlap: Share of the computing, 0 to 1, behind which the exchange can hide; 0 for Keras.
        batch_size: Rows of each replica.
    """
    step_s = check_positive("step_s", step_s)
    rows = check_count("batch_size", batch_size) * check_count("replicas", replicas)
    return _predict(step_s, step_s, gradient_bytes, replicas, ring, overlap, rows)


def predict_strong(
    step_s: float,
    gradient_bytes: float,
    replicas: int,
    ring: Exchange,
    overlap: float = 0.0,
    batch_size: int = 1,
    fixed_s: float = 0.0,
) -> Prediction:
    """A step where the global batch stays, and each replica computes its part (strong scaling).

    Args:
        step_s: Seconds of a step with all rows on one replica alone.
        gradient_bytes: What is exchanged.
        replicas: How many.
        ring: What an exchange costs.
        overlap: Share of the computing behind which the exchange can hide.
        batch_size: Rows of all replicas.
        fixed_s: Of `step_s`, what is the same for few rows: launching kernels, updating weights.
    """
    step_s = check_positive("step_s", step_s)
    fixed_s = check_number("fixed_s", fixed_s, 0.0, step_s)
    compute_s = fixed_s + (step_s - fixed_s) / check_count("replicas", replicas)
    rows = check_count("batch_size", batch_size)
    return _predict(step_s / replicas, compute_s, gradient_bytes, replicas, ring, overlap, rows)


def _predict(
    ideal_s: float,
    compute_s: float,
    gradient_bytes: float,
    replicas: int,
    ring: Exchange,
    overlap: float,
    rows: int,
) -> Prediction:
    """`ideal_s` is what the step would take if replicas cost nothing."""
    hidden_s = check_number("overlap", overlap, 0.0, 1.0) * compute_s
    reduce_s = ring.reduce_s(replicas, gradient_bytes)
    step_s = compute_s + max(0.0, reduce_s - hidden_s)
    return Prediction(
        replicas, rows, compute_s, reduce_s, step_s, min(1.0, ideal_s / step_s), rows / step_s
    )


def find_step_s(
    gradient_bytes: float,
    replicas: int,
    ring: Exchange,
    efficiency: float = 0.9,
    overlap: float = 0.0,
) -> float:
    """How long a replica must compute in a step so that the exchange costs no more than allowed.

    The larger its batch, the longer it computes; the exchange stays what it is.

    Args:
        gradient_bytes: What is exchanged.
        replicas: How many.
        ring: What an exchange costs.
        efficiency: What is wanted of `predict()`, between 0 and 1.
        overlap: Share of the computing behind which the exchange can hide.

    Returns:
        Seconds; 0 for one replica.
    """
    lost = 1.0 / check_fraction("efficiency", efficiency) - 1.0
    hidden = check_number("overlap", overlap, 0.0, 1.0)
    return ring.reduce_s(replicas, gradient_bytes) / (lost + hidden)


def predict_table(
    parameters: Sequence[float],
    links: Mapping[str, Exchange],
    replicas: Sequence[int],
    step_s: float,
    dtypes: Sequence[str] = ("float32",),
    overlap: float = 0.0,
) -> list[TableRow]:
    """`predict()` for every model, kind of gradient, link and number of replicas.

    Args:
        parameters: Trained parameters of each model.
        links: What an exchange costs, by name.
        replicas: Numbers of replicas.
        step_s: Seconds of a step on one replica alone, the same for every model.
        dtypes: Of the gradients.
        overlap: Share of the computing behind which the exchange can hide.
    """
    rows = []
    for count in parameters:
        for dtype in dtypes:
            size = count_gradient_bytes(count, dtype)
            for name, link in links.items():
                found = tuple(predict(step_s, size, each, link, overlap) for each in replicas)
                rows.append(TableRow(count, dtype, name, found))
    return rows
