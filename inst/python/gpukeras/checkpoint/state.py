"""Packs the state of a training into JSON values and arrays, and unpacks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gpukeras.checkpoint.format import MOST, DamagedError
from gpukeras.core.metric_values import Value
from gpukeras.models.state import Snapshot

Kept = tuple[dict[str, Any], dict[str, np.ndarray]]  # JSON values, arrays


@dataclass(frozen=True)
class TrainingState:
    """The state of a training between two steps.

    Args:
        snapshot: The model: weights, optimizer, metrics' running sums, random generators.
        epoch: Epochs finished.
        position: Batches done of the next epoch; 0 between epochs.
        rows: Rows trained of that epoch.
        history: Each metric's value after each epoch; may be NaN.
        epoch_s: Seconds of each epoch.
        epoch_rows: Rows of each epoch.
        learning_rate: Rate of each epoch's last step.
        engine: The engine that was chosen, or "" if none was yet.
        keepers: JSON values and arrays of every other object with a state (early stopping,
            schedule), by its name.
        extra: More JSON values.
    """

    snapshot: Snapshot
    epoch: int = 0
    position: int = 0
    rows: int = 0
    history: dict[str, list[Value]] = field(default_factory=dict)
    epoch_s: list[float] = field(default_factory=list)
    epoch_rows: list[int] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    engine: str = ""
    keepers: dict[str, Kept] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


_PLAIN = [f.name for f in fields(TrainingState) if f.name not in ("snapshot", "keepers")]


def pack_state(state: TrainingState) -> Kept:
    """Returns a state as JSON values and arrays; the arrays are not copied."""
    plain = {name: getattr(state, name) for name in _PLAIN}
    plain["keepers"] = [[name, kept] for name, (kept, _) in state.keepers.items()]
    arrays = {f"model/{name}": array for name, array in state.snapshot.arrays.items()}
    for number, (_, kept_arrays) in enumerate(state.keepers.values()):
        arrays.update({f"keeper{number}/{name}": array for name, array in kept_arrays.items()})
    return plain, arrays


def unpack_state(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> TrainingState:
    """Restores the state that `pack_state()` packed, bit for bit; tuples become lists.

    Raises:
        KeyError, TypeError: if this version of gpukeras does not write such a state.
    """
    values = dict(plain)
    keepers = {
        name: (kept, _part(arrays, f"keeper{number}/"))
        for number, (name, kept) in enumerate(values.pop("keepers"))
    }
    return TrainingState(Snapshot(_part(arrays, "model/")), keepers=keepers, **values)


def check_plain(plain: Mapping[str, Any]) -> None:
    """Checks the types of a checkpoint's plain values.

    Values that only another version of gpukeras writes are neither checked nor required.

    Raises:
        DamagedError: if a value has the wrong type.
    """
    identity, state = plain.get("identity", {}), plain.get("state", {})
    if not isinstance(identity, Mapping) or not isinstance(state, Mapping):
        raise DamagedError("it holds no state of a training")
    for name, is_one in _KINDS.items():
        if name in state and not is_one(state[name]):
            raise DamagedError(f"its {name} is not what a training has")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < MOST)


def _are(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_one, value))


def _is_value(value: Any) -> bool:
    """Whether a value is a metric's: a number, or an array as nested lists."""
    if not isinstance(value, list):
        return _is_number(value)
    try:
        return np.asarray(value).dtype.kind in "iuf"
    except (ValueError, OverflowError):  # lists of different lengths
        return False


def _is_history(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_are(_is_value), value.values()))


def _is_kept(value: Any) -> bool:
    """Whether a value is a keeper's name with its state."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    return isinstance(value[0], str) and isinstance(value[1], Mapping)


def _is_extra(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_number(value.get("spent_s", 0.0))


_KINDS: dict[str, Callable[[Any], bool]] = {
    "epoch": _is_count,
    "position": _is_count,
    "rows": _is_count,
    "history": _is_history,
    "epoch_s": _are(_is_number),
    "epoch_rows": _are(_is_count),
    "learning_rate": _are(_is_number),
    "engine": lambda value: isinstance(value, str),
    "keepers": _are(_is_kept),
    "extra": _is_extra,
}


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
