"""A stack is divided among the cores of a CPU, and ends as if it were one."""

import numpy as np
import pytest
from small_fits import make_dataset, make_model
from stacked import ALONE, difference, fit_many

from gpukeras.many import partitions, training
from gpukeras.many.partitions import count_partitions, split_evenly
from gpukeras.many.stack import Epoch

pytestmark = pytest.mark.tf
MODELS = 16


@pytest.mark.parametrize(
    ("models", "steps", "cores", "device", "expected"),
    [
        (50, 1000, 1, "CPU:0", 1),
        (50, 1000, 2, "CPU:0", 2),
        (50, 100, 4, "CPU:0", 2),  # of 4 partitions two would have another size, and few steps
        (50, 100_000, 4, "CPU:0", 4),
        (49, 10, 2, "CPU:0", 1),
        (49, 8_000, 2, "CPU:0", 2),
        (15, 8_000, 2, "CPU:0", 1),  # too few for two partitions
        (64, 10, 8, "CPU:0", 8),
        (64, 8_000, 8, "GPU:0", 1),
    ],
)
def test_lanes_are_as_many_as_cores_and_models_allow(models, steps, cores, device, expected):
    assert count_partitions(models, steps, cores, device) == expected


@pytest.mark.parametrize(
    ("models", "count", "sizes"), [(6, 2, [3, 3]), (7, 3, [3, 2, 2]), (3, 1, [3])]
)
def test_lanes_hold_each_model_once(models, count, sizes):
    parts = split_evenly(models, count)
    assert [part.stop - part.start for part in parts] == sizes
    assert [place for part in parts for place in range(models)[part]] == list(range(models))


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(training, "count_cores", lambda: 2)
    opened = []
    monkeypatch.setattr(
        training,
        "PartitionedStack",
        lambda stacks: opened.append(len(stacks)) or partitions.PartitionedStack(stacks),
    )
    yield opened
    assert set(opened) == {2}


@pytest.mark.slow
def test_models_of_two_partitions_end_as_each_alone(two_cores):
    stopping = {"patience": 1, "monitor": "val_loss"}
    given = {"schedule": {"kind": "one_cycle", "max_rate": 0.5}, "early_stopping": stopping}
    fits = fit_many([make_model()], make_dataset(rows=103), range(4), MODELS // 4, **given)
    assert fits.plan.alone == ()  # where a stack fails, its models train alone
    for number in (1, MODELS // 2 + 1, MODELS):
        assert max(difference(fits, number, **given)) < ALONE
        model = fits.model(number)
        x = fits.data.sources[0].gather(fits.members[number - 1].held_out)
        outputs = fits.fitted[number - 1].outputs
        np.testing.assert_allclose(outputs, model.predict(x, verbose=0), atol=1e-6)


@pytest.mark.slow
def test_the_user_ends_an_epoch_of_all_lanes(two_cores, monkeypatch):
    monkeypatch.setattr(partitions, "POLL_S", 0.0)
    monkeypatch.setattr("gpukeras.training.listener.EVENT_S", 0.0)
    heard = []

    def on_event(event):
        heard.append(event["kind"])
        return "epoch" in heard and event["kind"] == "waiting"

    data = make_dataset(rows=2000, batch_size=1)
    fits = fit_many([make_model()], data, range(MODELS), epochs=50, on_event=on_event)
    ends = {(one.history.epochs, one.history.stopped) for one in fits.fitted}
    ((epochs, stopped),) = ends
    assert (stopped, 0 < epochs < 50) == ("interrupted", True)
    whole = fit_many([make_model()], data, range(MODELS), epochs=epochs)
    for number in (1, MODELS):
        pairs = zip(fits.model(number).weights, whole.model(number).weights, strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)


def test_what_is_wrong_in_one_lane_is_the_error_of_all():
    class Steps:
        size = 1

        def __init__(self, error):
            self.error = error

        def train(self, epoch, check):
            if self.error:
                raise self.error
            while True:
                check()

    failing = partitions.PartitionedStack([Steps(None), Steps(ValueError("one of them"))])
    with pytest.raises(ValueError, match="one of them"):
        failing.train(Epoch([np.arange(1)] * 2, 1))


@pytest.mark.parametrize("before", [None, ["a", "b"]])
def test_a_partition_keeps_the_state_of_its_models(before):
    class Kept:
        size = 2

        def keep(self, better, before):
            return better.tolist(), before

    stack = partitions.PartitionedStack([Kept(), Kept()])
    kept = stack.keep(np.array([True, False, False, True]), before)
    first, second = before or (None, None)
    assert kept == [([True, False], first), ([False, True], second)]


def test_a_partition_has_the_rows_and_rates_of_its_models():
    rates = np.arange(6.0).reshape(3, 2)
    whole = Epoch([np.arange(place) for place in range(3)], 4, rates, 5, exact=True, drop_last=True)
    part = whole.part(slice(1, 3))
    assert [len(rows) for rows in part.orders] == [1, 2]
    np.testing.assert_array_equal(part.rates, rates[1:])
    assert (part.batch_size, part.number, part.exact, part.drop_last) == (4, 5, True, True)
    assert Epoch(whole.orders, 4).part(slice(0, 1)).rates is None
