import numpy as np
import pytest

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, SpecError
from gpukeras.data import builder
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.dataset.streams import build_stream
from gpukeras.data.dataset.tfdata_struct import pack_elements

pytestmark = pytest.mark.tf

X = np.arange(12.0).reshape(4, 3)


def slices(parts):
    return runtime.tensorflow().data.Dataset.from_tensor_slices(parts)


def test_elements_named_x_and_y_are_pairs():
    named = slices({"x": X, "y": X[:, 0]}).batch(2)
    dataset, layout = pack_elements(named, None, None)
    assert layout is None
    x, y = next(iter(dataset))
    np.testing.assert_array_equal(x, X[:2])
    np.testing.assert_array_equal(y, X[:2, 0])
    data = build_stream(
        {"kind": "tfdata", "dataset": named}, Request({"batch_size": 2}, recipe=None, arg="x")
    )
    assert data.recipe.label is not None


def test_inputs_that_training_called_x_and_y_stay_inputs():
    part = {"kind": "array", "values": X, "names": []}
    inputs = [{"name": name, "features": part, "scale": False} for name in ("x", "y")]
    trained = builder.assemble({"kind": "inputs", "inputs": inputs}, {}).recipe
    _, layout = pack_elements(slices({"x": X, "y": X}).batch(2), None, trained)
    assert [slot.name for slot in layout.inputs] == ["x", "y"]


def test_other_names_are_inputs():
    _, layout = pack_elements(slices({"a": X, "b": X}).batch(2), None, None)
    assert [slot.name for slot in layout.inputs] == ["a", "b"]


def test_labels_that_are_text_are_told_where_numbers_are_made_of_it():
    texts = slices((np.ones((2, 1)), np.array(["a", "b"]))).batch(1)
    with pytest.raises(DataError, match="numeric, not string. Apply a text or lookup layer"):
        build_stream({"kind": "tfdata", "dataset": texts}, Request({}, recipe=None, arg="x"))


def test_what_makes_its_rows_itself_takes_no_labels():
    given = {"kind": "tfdata", "dataset": slices((X, X[:, 0])).batch(2)}
    labels = {"kind": "numeric", "values": X[:, 0]}
    with pytest.raises(SpecError, match="`y` cannot be given beside `data`"):
        builder.assemble(given, {}, labels, arg="data")
