"""A training that ends at any of its checkpoints and goes on ends as if nothing had happened."""

import functools
import itertools
import tempfile

import numpy as np
import pytest
from kill_child import make_model
from nightly import few
from small_fits import make_dataset

from gpukeras import CheckpointError
from gpukeras.backend import runtime
from gpukeras.training import fit as training_fit
from gpukeras.training import listener

pytestmark = pytest.mark.tf
EPOCHS, ROWS, BATCH = 3, 300, 32


class Stop:
    """Interrupts a training at an event, of which there is one after each checkpoint.

    Args:
        at: Its kind, epoch, and the least step; None never interrupts.
        asks: Whether it asks for the end, as R does, instead of raising.
    """

    def __init__(self, at=None, asks=False):
        self.at, self.asks = at, asks

    def __call__(self, event):
        kind, epoch, step = self.at or ("never", 0, 0)
        if (event["kind"], event["epoch"]) == (kind, epoch) and event["step"] >= step:
            if self.asks:
                return True
            raise KeyboardInterrupt
        return None


def fit(folder=None, stop=None, engine="graph_loop", epochs=EPOCHS, **data):
    model = make_model(20, 3)
    data = make_dataset(ROWS, 20, 3, validation=0.1, batch_size=BATCH, **data)
    options = {"epochs": epochs, "engine": engine}
    options["schedule"] = {"kind": "exponential", "decay": 0.9}
    if folder is not None:
        options["checkpoint"] = {"folder": str(folder), "every_s": 0}
    report = training_fit.fit(model, data, options, on_event=stop)
    values = {f"{place:03d}": value for place, value in enumerate(model.get_weights())}
    return report, {**values, **{name: np.array(v) for name, v in report.history.items()}}


@functools.cache
def train_whole(engine):
    """The weights and the history of a training that nothing disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        return fit(folder, engine=engine)[1]


# In the first epoch, before and after its short last batch, after it; in the last, at the end.
# Each row is one training, which is interrupted at each of its moments and goes on every time.
# (A finished training goes on from the end of an epoch in every run, see below.)
MOMENTS = [
    [("progress", 1, 1), ("progress", 1, 9), ("progress", EPOCHS, 8)],
    [("progress", 1, 8), ("epoch", 1, 9), ("epoch", EPOCHS, 9)],
]


@pytest.mark.parametrize(
    ("engine", "moments"),
    few(
        itertools.product(("graph_loop", "keras"), MOMENTS),
        ("graph_loop", MOMENTS[0]),
    ),
)
def test_a_training_goes_on_from_every_checkpoint_bit_for_bit(
    tmp_path, monkeypatch, engine, moments
):
    monkeypatch.setattr(listener, "EVENT_S", 0.0)
    expected, ended = train_whole(engine), 0
    for at in moments:
        stopped, _ = fit(tmp_path, Stop(at), engine)
        assert (stopped.stopped, stopped.resumed_epochs) == ("interrupted", ended), at
        ended = stopped.epochs
    report, found = fit(tmp_path, engine=engine)
    assert (report.stopped, report.epochs) == ("completed", EPOCHS)
    assert report.resumed_epochs == ended
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "epoch", "batch"),
    few([("progress", 2, 1), ("progress", 2, 8), ("epoch", 2, 9)], ("progress", 2, 8)),
)
def test_an_interrupted_epoch_is_trained_to_its_end(tmp_path, monkeypatch, event, epoch, batch):
    monkeypatch.setattr(listener, "EVENT_S", 0.0)
    expected = train_whole("graph_loop")
    stopped, _ = fit(tmp_path / "run", Stop((event, epoch, batch), asks=True))
    assert (stopped.stopped, stopped.epochs) == ("interrupted", 2)
    report, found = fit(tmp_path / "run")
    assert report.resumed_epochs == (2 if event == "epoch" else 1)
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), name


@pytest.mark.slow
def test_a_finished_training_is_not_trained_again_but_goes_on_for_more_epochs(tmp_path):
    _, expected = fit(epochs=4)
    _, first = fit(tmp_path / "run", epochs=2)
    again, same = fit(tmp_path / "run", epochs=2)
    assert (again.epochs, again.resumed_epochs) == (2, 2)
    assert all(same[name].tobytes() == first[name].tobytes() for name in first)
    more, found = fit(tmp_path / "run", epochs=4)
    assert (more.epochs, more.resumed_epochs) == (4, 2)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.slow
def test_a_training_that_stopped_early_is_not_trained_again(tmp_path):
    found = []
    for _ in range(2):
        model, data = make_model(20, 3), make_dataset(ROWS, 20, 3, batch_size=BATCH)
        options = {"epochs": 9, "engine": "graph_loop", "checkpoint": str(tmp_path / "run")}
        options["early_stopping"] = {"patience": 2, "monitor": "accuracy", "mode": "min"}
        report = training_fit.fit(model, data, options)
        assert (report.stopped, report.epochs, report.best_epoch) == ("early", 3, 1)
        found.append(model.get_weights())
    assert report.resumed_epochs == 3
    for one, other in zip(*found, strict=True):
        assert one.tobytes() == other.tobytes()


def test_other_data_is_refused_before_anything_is_trained(tmp_path):
    fit(tmp_path / "run", epochs=1)
    model, data = make_model(20, 3), make_dataset(ROWS, 20, 3, validation=0.1, batch_size=64)
    before = model.get_weights()
    options = {"epochs": 1, "checkpoint": str(tmp_path / "run")}
    options["schedule"] = {"kind": "exponential", "decay": 0.9}
    with pytest.raises(CheckpointError, match="the batch size was 32 and is 64"):
        training_fit.fit(model, data, options)
    for one, other in zip(before, model.get_weights(), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.varies
@pytest.mark.parametrize("at", [("epoch", 2, 9), ("progress", 2, 1)])
def test_an_epoch_has_the_rate_that_a_callback_gives_it(tmp_path, monkeypatch, at):
    monkeypatch.setattr(listener, "EVENT_S", 0.0)
    keras = runtime.keras()

    def train(stop=None):
        model, data = make_model(20, 3), make_dataset(ROWS, 20, 3, drop_last=True)
        halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        options = {"epochs": 4, "engine": "graph_loop"}
        options["checkpoint"] = {"folder": str(tmp_path / "run"), "every_s": 0}
        return training_fit.fit(model, data, options, callbacks=[halving], on_event=stop)

    assert train(Stop(at)).epochs < 4
    report = train()
    where = "batch" if at[0] == "progress" else "epoch 2,"
    assert report.notes[0].startswith(f"Resumed after {where}")
    rates = report.learning_rate
    assert [rate / rates[0] for rate in rates] == [1, 0.5, 0.25, 0.125]
