from pathlib import Path

import numpy as np
import pytest
from children import run_script
from jax_runs import QUICK, needs_jax
from lazy_modules import keras
from nightly import few
from tables import make_columns, make_table

from gpukeras import DataError, SpecError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.export import keras_file, transfer
from gpukeras.export.custom_objects import Needs
from gpukeras.models.clone import copy_with_seed
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.registry import likelihood
from gpukeras.models.tabular import builder
from gpukeras.models.tabular.options import KINDS
from gpukeras.training import fit

pytestmark = pytest.mark.tf

SMALL = {"units": 8, "blocks": 2, "members": 3, "heads": 2, "rank": 3, "learning_rate": 0.02}
TESTS = Path(__file__).parents[2]


def build(data, **options):
    return builder.build_tabular(data, {**SMALL, **options})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "numeric"),
    few(
        [(kind, way) for kind in KINDS for way in ("none", "piecewise_linear", "periodic")],
        ("tabm", "piecewise_linear"),
    ),
)
def test_every_kind_learns_in_the_compiled_engine(kind, numeric):
    data = make_table("number")
    model = build(data, kind=kind, numeric_embeddings=numeric)
    report = fit.fit(model, data, {"epochs": 20, "engine": "compiled"})
    assert report.history["loss"][-1] < 0.7 * np.var(data.arrays[1])
    assert report.history["loss"][-1] < report.history["loss"][0]


@pytest.mark.parametrize(
    ("label", "shape", "loss"),
    [
        ("number", 1, "mean_squared_error"),
        ("two", 1, "binary_crossentropy"),
        ("classes", 3, "sparse_categorical_crossentropy"),
        ("matrix", 2, "mean_squared_error"),
    ],
)
@pytest.mark.parametrize("kind", ["mlp", "tabm"])
def test_the_output_fits_the_labels(kind, label, shape, loss):
    data = make_table(label)
    model = build(data, kind=kind)
    assert (model.output_shape, model.loss) == ((None, shape), loss)
    predicted = np.asarray(model(data.arrays[0]))
    assert predicted.shape == (64, shape)
    if label == "number":
        assert 900 < predicted.mean() < 1100  # before any training: in the labels' unit
    if label == "classes":
        np.testing.assert_allclose(predicted.sum(axis=1), 1, rtol=1e-5)


LOADED = """
    import sys; sys.path.insert(0, {support!r})
    import numpy as np
    from tables import make_table
    from gpukeras.export import transfer
    from gpukeras.models.tabular import builder
    from gpukeras.training import fit
    data, answer = make_table(), {{}}
    for kind in {kinds!r}:
        model = transfer.load_model({folder!r} + "/" + kind + ".keras")
        answer[kind] = model.predict(data.arrays[0], verbose=0).tolist()
    model = builder.build_tabular(data, {{"kind": "tabm", **{small!r}}})
    answer["losses"] = fit.fit(model, data, {{"epochs": 15}}).history["loss"]
"""


# `test_keras_classes.py` loads classes of ours on JAX, and trains them, in each run
@pytest.mark.nightly
@needs_jax
def test_a_fresh_process_on_jax_loads_what_was_saved_and_trains(tmp_path):
    data, expected = make_table(), {}
    for kind in KINDS:
        model = build(data, kind=kind, numeric_embeddings=NUMERIC[kind])
        path = tmp_path / f"{kind}.keras"
        transfer.save_model(model, str(path))
        assert keras_file.needs_of(path) == Needs()  # nothing that a user would have to give
        expected[kind] = np.asarray(model(data.arrays[0]))
    script = LOADED.format(
        support=str(TESTS / "support"), folder=str(tmp_path), kinds=KINDS, small=SMALL
    )
    found = run_script(script, fork=True, KERAS_BACKEND="jax", **QUICK)
    for kind in KINDS:
        np.testing.assert_allclose(found[kind], expected[kind], rtol=2e-5, atol=2e-6)
    assert found["losses"][-1] < 0.8 * found["losses"][0]


NUMERIC = dict(
    zip(KINDS, ["piecewise_linear", "none", "periodic", "none", "periodic"], strict=True)
)


@pytest.mark.slow
def test_mixed_precision_trains_and_knows_every_level():
    columns = make_columns()
    columns[3] = {
        **columns[3],
        "values": np.arange(64, dtype=np.int32) + 301,
        "levels": [f"level {place}" for place in range(1, 401)],
    }
    data = make_table("number", columns=columns)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build(data, kind="tabm", numeric_embeddings="piecewise_linear", dropout=0)
        report = fit.fit(model, data, {"epochs": 3, "engine": "keras"})
    finally:
        keras.config.set_dtype_policy("float32")
    assert np.isfinite(report.history["loss"]).all()
    assert model.output.dtype == "float32"
    codes = [layer for layer in model.layers if type(layer).__name__ == "FactorCodes"][1]
    found = np.asarray(codes(data.arrays[0]))[:, 0]
    np.testing.assert_array_equal(found, np.arange(64) + 300)  # bfloat16 has not all of them


def test_the_seed_fixes_the_weights():
    data = make_table()
    one, two, three = (build(data, kind="tabm", seed=seed).get_weights() for seed in (1, 1, 2))
    assert all(np.array_equal(*pair) for pair in zip(one, two, strict=True))
    assert not np.array_equal(one[0], three[0])


def test_an_unknown_level_has_a_row_of_zeros():
    data = make_table()
    model = build(data, kind="mlp", embeddings=4)
    for each in (model, copy_with_seed(model, 2)):
        tables = [layer for layer in each.layers if type(layer).__name__ == "Embedding"]
        assert len(tables) == 1  # factors whose embeddings have the same size share it
        (table,) = tables[0].get_weights()
        assert table.shape == (4 + 6, 4)
        unknown = [3, 9]
        assert (table[unknown] == 0).all()
        assert (np.delete(table, unknown, axis=0) != 0).all()


@pytest.mark.parametrize("encode", ["onehot", "codes"])
def test_levels_that_training_did_not_see_are_predicted_alike(encode):
    data = make_table(new_levels="own", encode=encode)
    model = build(data, kind="resnet")
    columns = make_columns(4)
    columns[2] = {**columns[2], "levels": ["r", "violet", "pink"], "values": np.array([1, 2, 3, 2])}
    columns[:2] = [{**one, "values": np.repeat(one["values"][:1], 4)} for one in columns[:2]]
    columns[3] = {**columns[3], "values": np.ones(4, np.int32)}
    rows = data_dataset.build_dataset(
        {"kind": "columns", "columns": columns}, {}, recipe=data.recipe
    )
    found = np.asarray(model(rows.arrays[0]))
    np.testing.assert_array_equal(found[1], found[2])
    np.testing.assert_array_equal(found[1], found[3])
    assert not np.array_equal(found[0], found[1])


@pytest.mark.float32(reason="reads settings of the outer optimizer")
def test_rates_are_those_of_the_kind_unless_given():
    data = make_table()
    made = builder.build_tabular(data, {"kind": "tabm", "units": 4})
    assert float(made.optimizer.learning_rate) == pytest.approx(4e-3)  # the table has few rows
    assert made.optimizer.weight_decay == pytest.approx(3e-4)
    given = {"kind": "mlp", "optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0}
    made = builder.build_tabular(data, given)
    assert type(made.optimizer).__name__ == "SGD"
    assert (float(made.optimizer.learning_rate), made.optimizer.weight_decay) == (0.5, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "forest"}, '`kind` must be one of "tabm"'),
        ({"numeric_embeddings": "spline"}, '`numeric_embeddings` must be one of "piecewise'),
        ({"dropout": 1.0}, "`dropout` must be a number from 0 to 0.99"),
        ({"embeddings": 0}, "`embeddings` must be a whole number from 1 to 600"),
        ({"embeddings": "large"}, "`embeddings` must be a whole number"),
        ({"units": 1e6}, "`units` must be a whole number from 1 to 16384"),
        ({"optimizer": "adamm"}, "Keras refused the options"),
        ({"kind": "ft_transformer", "units": 10, "heads": 4}, "must be a multiple of `heads` = 4"),
        ({"layers": 3}, "Unknown option `layers`"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(SpecError, match=message):
        builder.build_tabular(make_table(), options)


def test_rows_that_are_no_table_are_refused():
    array = {"kind": "array", "values": np.zeros((8, 4, 4, 1))}
    labels = {"kind": "numeric", "values": np.arange(8.0), "levels": []}
    images = data_dataset.build_dataset(array, {}, labels)
    with pytest.raises(DataError, match="makes models for one table: a data frame") as error:
        build(images)
    assert "gpu_mlp()" in error.value.hint
    unlabelled = data_dataset.build_dataset({"kind": "array", "values": np.zeros((8, 4))}, {})
    with pytest.raises(DataError, match="has no labels to learn"):
        build(unlabelled)
    outputs = [{"name": name, "labels": labels} for name in ("a", "b")]
    several = {"kind": "outputs", "outputs": outputs, "listed": False}
    table = {"kind": "array", "values": np.zeros((8, 4))}
    with pytest.raises(DataError, match="makes models with one output"):
        build(data_dataset.build_dataset(table, {}, several))


def test_a_matrix_is_a_table_of_numbers():
    values = np.random.default_rng(0).normal(size=(12, 3))
    labels = {"kind": "numeric", "values": values[:, 0], "levels": []}
    data = data_dataset.build_dataset({"kind": "array", "values": values}, {}, labels)
    for kind in ("ft_transformer", "dcn"):
        assert build(data, kind=kind).input_shape == (None, 3)


def test_factors_alone_are_a_table():
    columns = make_columns()
    labels = {"kind": "numeric", "values": columns[0]["values"], "levels": []}
    features = {"kind": "columns", "columns": columns[2:]}
    data = data_dataset.build_dataset(features, {}, labels)
    for kind in ("ft_transformer", "tabm"):
        assert np.asarray(build(data, kind=kind)(data.arrays[0])).shape == (64, 1)


@pytest.mark.varies
@pytest.mark.parametrize("kind", few(KINDS, "tabm", "mlp"))
@pytest.mark.parametrize(
    ("family", "label"),
    few(
        [("quantile", "number"), ({"name": "gaussian", "dispersion": "rows"}, "number")],
        ({"name": "gaussian", "dispersion": "rows"}, "number"),
    ),
)
def test_every_kind_learns_a_family_and_keeps_it_in_its_file(kind, family, label, tmp_path):
    data = make_table(label)
    model = build(data, kind=kind, family=family)
    report = fit.fit(model, data, {"epochs": 8, "engine": "graph_loop"})
    assert report.history["loss"][-1] < report.history["loss"][0]
    x = np.asarray(data.sources[0].gather(np.arange(8)), np.float32)
    found = model.predict(x, verbose=0)
    names = likelihood(family_of(model)).names(family_of(model))
    assert found.shape == (8, len(names))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), found)
    assert family_of(loaded) == family_of(model)


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(["mlp", "tabm"], "tabm"))
def test_the_loss_of_a_family_is_the_mean_over_rows_of_its_likelihood(kind):
    data = make_table("number")
    model = build(data, kind=kind, family={"name": "gaussian", "dispersion": "constant"})
    x = np.asarray(data.sources[0].gather(np.arange(40)), np.float32)
    y = np.asarray(data.sources[1].gather(np.arange(40)), np.float64).reshape(-1)
    mean, deviation = model.predict(x, verbose=0).astype(np.float64).T
    expected = np.mean(((y - mean) / deviation) ** 2 / 2 + np.log(deviation * np.sqrt(2 * np.pi)))
    assert model.evaluate(x, y, verbose=0, return_dict=True)["loss"] == pytest.approx(
        expected, 1e-4
    )
