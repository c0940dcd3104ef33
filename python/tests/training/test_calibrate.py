import json

import numpy as np
import pytest
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data.dataset import map_dataset
from gpukeras.export.archive import load_archive, save_archive
from gpukeras.models import mlp, training_rows
from gpukeras.models.calibration import calibration_of
from gpukeras.training import fit
from gpukeras.training.calibrate import calibrate, check_quantiles, predict_interval, read_quantiles
from gpukeras.training.predict import predict

pytestmark = pytest.mark.tf


def make_numbers(rows=32_000, seed=2):
    """Rows whose labels vary more where x is large."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(-2, 2, (rows, 2))
    y = np.sin(x[:, 0]) + x[:, 1] + draw.normal(size=rows) * (0.3 + 0.2 * x[:, 0])
    return x, y


def as_dataset(x, y=None, **options):
    labels = None if y is None else {"kind": "numeric", "values": y}
    return map_dataset.build_dataset(
        {"kind": "array", "values": x}, {"batch_size": 256, "seed": 1, **options}, labels
    )


@pytest.fixture(scope="module")
def fitted():
    import keras

    keras.utils.set_random_seed(1)
    x, y = make_numbers()
    data = as_dataset(x[:12_000], y[:12_000], validation=0.8)
    model = mlp.build_mlp(data, {"units": [16]})
    fit.fit(model, data, {"epochs": 10})
    return model, data, x[12_000:], y[12_000:]


def test_intervals_of_a_model_cover_new_rows_as_promised(fitted):
    model, data, x, y = fitted
    report = calibrate(model, data)
    assert (report.kind, report.rows, report.part) == ("numbers", 9600, "validation")
    for level in (0.8, 0.9):
        found = predict_interval(model, {"kind": "array", "values": x}, interval=level)
        covered = (found["lower"] <= y) & (y <= found["upper"])
        assert abs(covered.mean() - level) < 0.01  # 20,000 rows
    np.testing.assert_allclose(found["upper"] - found["values"], report.width)
    plain = predict(model, {"kind": "array", "values": x})["values"]
    np.testing.assert_allclose(found["values"], plain)


def test_the_margin_is_that_of_the_validation_rows(fitted):
    model, data, *_ = fitted
    report = calibrate(model, data)
    rows = data.rows("validation")
    values = model.predict(data.arrays[0][rows], verbose=0)[:, 0]
    scores = np.sort(np.abs(values - data.arrays[1][rows].reshape(-1)))
    assert report.width == pytest.approx(scores[int(np.ceil(9601 * 0.9)) - 1], rel=1e-5)


def test_a_training_that_does_not_begin_changes_nothing_of_the_model():
    model, other = make_model(), make_dataset(50, seed=3)
    data = make_dataset(validation=0.3)
    fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"})
    calibrate(model, data)
    before = calibration_of(model), training_rows.to_portable(model)
    late = {"kind": "exponential", "warmup": 9.0}
    with pytest.raises(SpecError, match="`warmup` is 9 epochs"):
        fit.fit(model, other, {"epochs": 1, "schedule": late})
    assert (calibration_of(model), training_rows.to_portable(model)) == before


@pytest.mark.slow
def test_a_calibration_is_saved_with_the_model_and_forgotten_by_training(fitted, tmp_path):
    model, data, x, _ = fitted
    path, rows = str(tmp_path / "model.keras"), {"kind": "array", "values": x[:20]}
    calibrate(model, data)
    expected = predict_interval(model, rows)
    save_archive(model, path)
    loaded = load_archive(path)["model"]
    for name, values in predict_interval(loaded, rows).items():
        np.testing.assert_array_equal(values, expected[name])
    fit.fit(loaded, data, {"epochs": 1})
    with pytest.raises(SpecError, match="`interval` needs a model that was calibrated on numbers"):
        predict_interval(loaded, rows)


def test_a_damaged_calibration_is_refused_by_its_file(fitted, tmp_path):
    import zipfile

    from gpukeras.export.archive import ABOUT

    model, data, *_ = fitted
    calibrate(model, data)
    path = tmp_path / "model.keras"
    save_archive(model, str(path))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members[ABOUT])
    known = about["calibration"]
    endless = {**known, "rows": float("inf")}
    for damage in ({"kind": "numbers"}, 7, {**known, "scores": [["x"]]}, endless):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                changed = json.dumps({**about, "calibration": damage}).encode()
                archive.writestr(name, changed if name == ABOUT else content)
        with pytest.raises(ModelError, match=r"the calibration in model.keras is not what was"):
            load_archive(str(path))


@pytest.mark.slow
def test_quantiles_are_corrected_where_labels_vary(fitted):
    import keras

    _, data, x, y = fitted
    levels = np.array([0.25, 0.5, 0.75], np.float32)

    def pinball(truth, outputs):
        error = keras.ops.reshape(truth, (-1, 1)) - outputs
        return keras.ops.mean(keras.ops.maximum(levels * error, (levels - 1) * error), axis=-1)

    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)]
    )
    model.compile(keras.optimizers.Adam(0.02), pinball)
    fit.fit(model, data, {"epochs": 10})
    report = calibrate(model, data, quantiles=[0.25, 0.5, 0.75])
    assert report.kind == "quantiles"
    found = predict_interval(model, {"kind": "array", "values": x}, interval=0.9)
    covered = (found["lower"] <= y) & (y <= found["upper"])
    assert abs(covered.mean() - 0.9) < 0.01
    raw = model.predict(x[:5], verbose=0)
    np.testing.assert_allclose(found["values"][:5], raw[:, 1], rtol=1e-5)
    np.testing.assert_allclose(found["lower"][:5], raw[:, 0] - report.width, rtol=1e-5, atol=1e-6)
    with pytest.raises(
        ModelError, match="one number or one class a row, but `model` has no output for each of"
    ):
        calibrate(model, data, quantiles=[0.1, 0.9])
    with pytest.raises(ModelError, match="`model` has outputs of 3 numbers a row"):
        calibrate(model, data)
    assert calibration_of(model).kind == "quantiles"  # a failure leaves it


def test_probabilities_of_an_overconfident_model_become_honest(tmp_path):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(3000, 5))
    chances = 1 / (1 + np.exp(-x[:, 0]))
    codes = (draw.uniform(size=3000) < chances).astype(np.int32)
    labels = {"kind": "factor", "values": codes + 1, "levels": ["no", "yes"]}
    data = map_dataset.build_dataset({"kind": "array", "values": x}, {"batch_size": 64}, labels)
    for units, loss in ((1, "binary_crossentropy"), (2, "sparse_categorical_crossentropy")):
        model = sure_model(units, loss)
        rows = {"kind": "array", "values": x}
        before = predict(model, rows)["values"]
        report = calibrate(model, data)
        assert report.temperature == pytest.approx(4, rel=0.15)
        assert report.error[0] > 0.1 > 0.04 > report.error[1]
        assert report.log_loss[1] < report.log_loss[0]
        after = predict(model, rows)["values"]
        second = after if units == 1 else after[:, 1]
        assert np.abs(second - chances).max() < 0.1
        hard = predict(model, rows, type="class")["values"]
        np.testing.assert_array_equal(hard, second > 0.5)
        again = calibrate(model, data)
        assert again == report  # of the model's own probabilities
        path = str(tmp_path / "model.keras")
        save_archive(model, path, overwrite=True)
        loaded = load_archive(path)["model"]
        np.testing.assert_allclose(predict(loaded, rows)["values"], after, rtol=1e-6)
        with pytest.raises(SpecError, match="but `model` predicts classes"):
            predict_interval(model, rows)
        assert not np.allclose(before, after)


def sure_model(units, loss):
    """A model that gives four times the logits that it should."""
    import keras

    activation = "sigmoid" if units == 1 else "softmax"
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(units, activation, dtype="float32")]
    )
    kernel = np.zeros((5, units), np.float32)
    kernel[0, -1] = 4
    model.set_weights([kernel, np.zeros(units, np.float32)])
    model.compile("sgd", loss)
    return model


def test_what_cannot_be_calibrated_is_refused(fitted):
    from streamed import as_function

    model, data, x, y = fitted
    with pytest.raises(DataError, match="`data` has no labels to compare predictions with"):
        calibrate(model, as_dataset(x[:50]))
    with pytest.raises(DataError, match="`data` has no validation rows"):
        calibrate(model, as_dataset(x[:50], y[:50]), part="validation")
    stream = as_function()
    with pytest.raises(DataError, match="calibration compares predictions with labels by row"):
        calibrate(make_model(stream.recipe.shape[0]), stream)
    for wrong in ([0.5], [0.9, 0.1], [0.0, 0.5], ["a", "b"], 0.5):
        with pytest.raises(SpecError, match="at least two probabilities between 0 and 1, in ascen"):
            check_quantiles(wrong)
    matrix = {"kind": "matrix", "values": np.stack([y[:50], y[:50]], 1)}
    both = map_dataset.build_dataset(
        {"kind": "array", "values": x[:50]}, {"batch_size": 10}, matrix
    )
    with pytest.raises(ModelError, match="`model` has labels of 2 numbers a row"):
        calibrate(mlp.build_mlp(both, {"units": [4]}), both)
    few = as_dataset(x[:8], y[:8], batch_size=4)
    assert calibrate(mlp.build_mlp(few, {"units": [4]}), few).width is None


def test_classes_of_a_small_model_are_calibrated():
    data, model = make_dataset(300), make_model()
    fit.fit(model, data, {"epochs": 2})
    report = calibrate(model, data)
    assert report.log_loss[1] <= report.log_loss[0]
    np.testing.assert_allclose(predict(model, data=data)["values"].sum(1), 1, rtol=1e-6)


def make_linear(units, loss):
    import keras

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(units)])
    model.set_weights([np.eye(5, units, dtype=np.float32) * 3, np.zeros(units, np.float32)])
    model.compile("sgd", loss)
    return model


def test_numbers_are_not_taken_for_probabilities():
    import keras

    def own(labels, logits):
        losses = keras.losses.sparse_categorical_crossentropy
        return losses(labels, logits, from_logits=True)

    for classes, units, loss in ((3, 3, own), (2, 1, "mse")):
        model, data = make_linear(units, loss), make_dataset(300, classes=classes)
        with pytest.raises(ModelError, match="`model` gives numbers outside of 0 to 1 for classes"):
            calibrate(model, data)


def test_a_family_of_numbers_has_intervals_for_labels_of_0_and_1():
    x, y = make_numbers(200)
    data = as_dataset(x, (y > 0).astype(float))
    for family in ("poisson", "gaussian"):
        model = mlp.build_mlp(data, {"units": [], "family": family})
        assert calibrate(model, data).kind == "numbers"


def test_weights_of_classes_are_for_training_alone():
    x, y = make_numbers(600)
    labels = {"kind": "factor", "values": np.where(y > 1, 2, 1), "levels": ["no", "yes"]}
    rows = {"kind": "array", "values": x}
    plain = map_dataset.build_dataset(rows, {"batch_size": 64}, labels)
    balanced = map_dataset.build_dataset(rows, {"batch_size": 64}, labels, class_weight="balanced")
    model = mlp.build_mlp(plain, {"units": [4], "seed": 1})
    assert calibrate(model, balanced) == calibrate(model, plain)


def test_quantiles_are_read_from_the_names_of_outputs():
    assert read_quantiles(["q0.05", "q0.5", "q0.95"]) == (0.05, 0.5, 0.95)
    assert (
        read_quantiles([]) == read_quantiles(["q0.1", "size"]) == read_quantiles(["a", "b"]) == ()
    )


# Rows that trained the model ---------------------------------------------------------------------


def fit_small(x, y, **options):
    data = as_dataset(x, y, **options)
    model = mlp.build_mlp(data, {"units": [], "seed": 1})
    fit.fit(model, data, {"epochs": 1})
    return model, data


@pytest.fixture(scope="module")
def small():
    x, y = make_numbers(1_000)
    model, data = fit_small(x[:600], y[:600], validation=0.5)
    return model, data, x, y


@pytest.mark.parametrize("part", ["train", "all", "validation"])
def test_training_rows_of_the_dataset_are_known(small, part):
    model, data, *_ = small
    expected = {"train": 1.0, "all": 0.5, "validation": 0.0}[part]
    assert calibrate(model, data, part=part).trained == pytest.approx(expected)


@pytest.mark.parametrize("loaded", [False, True], ids=["fitted", "loaded"])
def test_training_rows_are_known_in_other_datasets(small, loaded, tmp_path):
    model, data, x, y = small
    if loaded:
        save_archive(model, str(tmp_path / "model.keras"))
        model = load_archive(str(tmp_path / "model.keras"))["model"]
    order = np.random.default_rng(1).permutation(data.train_rows)
    mixed = np.concatenate([order[:50], np.arange(600, 750)])
    cases = {"equal": (data.train_rows, 1.0), "permuted": (order, 1.0), "some": (order[:40], 1.0)}
    cases |= {"mixed": (mixed, 0.25), "new": (np.arange(600, 1_000), 0.0)}
    for name, (rows, expected) in cases.items():
        found = calibrate(model, as_dataset(x[rows], y[rows])).trained
        assert found == pytest.approx(expected), name


def test_rows_that_are_equal_by_chance_are_no_training_rows():
    draw = np.random.default_rng(3)
    x, y = draw.integers(2, size=(800, 3)).astype(float), draw.integers(3, size=800) * 1.0
    model, _ = fit_small(x[:400], y[:400])
    assert calibrate(model, as_dataset(x[400:], y[400:])).trained == 0
    assert calibrate(model, as_dataset(x[:400], y[:400])).trained == 1  # all of them, and no other


def test_rows_of_weight_0_do_not_train():
    x, y = make_numbers(200)
    weights = np.repeat([1.0, 0.0], 100)
    labels = {"kind": "numeric", "values": y}
    features = {"kind": "array", "values": x}
    data = map_dataset.build_dataset(features, {"batch_size": 50}, labels, weights=weights)
    model = mlp.build_mlp(data, {"units": [], "seed": 1})
    fit.fit(model, data, {"epochs": 1})
    assert calibrate(model, as_dataset(x[100:], y[100:])).trained == 0
    assert calibrate(model, as_dataset(x[:100], y[:100])).trained == 1


# Where labels end --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "low", "high"),
    [
        ("poisson", 0, np.inf),
        ("negative_binomial", 0, np.inf),
        ("zero_inflated_poisson", 0, np.inf),
        ("gamma", 0, np.inf),
        ("beta", 0, 1),
        ("gaussian", -np.inf, np.inf),
        ({"name": "gaussian", "dispersion": "rows"}, -np.inf, np.inf),
        ({"name": "quantile", "quantiles": [0.1, 0.9]}, -np.inf, np.inf),
    ],
)
def test_intervals_end_where_the_labels_of_a_family_do(family, low, high):
    draw = np.random.default_rng(5)
    x = draw.normal(size=(60, 1))
    y = draw.poisson(np.exp(x[:, 0])) * 1.0
    name = family if isinstance(family, str) else family["name"]
    y = {"gamma": y + 0.5, "beta": (y + 0.1) / (y.max() + 0.2)}.get(name, y)
    data = as_dataset(x, y)
    model = mlp.build_mlp(data, {"units": [], "seed": 1, "family": family})
    assert calibrate(model, data).trained == 0  # not trained yet
    found = predict_interval(model, data=data, interval=0.95)
    assert found["lower"].min() >= low
    assert found["upper"].max() <= high
    if low == 0:
        assert found["lower"].min() == 0
    else:
        assert found["lower"].min() < 0
    assert np.mean((found["lower"] <= y) & (y <= found["upper"])) >= 0.95


@pytest.mark.parametrize(
    ("loss", "low", "high"),
    [
        ("poisson", 0, np.inf),
        ("mean_squared_logarithmic_error", 0, np.inf),
        ("binary_crossentropy", 0, 1),
        ("mean_squared_error", -np.inf, np.inf),
    ],
)
def test_intervals_end_where_the_labels_of_a_loss_do(loss, low, high):
    import keras

    x = np.linspace(0, 1, 40).reshape(-1, 1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid")])
    model.layers[0].set_weights([np.array([[-6.0]]), np.array([3.0])])  # all wrong
    model.compile("sgd", loss)
    data = as_dataset(x, x[:, 0] * 0.9 + 0.05)
    calibrate(model, data)
    found = predict_interval(model, data=data, interval=0.95)
    assert found["lower"].min() >= low
    assert found["upper"].max() <= high
    assert (found["lower"].min() < 0) == (low < 0)


def test_intervals_of_logits_are_around_shares_where_labels_are_shares():
    import keras

    x = np.random.default_rng(0).normal(size=(400, 1))
    y = 1 / (1 + np.exp(-2 * x[:, 0]))
    data = as_dataset(x, y, validation=0.5, scale=False)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    model.set_weights([np.full((1, 1), 2.0), np.zeros(1)])  # exactly so
    assert calibrate(model, data).width < 1e-6
    for loss in (model.loss, "mse"):  # compiled anew, it gives the same numbers
        model.compile("sgd", loss)
        found = predict_interval(model, {"kind": "array", "values": x})
        for name in ("lower", "values", "upper"):
            np.testing.assert_allclose(np.ravel(found[name]), y, atol=1e-5)
