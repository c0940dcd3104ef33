"""What the shapes and types of a tf.data dataset's elements say."""

import pytest

from gpukeras import SpecError
from gpukeras.backend import runtime
from gpukeras.data.dataset.tfdata import parse_elements

pytestmark = pytest.mark.tf


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
    assert (found.batched, found.row_shape, found.label_shape) == (batched, row_shape, labels)
    assert found.weight_shape == (tuple(shapes[2][1:]) if len(shapes) == 3 else ())


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("int64", "integer"), ("uint8", "integer"), ("bool", "logical"), ("float64", "numeric")],
)
def test_types_of_labels(dtype, kind):
    assert parse_elements(spec((5,), (), dtype=dtype)).label_kind == kind


def test_what_the_shapes_leave_open_is_asked_for():
    with pytest.raises(SpecError, match="rows or batches: their shape does not tell"):
        parse_elements(spec((4, 5)))
    assert parse_elements(spec((4, 5)), batched=True).row_shape == (5,)
    assert parse_elements(spec((4, 5)), batched=False).row_shape == (4, 5)
    with pytest.raises(SpecError, match="`batched` must be TRUE or FALSE"):
        parse_elements(spec((4, 5)), batched="yes")
