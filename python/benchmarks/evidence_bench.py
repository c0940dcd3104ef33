"""Measures the cases of `gpu_evidence.py`, one after another, in this process.

    evidence_bench.py OUT --seconds 300 [--on-cpu] [--quick] CASE...

Each case has its share of the seconds. In it every way is warmed up, then the ways take turns, so
that a slow moment hits all alike. OUT gets a line of JSON when a case begins and one when it ends:
what is there stays, however this process ends. A case that hangs ends the process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from evidence_cases import LEAST_S, Case, choose_cases, is_enough, limit_case, share_time
from evidence_models import make_rows
from evidence_questions import ARRAYS, ASKED, KNOWN, NO_TIME

from gpukeras.backend import devices, runtime
from gpukeras.core.errors import GpuKerasError
from gpukeras.monitor.monitor import start_monitor

TURNS = (3, 9)  # of each way: at least, where the time allows; at most
QUICK_TURNS = (3, 3)
TURN_S, QUICK_TURN_S = 0.7, 0.02  # NVML tells the utilization of up to the last second
SETTLED = 0.5  # of a turn, after which NVML's samples are of this turn
EPOCHS = (2, 200)  # of a turn
INTERVAL_S = 0.1
CHOOSING = 0.4  # of a case's share: the most that gpukeras takes to choose its engine
PATIENCE = 1.5  # times its share: then a case begins nothing more


@dataclass(frozen=True)
class Clock:
    """How long a case may take.

    Args:
        share_s: Its share of the time.
        left_s: All the time there is.
        turn_s: Of a turn.
        turns: How many at least, where the time allows, and at most.
        began: When it began.
    """

    share_s: float
    left_s: float
    turn_s: float = TURN_S
    turns: tuple[int, int] = TURNS
    began: float = field(default_factory=time.monotonic)

    def spent_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def is_over(self, patience: float = 1.0) -> bool:
        """Whether so many times its share are over."""
        return self.spent_s() > min(patience * self.share_s, self.left_s)


@dataclass
class Measured:
    """A way and its times.

    Args:
        way: How it trains.
        epochs: Of each turn.
        bytes: Most that it added to what the backend held of the GPU's memory while it was warmed
            up, or None.
        step_s: Seconds of a step, one figure a turn.
        turns: When each turn began and ended.
    """

    way: Any
    epochs: int
    bytes: float | None
    step_s: list[float] = field(default_factory=list)
    turns: list[tuple[float, float]] = field(default_factory=list)

    def take_turn(self) -> None:
        """Trains some epochs; the first ones still settle."""
        began = time.monotonic()
        seconds = self.way.train(self.epochs)
        self.turns.append((began, time.monotonic()))
        steps = self.way.given.case.steps
        self.step_s.append(float(np.median(seconds[len(seconds) // 2 :])) / steps)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the cases in the order given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--on-cpu", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    known = {case.name: case for case in choose_cases(quick=options.quick)}
    with options.out.open("a") as out:
        measure_cases([known[name] for name in options.cases], end, options, out)


def measure_cases(
    cases: Sequence[Case], end: float, options: argparse.Namespace, out: TextIO
) -> None:
    """Measures cases as far as the time goes, and writes each as it ends."""
    least_s = LEAST_S[options.quick]
    for place, case in enumerate(cases):
        left_s = end - time.monotonic()
        if not is_enough(left_s, case, least_s):
            continue  # a lighter one may do
        share_s = share_time(left_s, [one.weight for one in cases[place:]], least_s)
        pace = (QUICK_TURN_S, QUICK_TURNS) if options.quick else (TURN_S, TURNS)
        clock = Clock(share_s, left_s, *pace)
        write_line(out, {"begin": case.name})
        faulthandler.dump_traceback_later(limit_case(left_s, share_s), exit=True)
        write_line(out, {"end": case.name, **measure_case(case, clock, options)})
        faulthandler.cancel_dump_traceback_later()


def write_line(out: TextIO, record: Mapping[str, Any]) -> None:
    """Writes a record so that it is there even if this process dies next."""
    out.write(json.dumps(record) + "\n")
    out.flush()


def measure_case(case: Case, clock: Clock, options: argparse.Namespace) -> dict[str, Any]:
    """A case's record; what failed says why."""
    try:
        with tempfile.TemporaryDirectory(prefix="gpukeras-") as folder:
            return _measure(case, clock, options, Path(folder))
    except Exception as error:  # the other cases go on
        return {"problem": describe_error(error)}
    finally:
        gc.collect()


def describe_error(error: BaseException) -> str:
    """An error in one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text[:300]}"


def _measure(case: Case, clock: Clock, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    place = "cpu" if options.on_cpu else "gpu"
    devices.setup(device=place, precision=case.precision, tf32=case.tf32)
    from evidence_ways import Given  # not before: it imports Keras

    device, rows = devices.current().device, make_rows(case.model, case.rows)
    given = Given(case, rows, device, options.quick, folder)
    ways, problems = warm_ways(given, clock)
    watch = Watch()
    problems |= take_turns(ways, clock)
    busy = watch.stop()
    records = [to_record(name, found, busy) for name, found in ways.items()]
    records += [{"way": name, "problem": problem} for name, problem in problems.items()]
    runtime.keras().backend.clear_session()
    return {
        "model": case.model,
        "batch": case.batch,
        "rows": case.rows,
        "device": device,
        "seconds": round(clock.spent_s(), 1),
        "share_s": round(clock.share_s, 1),
        "ways": records,
    }


def list_ways(given: Any, chosen: Callable[[], str]) -> dict[str, Callable[[], Any]]:
    """What makes each way, by its name.

    Args:
        given: What the ways are made from.
        chosen: Gives the engine that gpukeras chose; the later ways take it too, so that they
            differ in one thing.
    """
    from evidence_ways import PLACES, KerasWay, LoopWay, OurWay

    own = import_module(f"evidence_{runtime.backend()}")
    if given.case.loops:
        loops = {KNOWN: lambda: LoopWay(given, True), ASKED: lambda: LoopWay(given, False)}
        return {**loops, **own.list_limits(given, lambda: True)}
    ours = {
        PLACES[place]: lambda place=place: OurWay(given, place, chosen())
        for place in given.case.places
    }
    keras = {ARRAYS: lambda: KerasWay(given), **own.list_peers(given)}
    return {**keras, **ours, **own.list_limits(given, lambda: chosen() == "compiled")}


def warm_ways(given: Any, clock: Clock) -> tuple[dict[str, Measured], dict[str, str]]:
    """All ways ready to take turns, and those that are not, with the reason."""
    ways: dict[str, Measured] = {}
    problems: dict[str, str] = {}

    def chosen() -> str:
        return next((one.way.engine for one in ways.values() if one.way.engine), "")

    for name, make in list_ways(given, chosen).items():
        if clock.is_over(PATIENCE):
            problems[name] = NO_TIME
            continue
        try:
            ways[name] = warm(make, given, clock)
        except Exception as error:  # the other ways go on
            problems[name] = describe_error(error)
    return ways, problems


def warm(make: Callable[[], Any], given: Any, clock: Clock) -> Measured:
    """A way that has done what is done once."""
    from evidence_ways import added_memory, hold_memory

    before = hold_memory(given.device)
    way = make()
    way.warm(CHOOSING * clock.share_s)
    epoch_s = min(way.train(EPOCHS[0]))
    added = added_memory(before, given.device)
    epochs = int(np.clip(clock.turn_s / max(epoch_s, 1e-6), *EPOCHS))
    return Measured(way, epochs, added)


def take_turns(ways: dict[str, Measured], clock: Clock) -> dict[str, str]:
    """Lets the ways train in turn until the time is over; what failed is taken out, and given."""
    problems: dict[str, str] = {}
    least, most = clock.turns
    for turn in range(most):
        if turn and clock.is_over(1.0 if turn >= least else PATIENCE):
            break
        for name, measured in list(ways.items()):
            try:
                measured.take_turn()
            except Exception as error:  # the other ways go on
                problems[name] = describe_error(error)
                del ways[name]
    return problems


class Watch:
    """How busy the GPU is, from gpukeras' own monitor; nothing where that cannot start."""

    def __init__(self) -> None:
        """Starts the monitor."""
        try:
            self._monitor = start_monitor(INTERVAL_S)
        except GpuKerasError:  # times are worth more than this
            self._monitor = None
        self._began = time.monotonic()

    def stop(self) -> list[tuple[float, float]]:
        """When it was asked, on this process's clock, and the percentage of time with a kernel."""
        record = None if self._monitor is None else self._monitor.stop()
        if record is None or not record.devices:
            return []
        times = record.samples["time_s"] + self._began
        return list(zip(times, record.devices[0].samples["utilization_percent"], strict=True))


def average_busy(
    samples: Sequence[tuple[float, float]], turns: Sequence[tuple[float, float]]
) -> float | None:
    """The mean of the samples in the later part of each turn; None without any."""
    parts = [(begin + SETTLED * (end - begin), end) for begin, end in turns]
    found = [
        value
        for moment, value in samples
        if np.isfinite(value) and any(begin <= moment <= end for begin, end in parts)
    ]
    return float(np.mean(found)) if found else None


def to_record(name: str, measured: Measured, busy: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """A way's figures: medians of its turns."""
    step_s = float(np.median(measured.step_s))
    return {
        "way": name,
        "step_s": step_s,
        "turns_s": measured.step_s,
        "epochs": measured.epochs,
        "rows_per_s": measured.way.given.case.batch / step_s,
        "busy_percent": average_busy(busy, measured.turns),
        "peak_bytes": measured.bytes,
        **measured.way.describe(),
    }


if __name__ == "__main__":
    sys.exit(main())
