"""Options of networks for tables, and the defaults of each kind.

References:
    Gorishniy, Y. et al. (2021). Revisiting deep learning models for tabular data. arXiv:2106.11959.
    Wang, R. et al. (2021). DCN V2: improved deep & cross network. arXiv:2008.13535.
    Gorishniy, Y., Kotelnikov, A. & Babenko, A. (2025). TabM: advancing tabular deep learning with
    parameter-efficient ensembling. arXiv:2410.24210.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.core.options import (
    MOST_SEED,
    Spec,
    check_choice,
    check_count,
    check_number,
    check_text,
    option,
)

KINDS = ("tabm", "mlp", "resnet", "dcn", "ft_transformer")
NUMERIC = ("piecewise_linear", "none", "periodic")
# rtdl_revisiting_models' defaults of the transformer for 1 to 6 blocks.
FT_UNITS = (96, 128, 192, 256, 320, 384)
FT_DROPOUT = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
# Learning rate and weight decay of AdamW: of rtdl_revisiting_models for the transformer, of the
# package tabm for TabM; the others have Keras' learning rate and the transformer's decay.
RATES = {"ft_transformer": (1e-4, 1e-5), "tabm": (2e-3, 3e-4)}
OTHER_RATES = (1e-3, 1e-5)
# TabM of the package's sizes (512 units, 32 members) takes 80 ms of a core for a step of 64 rows of
# 16 numbers: 45 ms are its matrix products, at the core's peak of 90 GFLOP/s, 15 ms are dropout.
# With 128 units and 8 members a step takes 5 ms, and on seven tables of 1,400 training rows its
# loss was 2 % below that of "mlp" in the mean. Larger tables were not tried: there it has the
# package's sizes.
FEW_ROWS = 10_000
MEMBERS, FEW_MEMBERS = 32, 8
UNITS, FEW_UNITS = 512, 128
FEW_RATES = (4e-3, 3e-4)


def _check_size(arg: str, value: Any) -> int:
    return check_count(arg, value, 1, 600)


@dataclass(frozen=True)
class TabularSpec(Spec):
    """Options of a network for tables; None is the default of the kind, see `settle()`.

    Args:
        kind: One of `KINDS`.
        units: Width of the blocks.
        blocks: Number of blocks; for "dcn" of cross layers, and of the dense layers after them.
        dropout: Share of a block's hidden values dropped in training, in [0, 1).
        embeddings: Numbers per level of a factor, or "auto", see `layout.embedding_size()`.
        numeric_embeddings: One of `NUMERIC`; "piecewise_linear" made perceptrons, residual
            networks and transformers better in most tables of arXiv:2203.05556.
        bins: Most bins of a number for "piecewise_linear" (48 in arXiv:2203.05556).
        members: Members of "tabm"; None is 8 below `FEW_ROWS` training rows, otherwise 32.
        heads: Attention heads of "ft_transformer"; they divide `units`.
        rank: Rank of the cross layers' matrices for "dcn", or None for full matrices.
        optimizer: Keras optimizer name.
        learning_rate: Its learning rate.
        weight_decay: Its weight decay; optimizers without one in Keras take 0 only.
        seed: Seed of initial weights and dropout.
        family: A name or options of a family, see `families.spec`; None for the labels' own.
    """

    kind: str = option("tabm", check_choice, KINDS)
    units: int | None = option(None, check_count, 1, 16384)
    blocks: int | None = option(None, check_count, 1, 64)
    dropout: float | None = option(None, check_number, 0.0, 0.99)
    embeddings: str | int = option("auto", _check_size)
    numeric_embeddings: str = option("piecewise_linear", check_choice, NUMERIC)
    bins: int = option(48, check_count, 2, 1024)
    members: int | None = option(None, check_count, 1, 1024)
    heads: int = option(8, check_count, 1, 256)
    rank: int | None = option(None, check_count, 1, 16384)
    optimizer: str = option("adamw", check_text, "the name of a Keras optimizer")
    learning_rate: float | None = option(None, check_number, 1e-12, 1e3)
    weight_decay: float | None = option(None, check_number, 0.0, 10.0)
    seed: int = option(0, check_count, 0, MOST_SEED)
    family: Any = None


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network's blocks.

    Args:
        units: Width of the blocks.
        blocks: Number of blocks.
        dropout: Share of a block's hidden values dropped in training.
        members: Members of "tabm".
    """

    units: int
    blocks: int
    dropout: float
    members: int = MEMBERS


def settle(spec: TabularSpec, rows: int | None = None) -> Sizes:
    """Returns the sizes: those given, otherwise the kind's.

    Those of "resnet" are of rtdl_revisiting_models' documentation, of "ft_transformer" and "tabm"
    the packages' defaults, but for the smaller TabM of few rows; "dcn" and "mlp" have sizes within
    the ranges of their papers' searches.

    Args:
        spec: The options.
        rows: Training rows; None if they are not known.

    Raises:
        SpecError: if the heads of a transformer do not divide its units.
    """
    few = _has_few(rows)
    blocks, units, dropout = {
        "resnet": (2, 192, 0.3),
        "dcn": (3, 256, 0.1),
        "tabm": (
            3 if spec.numeric_embeddings == "none" else 2,
            FEW_UNITS if few else UNITS,
            0.1,
        ),
        "mlp": (3, 256, 0.1),
    }.get(spec.kind, (3, 0, 0.0))
    blocks = blocks if spec.blocks is None else spec.blocks
    if spec.kind == "ft_transformer":
        place = min(blocks, len(FT_UNITS)) - 1
        units, dropout = FT_UNITS[place], FT_DROPOUT[place]
    units = units if spec.units is None else spec.units
    if spec.kind == "ft_transformer" and units % spec.heads:
        raise SpecError(
            f"`units` must be a multiple of `heads` = {spec.heads} for a transformer, not {units}.",
            arg="units",
        )
    members = (FEW_MEMBERS if few else MEMBERS) if spec.members is None else spec.members
    return Sizes(units, blocks, dropout if spec.dropout is None else spec.dropout, members)


def _has_few(rows: int | None) -> bool:
    return rows is not None and rows < FEW_ROWS


def choose_rates(spec: TabularSpec, rows: int | None = None) -> tuple[float, float]:
    """Returns the learning rate and the weight decay for a number of training rows, if known."""
    rate, decay = RATES.get(spec.kind, OTHER_RATES)
    if spec.kind == "tabm" and _has_few(rows):
        rate, decay = FEW_RATES
    rate = rate if spec.learning_rate is None else spec.learning_rate
    return rate, decay if spec.weight_decay is None else spec.weight_decay
