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

KINDS = ("mlp", "resnet", "dcn", "ft_transformer", "tabm")
NUMERIC = ("piecewise_linear", "none", "periodic")
# rtdl_revisiting_models' defaults of the transformer for 1 to 6 blocks.
FT_UNITS = (96, 128, 192, 256, 320, 384)
FT_DROPOUT = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
# Learning rate and weight decay of AdamW: of rtdl_revisiting_models for the transformer, of the
# package tabm for TabM; the others have Keras' learning rate and the transformer's decay.
RATES = {"ft_transformer": (1e-4, 1e-5), "tabm": (2e-3, 3e-4)}
OTHER_RATES = (1e-3, 1e-5)


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
        members: Members of "tabm".
        heads: Attention heads of "ft_transformer"; they divide `units`.
        rank: Rank of the cross layers' matrices for "dcn", or None for full matrices.
        optimizer: Keras optimizer name.
        learning_rate: Its learning rate.
        weight_decay: Its weight decay; optimizers without one in Keras take 0 only.
        seed: Seed of initial weights and dropout.
    """

    kind: str = option("mlp", check_choice, KINDS)
    units: int | None = option(None, check_count, 1, 16384)
    blocks: int | None = option(None, check_count, 1, 64)
    dropout: float | None = option(None, check_number, 0.0, 0.99)
    embeddings: str | int = option("auto", _check_size)
    numeric_embeddings: str = option("piecewise_linear", check_choice, NUMERIC)
    bins: int = option(48, check_count, 2, 1024)
    members: int = option(32, check_count, 1, 1024)
    heads: int = option(8, check_count, 1, 256)
    rank: int | None = option(None, check_count, 1, 16384)
    optimizer: str = option("adamw", check_text, "the name of a Keras optimizer")
    learning_rate: float | None = option(None, check_number, 1e-12, 1e3)
    weight_decay: float | None = option(None, check_number, 0.0, 10.0)
    seed: int = option(0, check_count, 0, MOST_SEED)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network's blocks.

    Args:
        units: Width of the blocks.
        blocks: Number of blocks.
        dropout: Share of a block's hidden values dropped in training.
    """

    units: int
    blocks: int
    dropout: float


def settle(spec: TabularSpec) -> Sizes:
    """Returns the sizes: those given, otherwise the kind's.

    Those of "resnet" are of rtdl_revisiting_models' documentation, of "ft_transformer" and "tabm"
    the packages' defaults; "dcn" and "mlp" have sizes within the ranges of their papers' searches.

    Raises:
        SpecError: if the heads of a transformer do not divide its units.
    """
    blocks, units, dropout = {
        "resnet": (2, 192, 0.3),
        "dcn": (3, 256, 0.1),
        "tabm": (3 if spec.numeric_embeddings == "none" else 2, 512, 0.1),
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
    return Sizes(units, blocks, dropout if spec.dropout is None else spec.dropout)


def choose_rates(spec: TabularSpec) -> tuple[float, float]:
    """Returns the learning rate and the weight decay."""
    rate, decay = RATES.get(spec.kind, OTHER_RATES)
    rate = rate if spec.learning_rate is None else spec.learning_rate
    return rate, decay if spec.weight_decay is None else spec.weight_decay
