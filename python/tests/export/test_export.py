"""Exported models: each file is really run by another program, and must predict the same."""

import importlib.util
import os

import numpy as np
import pytest
from familied import model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_modules import keras
from small_disks import small_disk

from gpukeras.core.errors import DataError, ModelError, RuntimeMissingError, SpecError
from gpukeras.export import parity
from gpukeras.export.export import _run, explain_outputs, export_model
from gpukeras.export.formats import FORMATS, Format, check_packages, choose_format
from gpukeras.export.run_exported import match_inputs, order_outputs
from gpukeras.models.calibration import Calibration, tie_calibration

tf_test = pytest.mark.tf
missing = [name for name, _ in FORMATS["onnx"].needs if importlib.util.find_spec(name) is None]
onnx_test = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.mark.parametrize(
    ("name", "path", "chosen"),
    [
        ("auto", "m.onnx", "onnx"),
        ("auto", "m.tflite", "litert"),
        ("auto", "folder", "savedmodel"),
        ("auto", "a.b/m.v2", "savedmodel"),
        ("onnx", "m.ONNX", "onnx"),
        ("savedmodel", "m", "savedmodel"),
    ],
)
def test_the_format_goes_by_the_suffix(name, path, chosen):
    assert choose_format(name, path) == chosen


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("tflite", "m", "`format` must be one of"),
        ("onnx", "m", '`path` must end with ".onnx" for ONNX, not ""'),
        ("litert", "m.onnx", '`path` must end with ".tflite" for LiteRT'),
        ("savedmodel", "m.onnx", "`path` must be a folder for SavedModel"),
        ("auto", "m.keras", "gpu_save"),
        ("auto", "", "`path` must be a path"),
        ("auto", None, "`path` must be a path"),
    ],
)
def test_formats_and_paths_must_fit(name, path, said):
    with pytest.raises(SpecError, match=said):
        choose_format(name, path)


def test_missing_packages_are_named_with_the_command():
    form = Format(
        "X", "x", ".x", (("numpy", "numpy"), ("no_such", "no-such>=2")), FORMATS["onnx"].code
    )
    with pytest.raises(RuntimeMissingError, match="X needs .* not installed: no_such[.]") as told:
        check_packages(form)
    assert told.value.hint.endswith('pip install "no-such>=2".')


def test_the_tolerance_goes_by_the_precision():
    assert parity.choose_tolerance(["float32"], "CPU:0")[0] == 1e-4
    assert parity.choose_tolerance(["float32"], "GPU:0")[0] > 1e-3
    assert "float16" in parity.choose_tolerance(["float16", "float32"], "CPU:0")[1]


@given(st.floats(-1e6, 1e6), st.floats(-10, 10), st.floats(1e-6, 1))
@settings(max_examples=50)
def test_what_is_allowed_grows_with_large_predictions_only(value, shift, tolerance):
    wanted, found = np.array([0.0, value]), np.array([0.0, value + shift])
    agreement = parity.compare_outputs([wanted], [found], tolerance)
    assert agreement.allowed == tolerance * max(1, abs(value))
    assert agreement.difference == pytest.approx(abs((value + shift) - value))
    assert agreement.holds == (agreement.difference <= agreement.allowed)


@pytest.mark.parametrize(
    ("wanted", "found", "holds"),
    [
        ([np.nan, 1], [np.nan, 1], True),
        ([np.inf, 1], [np.inf, 1], True),
        ([1, 1], [np.nan, 1], False),
        ([np.nan, 1], [1, 1], False),
        ([np.inf, 1], [-np.inf, 1], False),
        ([1, 2], [1, 2, 3], False),
    ],
)
def test_numbers_that_are_none_must_be_at_the_same_places(wanted, found, holds):
    agreement = parity.compare_outputs([np.array(wanted, float)], [np.array(found, float)], 1e-4)
    assert agreement.holds == holds


def test_inputs_are_matched_by_name_or_place():
    rows = {"b": np.zeros(1), "a": np.ones(1)}
    assert match_inputs(["a", "b"], rows)["a"] is rows["a"]
    assert match_inputs(["x", "y"], rows) == {"x": rows["b"], "y": rows["a"]}
    with pytest.raises(ValueError, match="1 input, not 2"):
        match_inputs(["a"], rows)


def test_outputs_are_ordered_by_number():
    outputs = {f"output_{place}": place for place in (0, 10, 2, 1)}
    assert [int(value) for value in order_outputs(outputs)] == [0, 1, 2, 10]
    assert [int(value) for value in order_outputs({"z": 2, "c": 1})] == [1, 2]


def test_rows_are_drawn_as_a_model_takes_them():
    rng = np.random.default_rng(1)
    assert parity.draw_rows(rng, (None, 4), "float32").shape == (16, 4)
    whole = parity.draw_rows(rng, (None, None), "int32")
    assert whole.shape == (16, 32)
    assert whole.dtype == np.int32
    assert set(np.unique(whole)) == {0, 1}
    with pytest.raises(SpecError, match="takes text"):
        parity.draw_rows(rng, (None, 1), "string")


# Real files --------------------------------------------------------------------------------------


def two_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    both = keras.layers.Concatenate()([keras.layers.Dense(3, "relu")(a), b])
    return keras.Model([b, a], [keras.layers.Dense(1)(both), keras.layers.Dense(2)(both)])


@pytest.mark.tensorflow
@pytest.mark.cpu(reason="an exported model of a GPU may differ by more")
@pytest.mark.float32(reason="an export of 16 bits allows more")
@tf_test
def test_a_saved_model_predicts_the_same(tmp_path, model, dataset):
    target = tmp_path / "folder"
    report = export_model(model, str(target), data=dataset)
    assert (report.format, report.title, report.path) == ("savedmodel", "SavedModel", str(target))
    assert report.max_difference <= report.allowed == report.tolerance == 1e-4
    assert report.runner.startswith("TensorFlow ")
    assert report.inputs[0]["shape"] == [5]
    assert report.outputs[0]["shape"] == [3]
    assert (report.rows, report.drawn) == (16, False)
    assert report.bytes == sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(DataError, match="folder is there already, a SavedModel.*overwrite"):
        export_model(model, str(target))


@tf_test
def test_what_predictions_are_besides_the_outputs_of_the_file_is_told(model):
    rows = np.random.default_rng(1).normal(size=(16, 2)).astype(np.float32)
    assert explain_outputs(model, [rows]) == ()
    tie_calibration(model, Calibration("classes", 9, reading="softmax", temperature=2.0))
    (note,) = explain_outputs(model, [rows])
    assert note.endswith("own probabilities, without what gpu_calibrate() learned.")
    for name, told in [("gaussian", 0), ("poisson", 0), ("ordinal", 0), ("negative_binomial", 1)]:
        made = model_of(name)
        notes = explain_outputs(made, [np.asarray(made(rows))])
        assert len(notes) == told, name


@pytest.mark.nightly
@tf_test
def test_litert_predicts_the_same(tmp_path):
    report = export_model(two_inputs(), str(tmp_path / "m.tflite"))
    assert report.max_difference <= report.allowed
    assert {each["name"] for each in report.inputs} == {"a", "b"}
    assert report.notes == ()
    assert report.drawn
    assert (tmp_path / "m.tflite").stat().st_size == report.bytes


@pytest.mark.slow
@pytest.mark.float32(reason="LiteRT has no LSTM of 16 bits")
@tf_test
def test_an_lstm_comes_to_litert_a_row_at_a_time(tmp_path):
    a, b = keras.Input((5, 3), name="a"), keras.Input((2,), name="b")
    both = keras.layers.Concatenate()([keras.layers.LSTM(4)(a), b])
    model = keras.Model([b, a], [keras.layers.Dense(1)(both), keras.layers.Dense(2)(both)])
    report = export_model(model, str(tmp_path / "m.tflite"))
    assert report.max_difference <= report.allowed
    assert {each["name"] for each in report.inputs} == {"a", "b"}
    assert report.drawn
    assert (tmp_path / "m.tflite").stat().st_size == report.bytes
    assert "one row at a time" in report.notes[0]


@onnx_test
@tf_test
def test_onnx_predicts_the_same(tmp_path, model, dataset):
    report = export_model(model, str(tmp_path / "m.onnx"), data=dataset)
    assert report.max_difference <= report.allowed
    assert report.runner.startswith("onnxruntime ")
    assert export_model(two_inputs(), str(tmp_path / "two.onnx")).max_difference <= 1e-4


@pytest.mark.tensorflow
@tf_test
@pytest.mark.skipif(not missing, reason="all of ONNX's packages are installed")
def test_without_its_packages_onnx_is_told(tmp_path, model):
    with pytest.raises(RuntimeMissingError, match=f"ONNX needs .*: {', '.join(missing)}"):
        export_model(model, str(tmp_path / "m.onnx"))


@pytest.mark.slow
@pytest.mark.float32(reason="its layer mixes types, in Keras too")
@tf_test
def test_what_predicts_something_else_is_refused_and_not_written(tmp_path):
    class Noise(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(1)

        def call(self, x):
            return x + keras.random.normal((1, 3), seed=self.seed)

    noisy = keras.Sequential([keras.Input((3,)), Noise()])
    with pytest.raises(ModelError, match="SavedModel predicts something else") as told:
        export_model(noisy, str(tmp_path / "folder"))
    assert told.value.details["max_difference"] > told.value.details["allowed"]
    assert not list(tmp_path.iterdir())


@pytest.mark.tensorflow
@tf_test
def test_places_are_respected(tmp_path, model):
    (tmp_path / "mine").mkdir()
    for overwrite in (False, True):
        with pytest.raises(DataError, match="mine is there already, something else"):
            export_model(model, str(tmp_path / "mine"), overwrite=overwrite)
    for name in ("saved_model.pb", "labels.csv"):  # mine beside an earlier export
        (tmp_path / "mine" / name).write_text("mine")
    with pytest.raises(DataError, match="mine is there already, something else"):
        export_model(model, str(tmp_path / "mine"), overwrite=True)
    assert (tmp_path / "mine/labels.csv").read_text() == "mine"
    (tmp_path / "m.tflite").write_text("mine")
    with pytest.raises(DataError, match=r"m.tflite is there already"):
        export_model(model, str(tmp_path / "m.tflite"))
    with pytest.raises(DataError, match="`path`: the folder nowhere does not exist"):
        export_model(model, str(tmp_path / "nowhere" / "m"))
    with pytest.raises(SpecError, match="`tolerance`"):
        export_model(model, str(tmp_path / "m"), tolerance=0)


@pytest.mark.tensorflow
@tf_test
def test_what_a_format_cannot_do_is_refused_and_not_written(tmp_path, dataset):
    class Own(keras.Model):
        def call(self, x):
            return x / np.max(x)  # needs values, which a graph has not

    with pytest.raises(ModelError, match="`model` cannot be exported to SavedModel"):
        export_model(Own(), str(tmp_path / "m"), data=dataset)
    half = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="float16")])
    with pytest.raises(ModelError, match="it needs operations that only TensorFlow has"):
        export_model(half, str(tmp_path / "m.tflite"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@tf_test
def test_a_file_that_cannot_be_run_is_told(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(b"no model at all")
    with pytest.raises(ModelError, match="The exported LiteRT cannot be run: .*[^.][.]$") as told:
        _run("litert", path, {"x": np.zeros((1, 5), np.float32)}, path)
    assert told.value.details["path"] == str(path)


@tf_test
def test_models_that_tell_no_input_need_data(model, dataset):
    class Own(keras.Model):
        def call(self, x):
            return x * 2

    with pytest.raises(SpecError, match="does not tell the shape of its input") as told:
        parity.read_samples(Own())
    assert "gpu_dataset" in told.value.hint
    rows = parity.read_samples(Own(), dataset)
    assert rows.shape == (16, 5)
    assert list(parity.name_rows(Own(), rows)) == ["input_0"]
    assert list(parity.name_rows(two_inputs(), parity.read_samples(two_inputs()))) == ["b", "a"]


@pytest.mark.tensorflow
@tf_test
@pytest.mark.parametrize("name", ["model", "model.tflite"])
@pytest.mark.parametrize(
    ("breaking", "reason", "hint"),
    [
        ("fill", "the disk is full", "Make room"),
        ("make_read_only", "the disk is read-only", "Mount it to be written to"),
    ],
)
def test_a_disk_that_takes_no_file_is_told_with_a_hint_and_is_left_as_it_was(
    tmp_path, name, breaking, reason, hint
):
    model = keras.Sequential(
        [keras.Input((100,)), keras.layers.Dense(3000, dtype="float32")]
    )  # 1.2 MB
    with small_disk(tmp_path / "disk") as disk:
        if breaking == "make_read_only":
            disk.make_read_only()
        told = f"`model` cannot be written to the (file|folder) {name}: {reason}"
        with pytest.raises(DataError, match=told) as caught:
            export_model(model, str(disk.folder / name))
        assert caught.value.hint.startswith(hint)
        assert list(disk.folder.iterdir()) == []
