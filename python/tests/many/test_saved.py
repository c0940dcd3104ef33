"""Many trainings that are kept in a folder go on where they were ended, and end the same."""

import json
import os
import shutil
import signal
import warnings
from contextlib import suppress

import numpy as np
import pytest
from permissions import obeying_permissions
from small_fits import make_dataset, make_model
from stacked import fit_many

from gpukeras.checkpoint.format import read_file, write_file
from gpukeras.core.errors import CheckpointError, NotSavedWarning, PreemptedError, SpecError
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
    "stacks of one": {"most": 1},
    "one alone after another": {"averages": True},
    "workers": {"averages": True, "workers": 2},
}


def train(folder=None, on_event=None, epochs=6, averages=False, **options):
    """Trains four models; those whose optimizer averages weights do not stack."""
    import keras

    optimizer = keras.optimizers.Adam(use_ema=True) if averages else "sgd"
    fits = fit_many(
        [make_model(optimizer=optimizer)],
        make_dataset(rows=60),
        epochs=epochs,
        seeds=[1, 2],
        folds=2,
        on_event=on_event,
        checkpoint=str(folder) if isinstance(folder, os.PathLike) else folder,
        **options,
    )
    assert len(fits.plan.alone) == (4 if averages else 0), fits.plan
    return fits


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
    with pytest.raises(PreemptedError, match="its training is saved, .* s after SIGTERM") as ended:
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


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"models": [{"rate": 0.01}]}, "a model changed"),
        ({"data": {"seed": 9}}, "the seed of `data` was 1 and is 9"),
        ({"data": {"shuffle": False}}, "`shuffle`, `drop_last` or `augment` of `data` changed"),
        ({"early_stopping": 2}, "`early_stopping` changed"),
    ],
)
def test_what_would_change_the_models_is_refused(tmp_path, changed, says):
    def fit(models=({"rate": 0.1},), data=(), **options):
        made = [make_model(optimizer=SGD(each["rate"])) for each in models]
        rows = make_dataset(rows=40, **{"seed": 1, **dict(data)})
        return fit_many(made, rows, epochs=1, checkpoint=str(tmp_path / "fits"), **options)

    from keras.optimizers import SGD

    fit()
    with pytest.raises(CheckpointError, match=says):
        fit(**changed)
    fit()


PLANS = {
    "of too few models": {"stacks": [[0, 1]], "alone": []},
    "with a model twice": {"stacks": [[0, 1, 2, 3]], "alone": [3]},
    "of numbers that are none": {"stacks": [["x"]], "alone": [1]},
    "that is missing": None,
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder of four models, and what it holds."""
    folder = tmp_path_factory.mktemp("kept") / "fits"
    return folder, everything(train(folder, epochs=2, most=1))


@pytest.fixture
def copied(kept, tmp_path):
    """That folder for a test that changes it."""
    return shutil.copytree(kept[0], tmp_path / "fits")


@pytest.mark.parametrize("plan", PLANS)
def test_a_forged_index_is_refused(copied, plan):
    index = copied / "fits.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "plan": PLANS[plan]}))
    with pytest.raises(CheckpointError, match=r"has a damaged file, fits\.json"):
        train(copied, epochs=2, most=1)


def test_an_index_that_is_a_pipe_is_refused_and_never_read(tmp_path):
    (tmp_path / "fits").mkdir()
    os.mkfifo(tmp_path / "fits" / "fits.json")
    with pytest.raises(CheckpointError, match="it is a pipe, not a file"):
        train(tmp_path / "fits", epochs=1)


def other_shape(entry, arrays):
    arrays[entry["state"]["weights"][0]] = np.zeros((1, 1), np.float32)


def fewer_outputs(entry, arrays):
    arrays[entry["outputs"]] = arrays[entry["outputs"]][:1]


FORGED = {
    "a state of another shape": other_shape,
    "fewer outputs": fewer_outputs,
    "an epoch before the first": lambda entry, _: entry.update(epoch=-5),
    "more epochs than asked": lambda entry, _: entry["history"]["metrics"].update(
        {name: [1.0] * 9 for name in entry["history"]["metrics"]}
    ),
    "a history of texts": lambda entry, _: entry["history"]["metrics"].update(loss=["x"]),
    "a history with gaps": lambda entry, _: entry["history"]["metrics"].update(loss=[1.0]),
    "an end that is none": lambda entry, _: entry["history"].update(stopped="\x1b[2J"),
    "a monitor without its state": lambda entry, _: entry["monitors"].update(plateau={}),
    "no state": lambda entry, _: entry.pop("state"),
}


@pytest.mark.parametrize("way", FORGED)
def test_what_a_file_forges_is_trained_again(copied, kept, way):
    path = sorted((copied / "models").glob("*.npz"))[0]
    plain, arrays = read_file(path)
    (entry,) = plain["models"].values()
    FORGED[way](entry, arrays)
    write_file(path, plain, arrays)
    (path.parent / "1x.npz").write_bytes(b"not ours")
    again = train(copied, epochs=2, most=1)
    np.testing.assert_equal(everything(again), kept[1])
    assert (path.parent / "1x.npz").read_bytes() == b"not ours"


def test_what_cannot_be_saved_keeps_the_checkpoints_of_its_model(tmp_path):
    for part in ("models", "states"):
        (tmp_path / "fits" / part).mkdir(parents=True)
    (tmp_path / "fits" / "models").chmod(0o500)
    with obeying_permissions(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotSavedWarning)
        train(tmp_path / "fits", epochs=1, averages=True)
    told = [str(each.message) for each in caught if each.category is NotSavedWarning]
    assert len(told) == 1
    assert told[0].startswith(
        "The training is not saved any more, and goes on: `checkpoint` cannot"
    )
    assert len(list((tmp_path / "fits" / "states").glob("*/checkpoint-*.npz"))) == 4


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


@pytest.mark.varies
@pytest.mark.parametrize("way", ["a stack with early stopping and a plateau", "one alone"])
def test_a_save_is_measured_before_anything_trains_where_there_is_a_grace_period(tmp_path, way):
    told, options = [], WAYS.get(way, WAYS["one alone after another"])
    folder = tmp_path / "fits"
    with pytest.raises(SpecError, match=r"twice the .* a save of this training") as refused:
        train({"folder": str(folder), "grace_s": 1}, told.append, **options)
    assert (refused.value.details["arg"], told) == ("grace_s", [])
    assert os.listdir(folder) == ["lock"]
    (folder / ".gpukeras-measured-1").mkdir()  # a process that was killed left it
    fits = train({"folder": str(folder), "grace_s": 60}, **options)
    np.testing.assert_equal(everything(fits), everything(train(**options)))
    assert sorted(os.listdir(folder)) == ["fits.json", "lock", "models", "states"]
    train({"folder": str(folder), "grace_s": 1}, told.append, **options)  # nothing is left to save
    assert told == []


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        ({"grace_s": 60}, '`checkpoint` must be the path of a folder, not ""'),
        ({"folder": "fits", "grace_s": -1}, "`grace_s` must be a number of at least 0, not -1"),
        ({"folder": "fits", "grace_s": "60"}, '`grace_s` must be a number of at least 0, not "60"'),
        ({"folder": "fits", "keep": 2}, "Unknown option `keep`"),
    ],
)
def test_options_of_the_folder_are_refused_by_name(checkpoint, says):
    with pytest.raises(SpecError, match=says):
        fit_many([make_model()], make_dataset(rows=20), checkpoint=checkpoint)


def test_a_model_alone_that_is_asked_to_end_names_the_folder_of_all(tmp_path):
    with pytest.raises(PreemptedError, match="its training is saved, .* s after SIGTERM") as ended:
        train(tmp_path / "fits", send(signal.SIGTERM, 2), averages=True)
    assert ended.value.details["checkpoint"] == str(tmp_path / "fits")
