"""A training whose process is asked to end is saved, and goes on as if nothing had happened."""

import functools
import os
import signal

import numpy as np
import pytest
from checkpointed import small_files
from kill_child import make_model
from small_fits import make_dataset

from gpukeras import CheckpointError, PreemptedError, SpecError
from gpukeras.backend import runtime
from gpukeras.checkpoint.manager import check_grace
from gpukeras.core.preemption import REQUEUE_STATUS
from gpukeras.training import fit as training_fit

pytestmark = [
    pytest.mark.tf,
    pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals"),
]
EPOCHS = 2
BATCHES = 9  # of an epoch, the last of which is short
SENT = {"signal": "SIGTERM", "status": REQUEUE_STATUS}


def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def fit(folder=None, epochs=EPOCHS, grace_s=None, ema=None, **hooks):
    """Trains with a callback of these hooks, which sees each batch; the report and all values."""
    model = make_model(20, 3)
    data = make_dataset(300, 20, 3, validation=0.1, batch_size=32)
    options = {"epochs": epochs, "engine": "graph_loop", "ema": ema}
    options["schedule"] = {"kind": "exponential", "decay": 0.9}
    if folder is not None:
        options["checkpoint"] = {"folder": str(folder), "grace_s": grace_s}
    report = training_fit.fit(model, data, options, callbacks=[type_of(hooks)()])
    values = {f"{place:03d}": value for place, value in enumerate(model.get_weights())}
    return report, {**values, **{name: np.array(v) for name, v in report.history.items()}}


def type_of(hooks):
    """A class of callbacks: Keras asks the class which hooks there are."""
    hooks = {"on_train_batch_end": lambda self, batch, logs=None: None, **hooks}
    return type("Asking", (runtime.keras().callbacks.Callback,), hooks)


@functools.cache
def train_whole(ema=None):
    return fit(ema=ema)[1]


class Counted:
    """A hook that sends the signal in its call of a number, counted from 1."""

    def __init__(self, at):
        self.at, self.calls = at, 0

    def __call__(self, *_, logs=None):
        self.calls += 1
        if self.calls == self.at:
            ask()


MOMENTS = [
    ("on_test_batch_begin", 2, "batch 9 of epoch 2"),
    ("on_train_begin", 1, ""),
    ("on_train_batch_end", 4, "batch 5 of epoch 1"),  # which is noticed after the next call
    ("on_train_batch_end", 7, "batch 9 of epoch 1"),  # not before the short last batch
    ("on_epoch_end", 1, "epoch 1"),
    ("on_epoch_end", 2, "epoch 2"),
]


@pytest.mark.varies
@pytest.mark.parametrize(("hook", "at", "where"), MOMENTS)
def test_a_training_that_is_asked_to_end_goes_on_there(tmp_path, hook, at, where):
    folder, counted = tmp_path / "run", Counted(at)
    with pytest.raises(PreemptedError, match=r"is saved, 0\.\d s after SIGTERM") as caught:
        fit(folder, **{hook: lambda self, *given, logs=None: counted(*given)})
    assert counted.calls in (at, at + 1)
    saved = str(folder) if where else ""
    assert caught.value.details == {**SENT, "checkpoint": saved}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    report, values = fit(folder)
    assert report.notes == ((f"Resumed after {where}, from its checkpoint.",) if where else ())
    for name, value in train_whole().items():
        assert values[name].tobytes() == value.tobytes(), name


@pytest.mark.slow
def test_a_validation_of_averages_that_is_asked_to_end_saves_the_weights(tmp_path):
    counted = Counted(2)
    with pytest.raises(PreemptedError):
        fit(
            tmp_path / "run", ema=0.9, on_test_batch_begin=lambda self, *given, logs=None: counted()
        )
    report, values = fit(tmp_path / "run", ema=0.9)
    assert report.notes == ("Resumed after batch 9 of epoch 2, from its checkpoint.",)
    for name, value in train_whole(0.9).items():
        assert values[name].tobytes() == value.tobytes(), name


def test_without_checkpoints_a_signal_does_what_it_did(tmp_path):
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        report, _ = fit(on_epoch_end=lambda self, epoch, logs=None: ask())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (report.stopped, got) == ("completed", [signal.SIGTERM] * EPOCHS)


def test_a_training_that_cannot_be_saved_does_not_say_that_it_is(tmp_path):
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        with small_files(100), pytest.raises(CheckpointError, match="cannot be saved: "):
            fit(tmp_path / "run", on_train_batch_end=lambda self, batch, logs=None: ask())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]  # comes after all


@pytest.mark.parametrize(
    ("save_s", "grace_s", "enough"),
    [(0.1, 30, True), (14, 30, True), (14.1, 30, False), (0, 1, False)],
)
def test_a_grace_period_is_enough_for_two_saves_and_two_seconds(save_s, grace_s, enough):
    if enough:
        check_grace(save_s, grace_s)
        return
    with pytest.raises(SpecError, match=r"`grace_s` is .* seconds?, and \d+ are needed: twice the"):
        check_grace(save_s, grace_s)


def test_a_save_is_measured_before_the_first_step_where_there_is_a_grace_period(tmp_path):
    begun = []
    with pytest.raises(SpecError, match="3 are needed"):
        fit(tmp_path / "run", grace_s=1, on_epoch_begin=lambda self, *_, logs=None: begun.append(1))
    assert begun == []
    report, values = fit(tmp_path / "other", grace_s=60)
    assert report.notes == ()
    assert values["loss"].tobytes() == train_whole()["loss"].tobytes()
