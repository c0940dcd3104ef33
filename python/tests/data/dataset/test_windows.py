from itertools import product

import numpy as np
import pytest
from nightly import few
from series import make_columns, numbers, take, windows

from gpukeras import DataError, SpecError
from gpukeras.backend import runtime
from gpukeras.data import builder
from gpukeras.data.loader import loader
from gpukeras.data.recipe.serialization import from_portable, to_portable
from gpukeras.data.saved import writer
from gpukeras.models import mlp
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf


def build(columns=None, options=None, recipe=None, **given):
    columns = make_columns() if columns is None else columns
    features = {"kind": "windows", "columns": columns} if recipe else windows(columns, **given)
    return builder.assemble(features, {"scale": True, **(options or {})}, recipe=recipe)


def batches(data, batch_size=32):
    plan = data.plan("CPU:0", batch_size)
    for block in loader.open_loader(data, plan).epoch(0):
        rows = block.rows * block.batches
        yield tuple(np.asarray(array)[:rows] for array in block.arrays)


def joined(data):
    return [np.concatenate(parts) for parts in zip(*batches(data), strict=True)]


def keras_batches(rows, targets, stride, window=8):
    made = runtime.keras().utils.timeseries_dataset_from_array(
        rows, targets, sequence_length=window, sequence_stride=stride, batch_size=32
    )
    return [np.concatenate(parts) for parts in zip(*made, strict=True)]


@pytest.mark.parametrize("stride", [1, 3])
@pytest.mark.parametrize("targets", ["load", ["load", "temp"]])
def test_batches_are_those_of_keras(stride, targets):
    columns = make_columns(100, "A")[2:4]
    given = [numbers("when", np.arange(100)), *columns]
    options = {"scale": False, "shuffle": False}
    data = build(given, options, group=None, horizon=1, stride=stride, targets=targets)
    rows = np.stack([column["values"] for column in columns], axis=1).astype(np.float32)
    labels = rows[8:] if isinstance(targets, list) else rows[8:, 0]
    expected = keras_batches(rows[:-1], labels, stride)
    for one, other in zip(joined(data), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_shuffled_batches_are_those_of_keras_as_sets():
    rows = np.arange(300, dtype=np.float32).reshape(100, 3)
    columns = [numbers("when", np.arange(100)), *(numbers(f"v{i}", rows[:, i]) for i in range(3))]
    data = build(columns, {"scale": False}, group=None, horizon=1, targets="v0")
    x, y = joined(data)
    expected = keras_batches(rows[:-1], rows[8:, 0], 1)
    assert not np.array_equal(y, expected[1])
    order = np.argsort(y)
    np.testing.assert_array_equal(x[order], expected[0])
    np.testing.assert_array_equal(y[order], expected[1])


def test_labels_of_several_rows_follow_their_window():
    data = build(options={"scale": False}, targets=["load", "temp"])
    x, y = data.arrays
    assert (x.shape, y.shape) == ((100, 8, 4), (100, 3, 2))
    load = make_columns()[2]["values"]
    np.testing.assert_array_equal(x[:, 0, 0], np.concatenate([load[:50], load[60:110]]))
    np.testing.assert_array_equal(y[:, 0, 0], x[:, 0, 0] + 8)


def test_the_recipe_learns_from_the_rows_before_the_border():
    columns = make_columns()
    data = build(columns, {"validation": 0.2})
    early = columns[2]["values"][np.arange(120) % 60 < 48]
    assert data.recipe.features.columns[0].center == pytest.approx(early.mean())
    assert (data.count("train"), data.count("validation")) == (2 * 38, 2 * 10)
    assert data.recipe.label.maximum == 119.5


def test_rows_are_stored_once():
    data = build(make_columns(1000), window=96)
    plan = data.plan("GPU:0")
    bytes_ = sum(source.resident_bytes for source in data.sources)
    assert bytes_ == 2000 * (4 + 1) * 4
    assert bytes_ <= plan.staged_bytes <= 1.01 * bytes_ + len(data)
    assert data.row_bytes == 96 * 4 * 4 + 3 * 4


@pytest.mark.parametrize(
    ("engine", "known"),
    few(
        product(("keras", "graph_loop", "compiled"), (None, ("temp", "day"))),
        ("graph_loop", ("temp", "day")),
    ),
)
def test_engines_train_on_windows(engine, known):
    data = build(options={"validation": 0.2, "seed": 1}, known=known)
    model = mlp.build_mlp(data, {"units": 4})
    before = evaluate.evaluate(model, data)["metrics"]["loss"]
    fit.fit(model, data, {"epochs": 3, "engine": engine})
    assert evaluate.evaluate(model, data)["metrics"]["loss"] < before


@pytest.mark.slow
def test_a_recurrent_model_predicts_each_group_and_time():
    data = build(options={"seed": 1})
    keras = runtime.keras()
    layers = [keras.Input((8, 4)), keras.layers.LSTM(3), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse")
    fit.fit(model, data, {"epochs": 1})
    whole = predict.predict(model, data=data)
    x = data.sources[0].gather(slice(None))
    np.testing.assert_allclose(whole["values"], model.predict(x, verbose=0), atol=1e-5)
    assert whole["forecast"]["time"]["values"][:4].tolist() == [19008, 19009, 19010, 19009]
    new = predict.predict(model, {"kind": "windows", "columns": make_columns()})
    assert new["values"].shape == (2, 3)
    assert new["forecast"]["groups"][0]["values"].tolist() == [1, 2]
    again = build(recipe=from_portable(to_portable(data.recipe)))
    np.testing.assert_array_equal(again.arrays[0], data.arrays[0])
    np.testing.assert_array_equal(again.arrays[1], data.arrays[1])


def test_an_output_that_is_not_the_labels_is_no_forecast():
    data = build(horizon=None, targets=None)
    assert len(data.sources) == 1
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((8, 4)), keras.layers.Dense(4)])
    assert "forecast" not in predict.predict(model, data=data)


def test_missing_values_are_imputed_in_place():
    columns = make_columns()
    columns[3]["values"][5] = np.nan
    with pytest.raises(DataError, match="Column `temp` of `x` has 1 missing value"):
        build(columns)
    data = build(columns, {"na": "impute"})
    assert data.recipe.features.feature_names[2] == "temp=NA"
    assert data.arrays[0][:, :, 2].sum() == 6  # the windows that hold the row
    columns[2]["values"][5] = np.nan
    with pytest.raises(DataError, match="`load` has 1 missing value"):
        build(columns, {"na": "impute"})


def test_options_that_windows_do_not_take_are_refused():
    columns, given = make_columns(), windows(make_columns())
    for name, value in {"weights": np.ones(120), "class_weight": "balanced"}.items():
        with pytest.raises(SpecError, match=f"`{name}` does not apply to windows of time series"):
            builder.assemble(given, {}, **{name: value})
    with pytest.raises(SpecError, match="`y` does not apply to windows"):
        builder.assemble(given, {}, {"kind": "numeric", "values": np.ones(120)})
    with pytest.raises(SpecError, match='"disk" does not apply to windows'):
        build(columns, {"cache": "disk"})
    with pytest.raises(SpecError, match="`map` takes the features of a single input"):
        builder.assemble(windows(columns, known="temp"), {}, map=lambda x: x)
    with pytest.raises(SpecError, match="`data` gives windows, which share their rows"):
        writer.open_rows(build())


def test_short_groups_are_noted():
    columns = take(make_columns(), np.arange(65))
    assert build(columns).notes == ("1 of 2 groups have fewer than 11 rows in sequence.",)


def test_a_damaged_recipe_of_windows_is_refused():
    plain = to_portable(build().recipe)
    plain["recipe"]["features"]["windows"] = None
    with pytest.raises(DataError, match="damaged: `recipe\\$features\\$windows`"):
        from_portable(plain)


def test_workers_share_windows():
    one, two = (build(options={"shard": (index, 2)}) for index in (1, 2))
    together = np.sort(np.concatenate([one.rows("train"), two.rows("train")]))
    np.testing.assert_array_equal(together, np.arange(100))
