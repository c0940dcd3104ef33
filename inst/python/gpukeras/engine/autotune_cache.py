"""Remembers which engine was measured fastest, for later trainings of equal models.

A training of many batches measures its engines, see `autotune`, and until XLA has compiled its
program the slower one trains. A later training of an equal model on the same computer starts with
the engine that won. Choices lie in one small file beside the programs that XLA keeps, see
`xla_cache`; without that folder they last as long as the session.

Short trainings are often many: folds, seeds, refits. No single one pays for compiling, and all of
them do. So as many batches as equal models were given in this session are expected to come again:
compiling begins when they would have paid for it, and costs at most what was lost until then.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpukeras.backend import xla_cache
from gpukeras.core.cache_folder import read_record, write_record
from gpukeras.engine.autotune import (
    EngineAutotuner,
    EngineChoice,
    EngineFacts,
    foresee_compiled,
    format_batch_time,
    rank_trials,
)

FILE = "autotune-cache.json"
MOST_CHOICES = 200  # the oldest are forgotten
LASTING = ("compiled",)  # the engine that is slow to start; the others are tried first anyway
# A start from a kept program takes about half as long as tracing and compiling a first one.
START_SHARE = 0.5
# Said of a training that is to repeat and has batches enough for another engine to gain something.
FASTER, FASTER_BATCHES = '; engine = "compiled" may be faster, and repeats too', 1000
_given: dict[str, int] = {}  # batches of equal models in this session, the latest model last


@dataclass(frozen=True)
class CachedChoice:
    """The engine that won a measurement, and the one that came second.

    Args:
        engine: The winner.
        batch_s: Its seconds per batch.
        other: The second.
        other_s: Its seconds per batch.
        start_s: Seconds of the winner's start.
    """

    engine: str
    batch_s: float
    other: str
    other_s: float
    start_s: float

    def __post_init__(self) -> None:
        """Raises ValueError for what no measurement gives: the file may be damaged."""
        times = self.batch_s, self.other_s, self.start_s
        if self.engine not in LASTING or not isinstance(self.other, str):
            raise ValueError("not an engine that is remembered")
        if not all(
            isinstance(seconds, float) and math.isfinite(seconds) and seconds > 0
            for seconds in times
        ):
            raise ValueError("not a time")

    @property
    def reason(self) -> str:
        """Why the engine trains."""
        times = format_batch_time(self.batch_s), format_batch_time(self.other_s)
        return (
            f"measured fastest in an earlier training on this computer: {times[0]} a batch "
            f"against {times[1]} ({self.other})"
        )

    def pays(self, batches: int) -> bool:
        """Whether the engine saves more in so many batches than its start takes."""
        return (self.other_s - self.batch_s) * batches > START_SHARE * self.start_s


def to_cached(choice: EngineChoice) -> CachedChoice | None:
    """Returns what is to be remembered of a choice, or None: only a measured one is."""
    ran = [trial for trial in rank_trials(choice.trials) if trial.batch_s]
    if len(ran) < 2 or ran[0].engine != choice.engine or choice.engine not in LASTING:
        return None
    first, second = ran[:2]
    times = float(first.batch_s or 0.0), float(second.batch_s or 0.0)
    return CachedChoice(first.engine, times[0], second.engine, times[1], float(first.start_s))


def open_autotuner(
    engines: Any,
    candidates: tuple[str, ...],
    batches: int,
    reason: str,
    facts: EngineFacts,
) -> EngineAutotuner:
    """Returns the autotuner of a training.

    It starts with the engine that won before, or that wins for such models, where that pays.

    Args:
        engines: The model's engines.
        candidates: Engines to measure, cheapest first.
        batches: Batches of all epochs.
        reason: Why other engines are not candidates, or "".
        facts: See `EngineAutotuner`.
    """
    measures = bool(set(LASTING) & set(candidates[1:])) and not facts.as_keras
    key = _find_key(engines) if measures and not facts.repeats else None
    later = _count_batches(key, batches)
    if facts.repeats:  # neither what was measured before counts, nor what else the session trained
        why = foresee_compiled(facts, batches) if measures else ""
        reason += FASTER if measures and reason and batches >= FASTER_BATCHES else ""
    else:
        why = "" if key is None else _find_winner(key, facts, batches + later)
    if why:
        candidates = (*LASTING, *(name for name in candidates if name not in LASTING))
    return EngineAutotuner(
        candidates,
        batches,
        why or reason,
        engines.started_s,
        facts,
        later=later,
        settled=bool(why),
        batch_s=engines.batch_s,
    )


def _find_winner(key: str, facts: EngineFacts, batches: int) -> str:
    """Returns why the engine that is slow to start is to start at once; or ""."""
    cached = _choices(_find_file()).get(key)
    if cached is None:
        return foresee_compiled(facts, batches)
    return cached.reason if cached.pays(batches) else ""


def _count_batches(key: str | None, batches: int) -> int:
    """Adds batches to those of equal models in this session; returns those before."""
    if key is None:
        return 0
    before = _given.pop(key, 0)
    _given[key] = before + batches
    while len(_given) > MOST_CHOICES:
        _given.pop(next(iter(_given)))
    return before


def store_choice(engines: Any, choice: EngineChoice) -> None:
    """Remembers a measured choice; a disk that cannot be written to changes nothing."""
    cached = to_cached(choice)
    if cached is None or (key := _find_key(engines)) is None:
        return
    file = _find_file()
    _choices(file)[key] = cached
    if file is not None:
        with contextlib.suppress(OSError):
            write_choices(file, {**read_choices(file), key: cached})  # others have written too


def _find_key(engines: Any) -> str | None:
    """Returns a digest of what equal models on this device share, or None if that is unknown."""
    identity: Hashable | None = engines.identity
    return None if identity is None else hashlib.sha256(repr(identity).encode()).hexdigest()


def _find_file() -> Path | None:
    folder = xla_cache.find_kept_folder()
    return None if folder is None else folder / FILE


@cache
def _choices(file: Path | None) -> dict[str, CachedChoice]:
    """Returns the session's choices: at first those of the file."""
    return {} if file is None else read_choices(file)


def read_choices(file: Path) -> dict[str, CachedChoice]:
    """Returns the choices of a file; of a damaged or missing one none."""
    try:
        return {key: CachedChoice(**choice) for key, choice in read_record(file).items()}
    except (TypeError, ValueError):
        return {}


def write_choices(file: Path, choices: Mapping[str, CachedChoice]) -> None:
    """Writes the newest choices; no reader sees half of them.

    Raises:
        OSError: if it cannot be written.
    """
    kept = dict(list(choices.items())[-MOST_CHOICES:])
    write_record(file, {key: asdict(choice) for key, choice in kept.items()})
