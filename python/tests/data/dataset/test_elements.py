"""What the shapes and types of a tf.data dataset's elements say."""

import numpy as np
import pytest

from gpukeras import DataError, SpecError
from gpukeras.backend import runtime
from gpukeras.data import builder
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.dataset.streams import build_stream
from gpukeras.data.dataset.tfdata import parse_elements, unname_pairs

pytestmark = pytest.mark.tf

X = np.arange(12.0).reshape(4, 3)


def spec(*shapes, dtype="float32"):
    tf = runtime.tensorflow()
    made = tuple(tf.TensorSpec(shape, dtype) for shape in shapes)
    return made if len(made) > 1 else made[0]


@pytest.mark.parametrize(
    ("shapes", "batched", "row_shape", "labels"),
    [
        ([(5,), ()], False, (5,), ()),
        ([(), ()], False, (1,), ()),
        ([(5,), (3,)], False, (5,), (3,)),
        ([(5,), (5,)], False, (5,), (5,)),
        ([(8, 8, 3), ()], False, (8, 8, 3), ()),
        ([(8, 8, 3), (2,)], False, (8, 8, 3), (2,)),
        ([(None, 5), (None,)], True, (5,), ()),
        ([(None, 5), (None, 1)], True, (5,), (1,)),
        ([(None, 5), (None, 3)], True, (5,), (3,)),
        ([(None,), (None,)], True, (1,), ()),
        ([(32, 5), (32,)], True, (5,), ()),
        ([(32, 8, 8, 3), (32, 2)], True, (8, 8, 3), (2,)),
        ([(32, 5), (32,), (32,)], True, (5,), ()),
        ([(None, 8, 8, 3), (None, 8, 8)], True, (8, 8, 3), (8, 8)),
        ([(32, 4, 2), (32, 4, 1), (32, 4)], True, (4, 2), (4, 1)),
        ([(None, 5)], True, (5,), ()),
        ([(5,)], False, (5,), ()),
    ],
)
def test_shapes_tell_rows_from_batches(shapes, batched, row_shape, labels):
    found = parse_elements(spec(*shapes))
    assert (found.batched, found.x.shape, found.y.shape) == (batched, row_shape, labels)
    assert found.weights.shape == (tuple(shapes[2][1:]) if len(shapes) == 3 else ())


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("int64", "integer"), ("uint8", "integer"), ("bool", "logical"), ("float64", "numeric")],
)
def test_types_of_labels(dtype, kind):
    assert parse_elements(spec((5,), (), dtype=dtype)).y.slots[0].kind == kind


def test_what_the_shapes_leave_open_is_asked_for():
    with pytest.raises(SpecError, match="rows or batches: their shape does not tell"):
        parse_elements(spec((4, 5)))
    assert parse_elements(spec((4, 5)), batched=True).x.shape == (5,)
    assert parse_elements(spec((4, 5)), batched=False).x.shape == (4, 5)
    with pytest.raises(SpecError, match="`batched` must be TRUE or FALSE"):
        parse_elements(spec((4, 5)), batched="yes")


def slices(parts):
    return runtime.tensorflow().data.Dataset.from_tensor_slices(parts)


def test_elements_named_x_and_y_are_pairs():
    named = slices({"x": X, "y": X[:, 0]}).batch(2)
    pairs = unname_pairs(named, None)
    assert not parse_elements(pairs.element_spec).x.several
    x, y = next(iter(pairs))
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
    given = unname_pairs(slices({"x": X, "y": X}).batch(2), trained)
    found = parse_elements(given.element_spec, recipe=trained)
    assert [slot.name for slot in found.x.slots] == ["x", "y"]


def test_other_names_are_inputs():
    found = parse_elements(unname_pairs(slices({"a": X, "b": X}).batch(2), None).element_spec)
    assert [slot.name for slot in found.x.slots] == ["a", "b"]


def test_labels_that_are_text_are_told_where_numbers_are_made_of_it():
    texts = slices((np.ones((2, 1)), np.array(["a", "b"]))).batch(1)
    with pytest.raises(DataError, match="numeric, not string. Apply a text or lookup layer"):
        build_stream({"kind": "tfdata", "dataset": texts}, Request({}, recipe=None, arg="x"))


def test_what_makes_its_rows_itself_takes_no_labels():
    given = {"kind": "tfdata", "dataset": slices((X, X[:, 0])).batch(2)}
    labels = {"kind": "numeric", "values": X[:, 0]}
    with pytest.raises(SpecError, match="`y` cannot be given beside `data`"):
        builder.assemble(given, {}, labels, arg="data")
