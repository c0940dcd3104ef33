"""How a tf.data dataset is read, and what cannot be trained on."""

import time

import numpy as np
import pytest

from gpukeras import DataError, SpecError
from gpukeras.backend import runtime
from gpukeras.core.errors import EndedEarlyWarning
from gpukeras.core.pulling import Puller
from gpukeras.data.dataset import streams as sequences
from gpukeras.data.dataset import tfdata
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.dataset.tfdata import TfStream
from gpukeras.data.loader.loader import open_loader
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.training import fit

pytestmark = pytest.mark.tf


def dataset(*parts):
    slices = runtime.tensorflow().data.Dataset.from_tensor_slices
    return slices(parts if len(parts) > 1 else parts[0])


X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataset(((X, X), X), Y), "`x.input_1` of the tf.data dataset is several tensors"),
        (lambda: dataset(X, Y, Y, Y), "have 4 parts"),
        (lambda: dataset(X, Y.astype(str)), "`y` of the tf.data dataset must be numeric"),
        (lambda: dataset(X.astype(np.complex64), Y), "must be numeric, not complex64"),
        (lambda: dataset(runtime.tensorflow().ragged.constant([[1.0], [2.0, 3.0]])), "ragged rows"),
        (lambda: dataset(X[:0], Y[:0]), "has no rows"),
    ],
)
def test_elements_that_cannot_be_trained_on_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        stream(make())


def stream(made, steps=None, **options):
    features = {"kind": "tfdata", "dataset": made, "steps": steps}
    return sequences.build_stream(features, Request(options))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: dataset(X, Y).repeat(), {}, "has no end: `steps` must say"),
        (lambda: dataset(X, Y).batch(5), {"steps": 5}, "`steps` is 5, but .* has 4 batches"),
        (lambda: dataset(X, Y), {"na": "drop"}, '`na` = "drop" needs all rows at once'),
        (lambda: dataset(X, Y), {"validation": 0.5}, "`validation` needs all rows at once"),
        (lambda: [1, 2], {}, "`x` must be a tf.data.Dataset, not 2 numbers"),
    ],
)
def test_options_that_do_not_fit_are_refused(make, options, message):
    with pytest.raises(SpecError, match=message):
        stream(make(), **options)


def feed_all(data, epochs=1):
    loader = open_loader(data, data.plan("CPU:0"))
    for epoch in range(epochs):
        list(loader.epoch(epoch))


def test_what_fails_in_the_users_pipeline_is_named_with_its_first_line():
    tf = runtime.tensorflow()

    def broken(x, y):
        return tf.ensure_shape(tf.py_function(fail_late, [x], tf.float64), (2,)), y

    def fail_late(x):
        if x[0] > 30:
            raise ValueError("nothing beyond 30")
        return x

    data = stream(dataset(X, Y).map(broken).batch(4))
    with pytest.raises(DataError, match="failed in epoch 1: ValueError: nothing beyond 30") as info:
        feed_all(data)
    assert isinstance(info.value.__cause__, tf.errors.OpError)


def test_missing_and_infinite_values_are_found_in_every_epoch():
    holes = X.copy()
    holes[17, 1] = np.nan
    with pytest.raises(DataError, match="`x` has missing or infinite values"):
        feed_all(stream(dataset(holes, Y).batch(4)))
    with pytest.raises(DataError, match="`y` has missing or infinite values"):
        feed_all(stream(dataset(X, np.where(Y == 2, np.inf, Y)[::-1].copy()).batch(1)))
    cached = stream(dataset(holes, Y), na="drop", cache=True)
    assert (cached.na, cached.dropped) == ("drop", 1)


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_a_recipe_that_only_divides_is_applied(dtype):
    """As one of a sparse matrix, which subtracts no means."""
    recipe = Recipe(ArrayEncoding((2,), (4.0, 5.0)))
    features = {"kind": "tfdata", "dataset": dataset(X.astype(dtype)).batch(20)}
    data = sequences.build_stream(features, Request({}, recipe=recipe))
    (rows,) = (block.arrays for block in open_loader(data, data.plan("CPU:0")).epoch(1))
    np.testing.assert_allclose(np.asarray(rows), X / [4, 5], rtol=1e-6)
    np.testing.assert_allclose(data.sources[0].gather(slice(None)), X / [4, 5], rtol=1e-6)


@pytest.mark.parametrize(
    ("learned", "expected"),
    [({"center": (1.0, 2.0)}, X - [1, 2]), ({"fill": (1.0, 2.0)}, X)],
    ids=["centres", "fills"],
)
def test_a_recipe_that_divides_by_nothing_is_applied(learned, expected):
    recipe = Recipe(ArrayEncoding((2,), **learned))
    features = {"kind": "tfdata", "dataset": dataset(X).batch(20)}
    data = sequences.build_stream(features, Request({}, recipe=recipe))
    (rows,) = (block.arrays for block in open_loader(data, data.plan("CPU:0")).epoch(0))
    np.testing.assert_allclose(np.asarray(rows), expected, rtol=1e-6)


def test_an_epoch_that_ends_before_its_steps_is_shorter():
    short = dataset(X, Y).batch(5).filter(lambda x, y: True)
    data = stream(short, steps=6)
    with pytest.warns(EndedEarlyWarning, match="ended before batch 5 of epoch 1") as warned:
        feed_all(data)
    assert len(warned) == 1
    with pytest.warns(EndedEarlyWarning, match="ended before batch 5 of epoch 1"):
        assert len(stream(short, steps=6, cache=True)) == 20
    feed_all(stream(short, steps=2), epochs=5)  # where it ends with an epoch it starts again


def test_a_known_length_is_known_before_it_is_read():
    assert stream(dataset(X, Y).batch(8)).plan("CPU:0").steps_per_epoch == 3
    assert stream(dataset(X, Y), batch_size=8).plan("CPU:0").rows == 20
    assert stream(dataset(X, Y).batch(8).filter(lambda x, y: True)).plan("CPU:0").rows == 0
    assert TfStream(dataset(X, Y).batch(8)).expect_rows(8) == 24  # an estimate: the last is short


def test_leaving_an_epoch_early_starts_the_next_one_anew():
    data = stream(dataset(X, Y + 0.5).batch(2))
    loader = open_loader(data, data.plan("CPU:0"))
    blocks = loader.epoch(0)
    next(blocks)
    blocks.close()
    block = next(loader.epoch(1))
    assert block.arrays[0][0].numpy().tolist() == [0, 1]


@pytest.mark.parametrize("known", [True, False])
def test_training_begins_long_before_an_epoch_is_read(known):
    tf, seen = runtime.tensorflow(), []

    def look(x):
        seen.append(len(seen))
        return x

    rows = tf.data.Dataset.range(256).batch(1)
    rows = rows.map(lambda n: tf.ensure_shape(tf.numpy_function(look, [n], tf.int64), (1,)))
    rows = rows.map(lambda n: (tf.cast(n, tf.float32)[:, None], n))
    data = stream(rows if known else rows.filter(lambda x, y: True))
    del seen[:]
    blocks = open_loader(data, data.plan("CPU:0")).epoch(0)
    next(blocks)
    assert len(seen) < 256
    blocks.close()


def test_a_pipeline_that_is_stuck_can_be_interrupted():
    tf = runtime.tensorflow()
    until = time.monotonic() + 20

    def stuck(x):
        while time.monotonic() < until:
            time.sleep(0.01)
        return x

    def slow(x, y):
        return tf.ensure_shape(tf.numpy_function(stuck, [x], tf.float64), (2,)), y

    both = dataset(X[:4], Y[:4]).concatenate(dataset(X, Y).map(slow)).batch(2)
    from small_fits import make_model

    report = fit.fit(
        make_model(columns=2), stream(both), {"epochs": 1}, on_event=lambda event: True
    )
    until = 0
    assert report.stopped == "interrupted"


def test_what_an_iterator_raises_is_raised_where_it_is_asked():
    def broken():
        yield 1
        raise KeyError("own")

    puller = Puller(broken)
    assert puller.pull() == 1
    with pytest.raises(KeyError, match="own"):
        puller.pull()
    puller.close()


def test_elements_of_a_python_function_are_made_when_they_are_asked_for():
    """R runs its function on the main thread, where a training step may be traced meanwhile."""
    tf, asked = runtime.tensorflow(), []

    def note(row):
        asked.append(row)
        return row

    rows = tf.data.Dataset.from_tensor_slices(tf.ones((60, 3)))
    made = rows.map(lambda row: tf.ensure_shape(tf.py_function(note, [row], tf.float32), (3,)))
    elements = iter(tfdata.prefetch_one(tfdata.disable_prefetch(made.batch(20))))
    next(elements)
    time.sleep(0.5)  # what ran ahead would be seen by then
    assert len(asked) == 20
    assert tfdata.disable_prefetch(rows) is rows
