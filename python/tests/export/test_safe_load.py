"""Code in `.keras` files: found in their settings and weights, by hand-made files."""

import io
import json
import zipfile

import h5py
import numpy as np
import pytest

from gpukeras.core.errors import ModelError
from gpukeras.export.safe_load import check_code


def a_layer(kind, name="it", **config):
    return {"class_name": kind, "module": "keras.layers", "config": {"name": name, **config}}


def a_file(path, config, weights=b""):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config if isinstance(config, str) else json.dumps(config))
        if weights:
            archive.writestr("model.weights.h5", weights)
    return path


def a_model(*layers):
    return {"class_name": "Sequential", "config": {"name": "model", "layers": list(layers)}}


LAMBDA = {"class_name": "__lambda__", "config": {"code": "4wEAAAA=", "defaults": None}}


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([a_layer("Lambda", "twice", function=LAMBDA)], "a lambda in `twice`"),
        ([a_layer("Lambda", "old", function=["4wEAAAA=", None, None])], "a lambda in `old`"),
        ([a_layer("Dense", "d", activation=LAMBDA)], "a lambda in `d`"),
        ([a_model(a_layer("Lambda", "deep", function=LAMBDA))], "a lambda in `deep`"),
        (
            [a_layer("TFSMLayer", "t", filepath="/x")],
            "`path` holds what Keras' safe mode does not load: a program of TensorFlow .* in `t`",
        ),
        ([a_layer("TorchModuleWrapper", "p", module="gASV")], "a pickle of PyTorch in `p`"),
        ([a_model(a_layer("JaxLayer", "j"))], "a function of JAX in `j`"),
    ],
)
def test_code_is_refused_by_the_name_of_its_layer(tmp_path, layers, said):
    path = a_file(tmp_path / "m.keras", a_model(a_layer("Dense", "first"), *layers))
    with pytest.raises(ModelError, match=said) as told:
        check_code(path, "path")
    assert told.value.details == {"arg": "path", "path": str(path)}
    assert told.value.hint


def test_a_loss_that_is_a_lambda_is_told(tmp_path):
    path = a_file(tmp_path / "m.keras", {**a_model(), "compile_config": {"loss": LAMBDA}})
    with pytest.raises(ModelError, match=r"a lambda in its compile\(\)"):
        check_code(path, "model")


def test_a_registered_function_is_no_code(tmp_path):
    function = {"class_name": "function", "config": "mine", "registered_name": "mine"}
    named = a_layer("Lambda", "fine", function=function)
    check_code(a_file(tmp_path / "m.keras", a_model(named, a_layer("Dense"))), "model")


@pytest.mark.parametrize("text", ["", "no json"])
def test_what_cannot_be_read_is_left_to_keras(tmp_path, text):
    check_code(a_file(tmp_path / "m.keras", text), "model")


def weights_with(change):
    file = io.BytesIO()
    with h5py.File(file, "w") as weights:
        weights["layers/dense/vars/0"] = np.ones((2, 3))
        change(weights)
    return file.getvalue()


def loop_round(weights):
    weights["layers/dense/again"] = weights["layers"]


@pytest.mark.parametrize(
    ("config", "change"), [("[" * 100_000, None), (json.dumps(a_model()), loop_round)]
)
def test_what_has_no_end_is_refused(tmp_path, config, change):
    path = a_file(tmp_path / "m.keras", config, weights_with(change) if change else b"")
    with pytest.raises(ModelError, match="nested too deeply"):
        check_code(path, "model")


def test_damaged_weights_hide_no_code(tmp_path):
    path = a_file(tmp_path / "m.keras", a_model(a_layer("Dense", "d", activation=LAMBDA)), b"?")
    with pytest.raises(ModelError, match="a lambda in `d`"):
        check_code(path, "model")


def link_out(weights):
    weights["layers/dense/vars/1"] = h5py.ExternalLink("/etc/other.h5", "/x")


def link_softly(weights):
    weights["layers/other"] = h5py.SoftLink("/layers/dense")


def store_outside(weights):
    weights.create_dataset("layers/x", (4,), "f8", external=[("/tmp/none.bin", 0, 32)])


def map_outside(weights):
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("/tmp/none.h5", "x", shape=(4,))
    weights.create_virtual_dataset("layers/x", layout)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (link_out, "'1' is a link"),
        (link_softly, "'other' is a link"),
        (store_outside, "'x' is read from another file"),
        (map_outside, "'x' is read from another file"),
    ],
)
def test_weights_of_other_files_are_refused(tmp_path, change, said):
    path = a_file(tmp_path / "m.keras", a_model(), weights_with(change))
    with pytest.raises(ModelError, match=f"the weights in m.keras are not in it: {said}"):
        check_code(path, "model")
    check_code(a_file(path, a_model(), weights_with(lambda weights: None)), "model")
