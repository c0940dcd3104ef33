import numpy as np
import pytest
from small_fits import label_dataset, make_dataset

from gpukeras import DataError, SpecError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.models import mlp
from gpukeras.training import fit

pytestmark = pytest.mark.tf


@pytest.mark.varies
@pytest.mark.parametrize(
    ("kind", "values", "levels", "units", "loss"),
    [
        ("numeric", [1.5, 2.5, 3.5, 4.5, 5.5, 6.5], (), 1, "mean_squared_error"),
        ("matrix", [[1.0, 2.0]] * 6, (), 2, "mean_squared_error"),
        ("logical", [True, False] * 3, (), 1, "binary_crossentropy"),
        ("factor", [1, 2] * 3, "ab", 1, "binary_crossentropy"),
        ("factor", [1, 2, 3] * 2, "abc", 3, "sparse_categorical_crossentropy"),
    ],
)
def test_the_output_fits_the_labels(kind, values, levels, units, loss):
    data = label_dataset(kind, values, levels)
    model = mlp.build_mlp(data, {"units": [3, 2], "dropout": 0.1, "batch_norm": True})
    assert model.output_shape == (None, units)
    assert model.loss == loss
    report = fit.fit(model, data, {"epochs": 1})
    assert np.isfinite(report.history["loss"][0])


def test_numbers_are_predicted_in_their_own_unit():
    values = np.linspace(90_000, 110_000, 6)
    model = mlp.build_mlp(label_dataset("numeric", values), {"units": 4})
    output = model.predict(np.zeros((1, 4)), verbose=0)
    assert 80_000 < output[0, 0] < 120_000  # before any training: near the mean


def test_the_seed_fixes_the_weights():
    data = make_dataset()
    one, two, three = (mlp.build_mlp(data, {"seed": seed}) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.get_weights()[0], two.get_weights()[0])
    assert not np.array_equal(one.get_weights()[0], three.get_weights()[0])


@pytest.mark.parametrize(
    ("units", "family", "penalised"),
    [([3, 2], None, [0, 2]), ([], None, [0]), ([], "multinomial", [0])],
    ids=["hidden layers", "the output alone", "a family's output alone"],
)
def test_the_penalty_is_that_of_hidden_weights_or_of_the_outputs_alone(units, family, penalised):
    model = mlp.build_mlp(make_dataset(), {"units": units, "penalty": 0.5, "family": family})
    kernels = [model.layers[place].kernel.numpy() for place in penalised]
    squares = sum(float(np.sum(np.square(kernel))) for kernel in kernels)
    assert float(sum(model.losses)) == pytest.approx(0.5 * squares, rel=1e-5)
    assert not mlp.build_mlp(make_dataset(), {"units": units, "family": family}).losses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": [0]}, "`units` must be a whole number of at least 1"),
        ({"dropout": 1.0}, "`dropout` must be a number from 0 to 0.99"),
        ({"penalty": -1.0}, "`penalty` must be a number of at least 0"),
        ({"activation": "swoosh"}, "Keras refused"),
        ({"optimizer": "sgdd"}, "Keras refused"),
        ({"optimizer": 3}, "`optimizer` must be the name"),
        ({"units": 1e9}, r"`units` makes [0-9,]+ weights: training them takes"),
        ({"units": [1e6, 1e6]}, r"`units` makes [0-9,]+ weights"),
        ({"units": [8, 1e10]}, r"`units` makes [0-9,]+ weights"),
    ],
)
def test_options_that_no_network_has_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        mlp.build_mlp(make_dataset(), options)


def test_images_are_flattened_and_the_learning_rate_is_taken():
    data = label_dataset("numeric", np.arange(6) + 0.5, shape=(6, 3, 3, 2))
    model = mlp.build_mlp(data, {"units": [], "learning_rate": 0.5})
    assert (model.input_shape, model.output_shape) == ((None, 3, 3, 2), (None, 1))
    assert float(model.optimizer.learning_rate) == 0.5


def test_a_dataset_without_labels_is_refused():
    data = data_dataset.build_dataset({"kind": "array", "values": np.zeros((3, 1))}, {})
    with pytest.raises(DataError, match="no labels to learn"):
        mlp.build_mlp(data, {})


def test_its_size_counts_every_layer(monkeypatch):
    data = label_dataset("numeric", np.arange(6.0))
    model = mlp.build_mlp(data, {"units": [8, 4]})
    trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    needed = mlp.BYTES_A_WEIGHT * trained
    monkeypatch.setattr("gpukeras.system.host.read_free_memory", lambda: needed)
    mlp.build_mlp(data, {"units": [8, 4]})
    monkeypatch.setattr("gpukeras.system.host.read_free_memory", lambda: needed - 1)
    with pytest.raises(SpecError, match=f"`units` makes {trained} weights"):
        mlp.build_mlp(data, {"units": [8, 4]})
