"""The options of tracking, and the protocol of what records a training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from gpukeras.core.errors import RuntimeMissingError, SpecError
from gpukeras.core.options import A_FOLDER, Spec, check_choice, check_flag, check_text, option
from gpukeras.system import pip

KINDS = ("csv", "mlflow")
Parameter = str | int | float | bool | None
_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}")


def _check_run(arg: str, value: Any) -> str:
    if not isinstance(value, str) or not _RUN.fullmatch(value):
        raise SpecError(
            f"`{arg}` must be a name of letters, digits, spaces, `_`, `.` and `-`, at most 100.",
            arg=arg,
        )
    return value


@dataclass(frozen=True)
class TrackSpec(Spec):
    """Where a training is recorded.

    Args:
        kind: "csv" (files in a folder) or "mlflow" (a server of MLflow, or a store of its own).
        path: For "csv": the folder; each training gets a folder of its own in it.
        uri: For "mlflow": the tracking URI; None for MLflow's own choice, such as the environment
            variable MLFLOW_TRACKING_URI.
        experiment: For "mlflow": the experiment's name, which is made if missing; None for
            MLFLOW_EXPERIMENT_NAME, or MLflow's "Default".
        run: The name of the training; None for the time at which it starts.
        model: Whether the trained model is kept, as a file that plain Keras opens too.
    """

    kind: str = option("csv", check_choice, KINDS)
    path: str | None = option(None, check_text, A_FOLDER)
    uri: str | None = option(None, check_text, "an address")
    experiment: str | None = option(None, check_text, "a name")
    run: str | None = option(None, _check_run)
    model: bool = option(True, check_flag)

    def __post_init__(self) -> None:
        """Checks the fields together.

        Raises:
            SpecError: for an option that the kind does not have, or a folder that is missing.
        """
        super().__post_init__()
        others = {"csv": ("uri", "experiment"), "mlflow": ("path",)}[self.kind]
        for name in others:
            if getattr(self, name) is not None:
                raise SpecError(f'Tracking by "{self.kind}" has no option `{name}`.', arg=name)
        if self.kind == "csv" and self.path is None:
            raise SpecError('Tracking by "csv" needs `path`, a folder.', arg="path")


class Tracker(Protocol):
    """Records one training. It may be slow or fail; all methods run in one thread, in this order.

    Attributes:
        where: The place of the record, for the user; without passwords.
    """

    where: str

    def start(self, parameters: Mapping[str, Parameter]) -> None:
        """Begins the record, with what is known before the training."""

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of an epoch, counted from 1."""

    def end(self, status: str, results: Mapping[str, Parameter], files: Sequence[Path]) -> None:
        """Ends the record.

        Args:
            status: "completed", "early", "interrupted", "non_finite" or "failed".
            results: What is known after the training.
            files: Files to keep: plots, and the model as "model.keras".
        """


def check_mlflow() -> None:
    """Checks that MLflow's client is installed, without importing it.

    Raises:
        RuntimeMissingError: with the command that installs it.
    """
    if find_spec("mlflow") is None:
        raise RuntimeMissingError(
            "Tracking by MLflow needs the Python package mlflow, which is not installed.",
            hint=f"Install its client: {pip.install('mlflow-skinny')}.",
            arg="track",
        )
