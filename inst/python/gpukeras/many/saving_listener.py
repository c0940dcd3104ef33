"""Listens to many trainings: saves them, and ends them where the process is asked to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.core.errors import CheckpointError, SpecError
from gpukeras.core.options import describe
from gpukeras.core.preemption import PreemptionNotice
from gpukeras.core.progress import OnEvent
from gpukeras.many.fits import Fitted, ModelProgress
from gpukeras.many.saved import SavedModels
from gpukeras.many.training import Task
from gpukeras.training.listener import ProgressReporter


def check_folder(checkpoint: Any) -> None:
    """Checks that the folder of trainings is a path, or None.

    Raises:
        SpecError: if not.
    """
    if checkpoint is not None and (not isinstance(checkpoint, str) or not checkpoint):
        raise SpecError(
            f"`checkpoint` must be the path of a folder, not {describe(checkpoint)}.",
            hint='Such as checkpoint = "fits-1".',
            arg="checkpoint",
        )


@dataclass
class SavingListener:
    """Listens to the trainings of a table.

    Args:
        saved: Where they are saved.
        notice: Whether the process is asked to end.
        on_event: The user's listener, see `training.fit()`; None for none.
        epochs: Epochs of the trainings.
    """

    saved: SavedModels
    notice: PreemptionNotice
    on_event: OnEvent | None
    epochs: int
    _ended: bool = False  # by the user or by a signal

    def listen_to(self, task: Task) -> Task:
        """Returns what the trainings share, with this as their listener."""
        listener = ProgressReporter(self._hear, self.epochs)
        if self.saved.home is None:
            return replace(task, listener=listener)
        return replace(
            task,
            listener=listener,
            after_epoch=self._after_epoch,
            states=self.saved.states,
            after_model=self._after_model,
        )

    def end(self) -> None:
        """Ends the call if the process is asked to.

        Raises:
            PreemptedError: if so; all is saved.
            CheckpointError: if so, and something could not be saved.
        """
        if self.saved.home is None or not self.notice.signal:
            return
        self.notice.heeded = True
        if self.saved.unsaved:
            raise CheckpointError(
                f"The models cannot be saved: {self.saved.unsaved}", arg="checkpoint"
            )
        raise self.notice.explain("its models are", str(self.saved.home.path))

    def _hear(self, event: Mapping[str, Any]) -> bool:
        asked = self.on_event is not None and self.on_event(dict(event)) is True
        self._ended = self._ended or asked or bool(self.notice.signal)
        return self._ended

    def _after_epoch(self, read: Callable[[], dict[int, ModelProgress]]) -> None:
        ends = self._ended or bool(self.notice.signal)
        if self.saved.due or ends:
            self.saved.save(read())
        if ends:  # a signal that comes now ends the next epoch: nothing is lost
            self.end()

    def _after_model(self, number: int, fitted: Fitted) -> None:
        self.saved.finish({number: fitted})
