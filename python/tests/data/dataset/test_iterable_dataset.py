"""Rows in sequence: functions and tf.data train as the same rows in an array do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import few
from small_fits import make_model
from streamed import (
    CODES,
    MAKERS,
    ROWS,
    Y32,
    Function,
    X,
    array,
    as_batched,
    as_function,
    as_odd_chunks,
    as_repeated,
    as_steps,
    as_unbatched,
    chunk,
    classes,
    fed_rows,
    in_memory,
    rows_of,
    slices,
    stream,
    tfdata,
    weights_after,
)

from gpukeras import DataError
from gpukeras.backend import runtime
from gpukeras.data.dataset import iterable_dataset as streams
from gpukeras.data.dataset import map_dataset
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf


# Equality ----------------------------------------------------------------------------------------


KEPT = [(make, True) for make in (as_function, as_steps, as_batched, as_unbatched)]


@pytest.mark.varies
@pytest.mark.parametrize(
    ("make", "cache"),
    few(
        [*((make, "auto") for make in MAKERS), *KEPT],
        (as_function, "auto"),
        (as_odd_chunks, "auto"),
        (as_unbatched, True),
    ),
)
def test_rows_in_sequence_train_as_rows_in_an_array(make, cache):
    _, expected = weights_after(in_memory())
    options = {"shuffle": False, "cache": cache, "batch_size": 32} if cache is True else {}
    data = make(**{"shuffle": False, **options})
    assert isinstance(data, map_dataset.MapDataset if cache is True else streams.IterableDataset)
    report, found = weights_after(data)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (report.rows, report.plan.rows, report.plan.steps_per_epoch) == (200, 100, 4)
    assert report.epochs == 2


@pytest.mark.slow
def test_a_dataset_that_is_repeated_goes_on_where_it_was():
    _, expected = weights_after(in_memory(96, kind="integer"))
    report, found = weights_after(as_repeated())
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert report.rows == 2 * 96


@pytest.mark.parametrize("make", [as_function, as_batched])
def test_scaling_learns_from_the_first_chunk_or_from_all_that_is_cached(make):
    assert np.allclose(make(scale=True).recipe.features.center, X[:32].mean(axis=0))
    assert "first 32 rows" in make(scale=True).plan("CPU:0").reason
    assert np.allclose(make(scale=True, cache=True).recipe.features.center, X.mean(axis=0))


@pytest.mark.parametrize("make", [as_function, as_batched, as_unbatched])
def test_scaled_rows_are_scaled(make):
    data = make(scale=True)
    scaled = (X[:, 0] - data.recipe.features.center[0]) / data.recipe.features.scale[0]
    np.testing.assert_allclose(list(fed_rows(data)), scaled, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("make", few(MAKERS, as_odd_chunks, as_batched, as_steps))
def test_evaluation_and_prediction_take_an_epoch_in_its_order(make):
    model, data = make_model(), make(shuffle=False)
    result = evaluate.evaluate(model, data)
    expected = model.evaluate(X, Y32, verbose=0, return_dict=True)
    assert result["rows"] == ROWS
    assert result["metrics"]["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    values = predict.predict(model, data=data)["values"]
    np.testing.assert_allclose(values, model.predict(X, verbose=0), atol=1e-5)
    with pytest.raises(DataError, match="no validation rows"):
        evaluate.evaluate(model, data, "validation")


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["keras", "graph_loop", "compiled"], "keras", "graph_loop"))
def test_memory_that_is_used_again_holds_what_is_trained(engine, monkeypatch):
    from gpukeras.data import plan as data_plan

    monkeypatch.setattr(data_plan, "BLOCK_BYTES", 2 * 8 * 24)  # two batches of 8 rows
    x, codes = rows_of(203, seed=2)
    options = {"batch_size": 8, "shuffle": False}
    data = map_dataset.build_dataset(array(x), options, classes(codes))
    _, expected = weights_after(data, engine=engine)
    sizes = [5] * 40 + [3]
    _, found = weights_after(stream(Function(x, codes, sizes), batch_size=8), engine=engine)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_weights_come_with_the_chunks():
    weights = np.linspace(0, 2, ROWS)
    y = classes(CODES)
    options = {"batch_size": 25, "shuffle": False}
    data = map_dataset.build_dataset(array(X), options, y, weights)
    _, expected = weights_after(data)
    _, found = weights_after(stream(Function(X, CODES, [25] * 4, weights=weights)))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    _, found = weights_after(tfdata(slices(X, CODES, weights).batch(25)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_validation_may_be_a_stream():
    data = in_memory()
    for validation in (
        stream(Function(X, CODES, [50, 50])),
        stream(Function(X, CODES, [50, 50], ends=False), steps=2),
    ):
        model = make_model()
        report = fit.fit(model, data, {"epochs": 3}, validation=validation)
        expected = model.evaluate(X, Y32, verbose=0, return_dict=True)
        assert report.history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-4)
        assert len(report.history["val_loss"]) == 3


@settings(deadline=None, max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    batch_size=st.integers(1, 50),
    kind=st.sampled_from(["function", "batched", "rows"]),
)
def test_any_chunks_give_every_row_once_in_order(sizes, batch_size, kind):
    rows = sum(sizes)
    x, codes = np.arange(rows, dtype=float)[:, None], np.arange(rows) % 3
    y = codes + 0.5
    if kind == "function":
        data = stream(Function(x, codes, sizes))
    elif kind == "batched":
        data = tfdata(slices(x, y).batch(sizes[0]))
    else:
        data = tfdata(slices(x, y))
    assert list(fed_rows(data, 0, batch_size)) == list(range(rows))
    assert list(fed_rows(data, 1, batch_size)) == list(range(rows))


# Steps and plans ---------------------------------------------------------------------------------


def test_an_unknown_number_of_steps_is_known_after_an_epoch():
    events = []
    data = as_function()
    assert (data.plan("CPU:0").rows, data.plan("CPU:0").steps_per_epoch) == (0, 0)
    report = fit.fit(make_model(), data, {"epochs": 2}, on_event=events.append)
    assert {event["steps"] for event in events if event["epoch"] == 2} == {4}
    assert (report.plan.rows, report.plan.steps_per_epoch, report.plan.last_batch) == (100, 4, 4)
    assert report.samples_per_s > 0
    assert 0 <= report.input_share <= 1


def test_epochs_may_differ_in_length():
    sizes = iter([10, 10, None, 10, 10, 10, None, 10, None, None])

    def call(epoch, batch):
        size = next(sizes)
        return None if size is None else chunk(X[:size], classes(CODES[:size]))

    report, _ = weights_after(stream(call), epochs=3)
    assert report.rows == 60


def as_four():
    return tfdata(slices(X[:96], CODES[:96]).repeat().batch(32), steps=4)


@pytest.mark.slow
def test_a_callback_that_works_on_batches_sees_every_batch():
    class Counter(runtime.keras().callbacks.Callback):
        seen = 0

        begun = 0

        def on_train_batch_begin(self, batch, logs=None):
            self.begun += 1

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1

    # Keras too begins one more where nobody can know that the rows end.
    for make, begun in ((as_function, 5), (as_batched, 4), (as_steps, 4), (as_four, 4)):
        counter = Counter()
        report = fit.fit(make_model(), make(), {"epochs": 3}, callbacks=[counter])
        assert (counter.begun, counter.seen) == (3 * begun, 3 * 4)
        assert report.engine.engine == "keras"


def test_an_epoch_may_have_other_numbers_of_batches_than_its_first_chunk_makes_expect():
    told = []

    class Listing(runtime.keras().callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            told.append(("begin", batch))

        def on_train_batch_end(self, batch, logs=None):
            told.append(("end", batch))

    def batches(count):
        return [(kind, batch) for batch in range(count) for kind in ("begin", "end")]

    growing = Function(X, CODES, [10, 20, 20], ends=False)  # 5 batches of 10, where 3 are expected
    fit.fit(make_model(), stream(growing, steps=3), {"epochs": 1}, callbacks=[Listing()])
    assert told == batches(5)
    told.clear()
    shrinking = Function(X, CODES, [20, 10, 10], ends=False)
    fit.fit(make_model(), stream(shrinking, steps=3), {"epochs": 2}, callbacks=[Listing()])
    assert told == 2 * [*batches(2), ("begin", 2)]


@pytest.mark.parametrize(
    ("options", "shuffle", "reason"),
    [
        ({}, "as given", "in the order given; `buffer` or `cache = TRUE` would shuffle"),
        ({"shuffle": False}, "none", "in the order given"),
        ({"buffer": 50}, "buffer", "a buffer of 50 rows, anew each epoch"),
    ],
)
@pytest.mark.parametrize("make", [as_function, as_batched, as_unbatched])
def test_the_plan_says_how_rows_are_shuffled(make, options, shuffle, reason):
    data = make(**options)
    plan = data.plan("CPU:0")
    assert (plan.mode, plan.shuffle, plan.shuffle_reason) == ("streamed", shuffle, reason)
    orders = [list(fed_rows(data, epoch)) for epoch in (0, 1)]
    in_order = [np.float32(value) for value in X[:, 0]]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(in_order)
    assert (orders[0] == in_order) == (orders[1] == in_order) == (shuffle != "buffer")
    assert (orders[0] == orders[1]) == (shuffle != "buffer")


def test_a_batch_is_what_the_function_gives_unless_asked_otherwise():
    assert as_function().plan("CPU:0").batch_size == 32
    assert as_odd_chunks().plan("CPU:0").batch_size == 32
    assert as_function().plan("CPU:0", 10).batch_size == 10
    assert as_steps().plan("CPU:0").steps_per_epoch == 4
    assert as_batched().plan("CPU:0").batch_size == 32


@pytest.mark.slow
def test_the_last_batch_may_be_left_out():
    for make in (as_function, as_batched, as_unbatched):
        report, _ = weights_after(make(drop_last=True))
        assert report.rows == 2 * 96


def test_bytes_cross_as_bytes_and_train_as_floats():
    pixels = np.random.default_rng(1).integers(0, 255, (40, 5), dtype=np.uint8)
    data = tfdata(slices(pixels, np.arange(40) % 3).batch(8))
    assert data.row_bytes == 5 + 4
    report, _ = weights_after(data)
    assert report.rows == 80
