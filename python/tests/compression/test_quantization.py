"""Quantized copies: what changed, what is listed, what is refused."""

import numpy as np
import pytest
from lazy_modules import keras
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime
from gpukeras.compression import quantization
from gpukeras.compression.metrics import SCALES
from gpukeras.core.errors import CompressionError, ModelError, SpecError
from gpukeras.models.calibration import Calibration, calibration_of, tie_calibration
from gpukeras.training import evaluate, fit

pytestmark = pytest.mark.tf

ROWS = np.random.default_rng(1).normal(size=(50, 5)).astype(np.float32)


@pytest.mark.varies
@pytest.mark.parametrize(
    ("mode", "bits", "error"),
    few(
        [("int8", 8, 0.02), ("int4", 4, 0.2), ("float8", 8, 0.2)],
        ("int8", 8, 0.02),
        ("float8", 8, 0.2),
    ),
)
def test_a_copy_is_quantized_and_the_model_is_not(mode, bits, error, tmp_path):
    model = make_model(layers=[keras.layers.BatchNormalization()])
    weights = model.get_weights()
    found = quantization.quantize(model, options={"mode": mode})
    small, report = found["model"], found["report"]
    assert np.abs(np.asarray(small(ROWS)) - np.asarray(model(ROWS))).max() < error
    assert [change.after for change in report.layers] == [bits, bits]
    assert [(one.kind, one.reason) for one in report.listed] == [
        ("BatchNormalization", f"Keras has no {mode} for BatchNormalization")
    ]
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    small.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    np.testing.assert_array_equal(loaded(ROWS), small(ROWS))


def test_int8_takes_a_quarter_on_disk():
    layers = [keras.Input((200,)), keras.layers.Dense(400, "relu"), keras.layers.Dense(200)]
    found = quantization.quantize(keras.Sequential(layers))["report"]
    assert found.after.disk_bytes < 0.3 * found.before.disk_bytes
    assert found.after.parameters == found.before.parameters


def test_the_report_says_that_a_calibration_is_the_models_own():
    model = make_model()
    before = quantization.quantize(model)["report"].notes
    tie_calibration(model, Calibration("classes", 50, reading="softmax", temperature=2.0))
    found = quantization.quantize(model)
    (more,) = set(found["report"].notes) - set(before)
    assert more.startswith("The new model is not calibrated")
    assert calibration_of(found["model"]) is None
    assert calibration_of(model) is not None


def test_excluded_layers_stay():
    model = make_model()
    first, last = (layer.name for layer in model.layers)
    found = quantization.quantize(model, options={"exclude": first})["report"]
    assert [change.layer for change in found.layers] == [last]
    assert [(one.layer, one.reason) for one in found.listed] == [(first, "excluded")]
    with pytest.raises(SpecError, match='names "nothing", which no layer has'):
        quantization.quantize(model, options={"exclude": ["nothing"]})


def test_what_cannot_be_quantized_is_refused():
    convolution = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3)])
    with pytest.raises(ModelError, match="none of the layers"):
        quantization.quantize(convolution)
    small = quantization.quantize(make_model())["model"]
    with pytest.raises(ModelError, match="`model` is quantized already"):
        quantization.quantize(small)
    with pytest.raises(SpecError, match="`max_drop` needs `data`"):
        quantization.quantize(make_model(), options={"max_drop": 0.1})


@pytest.mark.slow
def test_a_model_that_gets_worse_is_refused():
    model, data = make_model(), make_dataset(validation=0.2)
    data.sources[0].array[:, 4] = 0.0
    fit.fit(model, data, {"epochs": 5, "engine": "keras"})
    kernel = model.layers[0].kernel.numpy()
    kernel[4] = 1e4  # of rows that are 0: but 8 bits that reach so far leave nothing of the others
    model.layers[0].kernel.assign(kernel)
    options = {"mode": "int8", "max_drop": 0.0, "metric": "loss"}
    before = evaluate.evaluate(model, data, "validation")["metrics"]
    with pytest.raises(CompressionError, match="loss goes from"):
        quantization.quantize(model, data, options)
    assert evaluate.evaluate(model, data, "validation")["metrics"] == before


@pytest.mark.slow
def test_float8_is_calibrated_and_nothing_else_changes():
    model = make_model(layers=[keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)])
    model.layers[0].kernel.assign(1e-3 * model.layers[0].kernel.numpy())  # below what 8 bits hold
    data = make_dataset(validation=0.2)
    known = quantization.quantize(model, data, {"mode": "float8"})["model"]
    blind = quantization.quantize(model, options={"mode": "float8"})["model"]
    for one, other in zip(model.layers[0].weights, known.layers[0].weights, strict=False):
        np.testing.assert_array_equal(one, other)
    kept = [one for one in known.variables if not one.name.endswith(SCALES)]
    for one, other in zip(model.variables, kept, strict=True):
        np.testing.assert_array_equal(one, other)
    assert float(blind.layers[0].kernel_scale.numpy()) == 1.0
    assert float(known.layers[0].kernel_scale.numpy()) != 1.0
    assert known.optimizer is not model.optimizer
    assert type(known.optimizer) is type(model.optimizer)

    def miss(small):
        return np.abs(np.asarray(small(ROWS)) - np.asarray(model(ROWS))).mean()

    assert miss(known) < miss(blind)


@pytest.mark.slow
def test_a_quantized_model_can_be_trained_on():
    model, data = make_model(), make_dataset()
    small = quantization.quantize(model, data)["model"]
    assert fit.fit(small, data, {"epochs": 2, "engine": "graph_loop"}).epochs == 2


@pytest.mark.slow
def test_layers_of_float16_are_quantized_in_float32():
    with runtime.dtype_policy_scope("mixed_float16"):
        model = make_model(optimizer="adam")
    found = quantization.quantize(model)
    assert [change.after for change in found["report"].layers] == [8, 8]
    assert found["report"].notes[0].startswith("Keras has no int8 for float16: the copy computes")
    assert {one.compute_dtype for one in found["model"].layers} == {"float32"}
    expected = keras.ops.convert_to_numpy(model(ROWS)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(found["model"](ROWS)), expected, atol=0.02)
