"""Many trainings that are kept in a folder go on where they were ended, and end the same."""

import os
import signal
from contextlib import suppress

import numpy as np
import pytest
from small_fits import make_dataset, make_model
from stacked import fit_many

from gpukeras.core.errors import CheckpointError, PreemptedError, SpecError
from gpukeras.core.preemption import REQUEUE_STATUS

pytestmark = pytest.mark.tf
PLATEAU = {"kind": "plateau", "factor": 0.5, "patience": 1}
WAYS = {
    "a stack": {"most": 8},
    "a stack with early stopping and a plateau": {
        "most": 8,
        "schedule": PLATEAU,
        "early_stopping": {"patience": 2, "restore_best": True},
    },
    "one after another": {"most": 1},
}


def train(folder=None, on_event=None, epochs=6, **options):
    return fit_many(
        [make_model()],
        make_dataset(rows=60),
        epochs=epochs,
        seeds=[1, 2],
        folds=2,
        on_event=on_event,
        checkpoint=None if folder is None else str(folder),
        **options,
    )


def send(number, after):
    """A listener that sends this process a signal at the end of an epoch."""
    ended = []

    def listen(event):
        ended.extend([event] if event["kind"] == "epoch" else [])
        if len(ended) == after:
            ended.append(None)
            signal.raise_signal(number)

    return listen


def everything(fits):
    return [
        (one.history, one.state, None if one.outputs is None else np.asarray(one.outputs))
        for one in fits.fitted
    ]


@pytest.mark.varies
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_what_a_signal_ends_goes_on_and_ends_the_same(tmp_path, way, number):
    whole = train(**WAYS[way])
    for after in (2, 3, 5):
        with suppress(PreemptedError):  # the last one may come after the end
            train(tmp_path / "fits", send(number, after), **WAYS[way])
    again = train(tmp_path / "fits", **WAYS[way])
    assert again.plan.stacks == whole.plan.stacks
    np.testing.assert_equal(everything(again), everything(whole))


def test_a_signal_ends_the_call_with_what_is_saved(tmp_path):
    with pytest.raises(PreemptedError, match="its models are saved, .* s after SIGTERM") as ended:
        train(tmp_path / "fits", send(signal.SIGTERM, 2), most=8)
    assert ended.value.details["status"] == REQUEUE_STATUS
    told = []
    train(tmp_path / "fits", told.append, most=8)
    assert min(event["epoch"] for event in told if event["kind"] == "epoch") > 1


def test_what_has_ended_is_not_trained_again(tmp_path):
    first = train(tmp_path / "fits")
    told = []
    second = train(tmp_path / "fits", told.append)
    assert told == []
    np.testing.assert_equal(everything(second), everything(first))


def test_what_the_user_ends_goes_on_too(tmp_path):
    whole = train(most=8)
    ended = train(tmp_path / "fits", lambda event: event["epoch"] == 3, most=8)
    assert {one.history.stopped for one in ended.fitted} == {"interrupted"}
    np.testing.assert_equal(everything(train(tmp_path / "fits", most=8)), everything(whole))


def test_other_trainings_are_refused_by_what_differs(tmp_path):
    train(tmp_path / "fits", epochs=2)
    with pytest.raises(CheckpointError, match="another training: `epochs` was 2 and is 3"):
        train(tmp_path / "fits", epochs=3)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds other files, and no training"):
        train(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]
    with pytest.raises(SpecError, match="`checkpoint` must be the path of a folder, not 3"):
        fit_many([make_model()], make_dataset(rows=20), checkpoint=3)


def test_a_damaged_file_costs_its_models_their_training_and_no_more(tmp_path):
    whole = train(tmp_path / "fits", most=1)
    files = sorted((tmp_path / "fits" / "models").glob("*.npz"))
    content = bytearray(files[-1].read_bytes())
    content[len(content) // 2] ^= 1
    files[-1].write_bytes(content)
    again = train(tmp_path / "fits", most=1)
    assert any("was skipped" in note for note in again.notes)
    np.testing.assert_equal(everything(again), everything(whole))


def test_a_file_is_deleted_once_newer_ones_have_its_models(tmp_path):
    train(tmp_path / "fits", most=8)
    assert len(list((tmp_path / "fits" / "models").glob("*.npz"))) == 1
    assert not any((tmp_path / "fits" / "states").iterdir())
