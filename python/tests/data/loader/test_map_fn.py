import re

import numpy as np
import pytest

from gpukeras import DataError, SpecError
from gpukeras.data.loader import transforms

pytestmark = pytest.mark.tf


def test_a_function_is_traced_once_for_any_number_of_rows():
    import tensorflow as tf

    calls = []

    def double(rows):
        calls.append(1)
        return 2.0 * rows

    graph = transforms.trace_map(double, (3,))
    for rows in (1, 4, 7):
        values = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(graph(tf.constant(values)), 2 * values)
    assert len(calls) == 1


def test_a_keras_layer_is_a_function():
    import keras
    import tensorflow as tf

    graph = transforms.trace_map(keras.layers.Rescaling(0.5, offset=1.0), (2,))
    np.testing.assert_array_equal(graph(tf.ones([3, 2])), np.full((3, 2), 1.5))


def test_something_else_is_refused():
    with pytest.raises(SpecError, match='must be a Keras layer or a function, not "scale"'):
        transforms.trace_map("scale", (2,))


def other_type(rows):
    import tensorflow as tf

    return tf.cast(rows, tf.float64)


def fails(rows):
    raise ValueError("no such operation\nat line 3")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda rows: rows[:, :1], r"float32 rows of shape \(2,\) .*, not rows of shape \(1,\)"),
        (lambda rows: rows[:, 0], r"not rows of shape \(\)"),
        (lambda rows: rows[:1], "not 1 of 2 rows"),
        (other_type, "not float64 values"),
        (lambda rows: (rows, rows), "not a tuple"),
        (fails, "`map` cannot be traced: .*no such operation[.]$"),
    ],
)
def test_what_changes_the_rows_or_fails_is_refused(function, message):
    with pytest.raises(DataError) as caught:
        transforms.trace_map(function, (2,))
    assert caught.value.details["arg"] == "map"
    assert re.search(message, caught.value.message)
