"""Chunks of rows that a function gives: when it is called, what they may hold, what is wrong."""

import numpy as np
import pytest
from small_fits import make_model
from streamed import (
    CODES,
    ROWS,
    Function,
    X,
    array,
    as_batched,
    as_function,
    chunk,
    classes,
    fed_rows,
    numbers,
    slices,
    stream,
    tfdata,
    weights_after,
)

from gpukeras import DataError, GeneratorError, SpecError
from gpukeras.backend import runtime
from gpukeras.core.errors import EndedEarlyWarning
from gpukeras.data.dataset import map_dataset
from gpukeras.training import fit

pytestmark = pytest.mark.tf


# The function is called on this thread, between steps ------------------------------------------


def test_the_function_is_called_on_the_callers_thread_as_often_as_needed():
    import threading

    seen = []
    function = Function(X, CODES, [25] * 4)

    def call(epoch, batch):
        seen.append(threading.get_ident())
        return function(epoch, batch)

    fit.fit(make_model(), stream(call), {"epochs": 2})
    assert set(seen) == {threading.get_ident()}
    assert function.calls == [(1, b) for b in range(1, 6)] + [(2, b) for b in range(1, 6)]


def test_a_cached_function_is_never_called_again():
    function = Function(X, CODES, [25] * 4)
    data = stream(function, cache=True)
    calls = len(function.calls)
    weights_after(data, epochs=3)
    assert len(function.calls) == calls == 5
    plan = data.plan("CPU:0")
    assert (plan.mode, plan.shuffle, plan.rows) == ("resident", "rows", 100)


def test_what_is_cached_may_be_split_weighed_and_kept_on_disk(monkeypatch):
    from gpukeras.data.reader import storage

    monkeypatch.setattr(storage, "MEMORY_BYTES", 1000)
    data = stream(Function(X, CODES, [25] * 4), cache="disk", validation=0.2, scale=True)
    assert (len(data.rows("train")), len(data.rows("validation"))) == (80, 20)
    assert "scratch file" in data.sources[0].streamed
    kept = data.rows("train")
    np.testing.assert_allclose(data.recipe.features.center, X[kept].mean(axis=0))
    np.testing.assert_allclose(
        data.arrays[0],
        (X - data.recipe.features.center) / data.recipe.features.scale,
        rtol=1e-4,
        atol=1e-6,
    )


def test_steps_end_an_endless_function_that_is_cached():
    data = stream(Function(X, CODES, [10] * 10, ends=False), steps=5, cache=True)
    assert len(data) == 50
    assert len(tfdata(slices(X, CODES).repeat().batch(10), steps=15, cache=True)) == 150
    assert len(tfdata(slices(X, CODES).repeat(), steps=2, cache=True, batch_size=20)) == 40


def test_an_endless_function_without_steps_is_named(monkeypatch):
    from gpukeras.data.dataset import chunks
    from gpukeras.data.reader import storage
    from gpukeras.system import host

    monkeypatch.setattr(chunks, "MEMORY_BYTES", 10_000)
    monkeypatch.setattr(storage, "SPARE_BYTES", 2**62)
    with pytest.raises(DataError, match="fill the place there is.*Give `steps`"):
        stream(Function(X, CODES, [50, 50], ends=False), cache=True)
    monkeypatch.setattr(host, "read_free_memory", lambda: 5_000)
    with pytest.raises(DataError, match="the place there is: 10.5 KiB, of 4.9 KiB that are free"):
        stream(lambda epoch, batch: frame(a=[1.0, 2.0] * 50, f=list("uv") * 50), cache=True)


# Data frames -------------------------------------------------------------------------------------


def frame(y=None, kind="factor", levels=None, **columns):
    made = []
    for name, values in columns.items():
        if isinstance(values[0], str):
            own = levels or sorted(set(values))
            codes = np.array([own.index(value) + 1 for value in values], np.int32)
            made.append({"name": name, "kind": kind, "values": codes, "levels": own})
        else:
            values = np.array(values, float)
            made.append({"name": name, "kind": "numeric", "values": values, "levels": []})
    y = np.arange(len(made[0]["values"])) * 1.0 if y is None else y
    return {"features": {"kind": "columns", "columns": made}, "labels": numbers(y)}


def given_in_turn(*chunks):
    made = iter([*chunks, None])
    return lambda epoch, batch: next(made)


def test_texts_of_all_chunks_are_levels_when_they_are_cached():
    one = frame(a=[1, 2], f=["v", "w"], kind="character")
    two = frame(a=[3, 4], f=["u", "v"], kind="character")
    data = stream(given_in_turn(one, two), cache=True, batch_size=2)
    (rule,) = [rule for rule in data.recipe.features.columns if rule.kind == "category"]
    assert rule.levels == ("u", "v", "w")
    np.testing.assert_array_equal(
        data.arrays[0], [[1, 0, 1, 0], [2, 0, 0, 1], [3, 1, 0, 0], [4, 0, 1, 0]]
    )


def test_a_new_level_in_a_later_batch_is_named():
    one = frame(a=[1, 2], f=["v", "w"])
    data = stream(given_in_turn(one, frame(a=[3, 4], f=["u", "v"])), batch_size=2)
    with pytest.raises(DataError, match="Batch 2 of epoch 1: Column `f` of `x` has levels") as info:
        list(fed_rows(data))
    assert info.value.details["batch"] == 2
    assert info.value.details["column"] == "f"


def test_columns_may_come_in_another_order_but_not_be_others():
    one = frame(a=[1, 2], b=[3, 4])
    for cache, message in (("auto", "`b`"), (True, "columns .*: `b` is one too many or lacks")):
        data = stream(given_in_turn(one, frame(b=[7, 8], a=[5, 6])), cache=cache)
        assert sorted(fed_rows(data)) == [1, 2, 5, 6]
        with pytest.raises(DataError, match=f"Batch 2 of epoch 1.*{message}"):
            list(fed_rows(stream(given_in_turn(one, frame(a=[5, 6])), cache=cache)))


# Errors ------------------------------------------------------------------------------------------

FIRST = chunk(X[:10], classes(CODES[:10]))
BAD_CHUNKS = {
    "columns": (chunk(X[:10, :4], classes(CODES[:10])), "must have shape"),
    "frame": (frame(a=[1, 2]), "matrix or array|it was"),
    "labels' kind": (
        chunk(X[:10], numbers(CODES[:10])),
        "`y` holds numbers|`y` is numeric, in the first",
    ),
    "labels' levels": (chunk(X[:10], classes([3] * 10, "abcd")), "levels that training did not"),
    "no labels": (chunk(X[:10]), "There are no labels, the first batch had some"),
    "weights": (chunk(X[:10], classes(CODES[:10]), np.ones(10)), "There are weights"),
    "lengths": (chunk(X[:10], classes(CODES[:9])), "`y` has 9 rows where `x` has 10"),
    "no rows": (chunk(X[:0], classes(CODES[:0])), "`x` has no rows"),
    "missing": (chunk(np.full((3, 5), np.nan), classes([0, 1, 2])), "Column `1` of `x` has 3"),
    "infinite": (chunk(np.full((3, 5), np.inf), classes([0, 1, 2])), "3 infinite"),
    "missing label": (chunk(X[:3], classes([0, 1, -1])), "`y` has 1 missing"),
}


@pytest.mark.parametrize("cache", ["auto", True])
@pytest.mark.parametrize("which", BAD_CHUNKS)
def test_a_batch_that_does_not_fit_is_named(which, cache):
    bad, message = BAD_CHUNKS[which]
    values = cache is True and which in ("labels' levels", "missing", "infinite", "missing label")
    where = "" if values else "Batch 2 of epoch 1: .*"
    if values and which == "labels' levels":
        assert stream(given_in_turn(FIRST, bad), cache=True).recipe.label.units == 4
        return
    with pytest.raises(DataError, match=f"(?s){where}({message})"):
        list(fed_rows(stream(given_in_turn(FIRST, bad), cache=cache)))


def test_labels_are_checked_as_they_come():
    zero_one = chunk(X[:4], numbers([0, 1, 0, 1]))
    more = chunk(X[:4], numbers([0, 1, 2, 1]))
    data = stream(given_in_turn(zero_one, more))
    assert data.recipe.label.kind == "binary"
    report = fit.fit(make_model(), data, {"epochs": 1})  # its loss takes any class of the output
    label = data.recipe.label
    assert (report.rows, label.kind, label.minimum, label.maximum) == (8, "number", 0.0, 2.0)
    two = make_model(units=1)
    two.layers[-1].activation = runtime.keras().activations.sigmoid
    two.compile("sgd", "binary_crossentropy")
    with pytest.raises(DataError, match="labels from 0 to 2"):
        fit.fit(two, stream(given_in_turn(zero_one, more)), {"epochs": 1})
    few = [chunk(X[:5], numbers([0, 1, 2, 1, 0])), chunk(X[:5], numbers([0, 1, 7, 1, 0]))]
    with pytest.raises(DataError, match="labels from 0 to 7"):
        fit.fit(make_model(), stream(given_in_turn(*few)), {"epochs": 1})
    data = tfdata(slices(X[:10], np.array([0, 1, 2, 1, 0, 0, 1, 7, 1, 0])).batch(5))
    with pytest.raises(DataError, match="labels from 0 to 7"):
        fit.fit(make_model(), data, {"epochs": 1})
    with pytest.raises(DataError, match="`weights` must be finite"):
        list(fed_rows(tfdata(slices(X, CODES, np.full(ROWS, -1.0)).batch(5))))


def test_rows_that_lack_values_may_be_dropped():
    holes = X.copy()
    holes[[3, 40, 41], 2] = np.nan
    codes = CODES.copy()
    codes[99] = -1
    data = stream(Function(holes, codes, [1, 39, 2, 58]), na="drop", batch_size=32)
    assert data.plan("CPU:0").na_reason == "rows with missing values are dropped, batch by batch"
    report, found = weights_after(data)
    kept = np.delete(np.arange(ROWS), [3, 40, 41, 99])
    plain = map_dataset.build_dataset(
        array(X[kept]), {"batch_size": 32, "shuffle": False}, classes(CODES[kept])
    )
    np.testing.assert_allclose(found, weights_after(plain)[1], atol=1e-6)
    assert report.plan.dropped_rows == 4
    assert report.plan.na_reason == "dropped: 4 of 100 rows with missing values"


def test_imputing_needs_a_recipe_or_the_cache():
    holes = X.copy()
    holes[3, 2] = np.nan
    function = Function(holes, CODES, [50, 50])
    with pytest.raises(SpecError, match='`na` = "impute" needs all rows at once'):
        stream(function, na="impute")
    cached = stream(Function(holes, CODES, [50, 50]), na="impute", cache=True)
    assert cached.recipe.features.indicators == ("3",)
    again = stream(Function(holes, CODES, [50, 50]), recipe=cached.recipe)
    assert list(fed_rows(again)) == [np.float32(value) for value in X[:, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": 0.2}, "A share for `validation` needs all rows at once"),
        ({"shard": [1, 2]}, "`shard` needs all rows at once"),
        ({"steps": 0}, "`steps` must be a whole number of at least 1"),
        ({"nonsense": 1}, "Unknown option `nonsense`"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        stream(Function(X, CODES, [50, 50]), **options)


def test_a_function_without_a_batch_is_named():
    with pytest.raises(DataError, match="The function gave no batch"):
        stream(lambda epoch, batch: None)
    with pytest.raises(DataError, match="Batch 1 of epoch 1: .* leaves no row: each of 3"):
        stream(lambda epoch, batch: chunk(np.full((3, 5), np.nan), classes([0, 1, 2])), na="drop")
    recipe = stream(Function(X, CODES, [100])).recipe
    with pytest.raises(DataError, match="Batch 1 of epoch 1: Each row lacks a value"):
        stream(
            lambda epoch, batch: chunk(np.full((3, 5), np.nan), classes([0, 1, 2])),
            recipe=recipe,
            na="drop",
        )
    with pytest.raises(DataError, match="Batch 1 of epoch 1: Column `1` of `x` has 3 missing"):
        stream(lambda epoch, batch: chunk(np.full((3, 5), np.nan), classes([0, 1, 2])))


def test_a_function_that_does_not_start_again_is_named():
    data = stream(given_in_turn(FIRST, FIRST, None))  # and then None once more
    again = r"gave no batch in epoch 2\. After its end it must start again; or use `cache = TRUE`"
    with pytest.raises(DataError, match=again):
        fit.fit(make_model(), data, {"epochs": 3})


def test_an_epoch_that_ends_before_its_steps_is_shorter():
    data = stream(Function(X, CODES, [25] * 3), steps=5)
    with pytest.warns(EndedEarlyWarning, match="ended before batch 4 of epoch 1"):
        fit.fit(make_model(), data, {"epochs": 1})
    with pytest.warns(EndedEarlyWarning, match="ended before batch 4 of epoch 1"):
        assert len(stream(Function(X, CODES, [25] * 3), steps=5, cache=True)) == 75


@pytest.mark.parametrize("cache", ["auto", True])
def test_a_function_that_failed_ends_the_training(cache):
    def call(epoch, batch):
        return {"failed": True} if batch == 3 else FIRST

    with pytest.raises(GeneratorError, match="failed at batch 3 of epoch 1"):
        fit.fit(make_model(), stream(call, cache=cache), {"epochs": 1})


def test_an_interrupt_in_the_function_keeps_the_epochs_done():
    function = Function(X, CODES, [25] * 4)

    def call(epoch, batch):
        return {"interrupted": True} if epoch == 3 and batch == 2 else function(epoch, batch)

    report, _ = weights_after(stream(call), epochs=9)
    assert (report.stopped, report.epochs) == ("interrupted", 2)


def test_a_callback_may_stop_and_another_training_may_follow():
    keras, data = runtime.keras(), as_function()
    stopping = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0)
    report = fit.fit(make_model(), data, {"epochs": 9}, callbacks=[stopping])
    assert (report.stopped, report.epochs) == ("early", 2)
    report, _ = weights_after(data)
    assert report.rows == 200


@pytest.mark.slow
def test_what_the_device_does_can_be_read_with_a_stream():
    from gpukeras.diagnostics import usage

    for make in (as_function, as_batched):
        use = usage.read_use(make_model(), make(), "CPU:0", batches=2)
        assert (use["batch_size"], use["device"]) == (32, "CPU:0")
        assert use["median_s"] > 0
