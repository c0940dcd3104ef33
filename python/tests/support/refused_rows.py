"""Models whose ops check their rows, with rows that they take and rows that they refuse."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROWS, BATCH, AT = 56, 8, 27  # rows, rows per batch, and the row that is changed
_rng = np.random.default_rng(1)
CODES = _rng.integers(1, 21, (ROWS, 3)).astype(np.float32)
NUMBERS = _rng.normal(size=(ROWS, 4)).astype(np.float32)
POSITIVE = np.abs(NUMBERS) + 1
TARGET = _rng.normal(size=(ROWS, 1)).astype(np.float32)
CLASSES = _rng.integers(0, 3, ROWS).astype(np.int32)
TABLE = _rng.normal(size=(21, 4)).astype(np.float32)


def changed(values, value, column=0):
    """The values with one row of another value, or with another row."""
    values = values.copy()
    if np.ndim(value):
        values[AT] = value
    elif values.ndim > 1:
        values[AT, column] = value
    else:
        values[AT] = value
    return values


def whole(x):
    import tensorflow as tf

    return tf.cast(x, tf.int32)


def sequential(shape, *layers):
    import keras

    return keras.Sequential([keras.Input(shape), *layers])


def around(function, shape=(3,), size=4):
    """A model of a function between its rows and a dense layer."""
    import keras

    made = keras.layers.Lambda(function, output_shape=(size,))
    return sequential(shape, made, keras.layers.Dense(1))


def embedding():
    import keras

    layers = keras.layers
    return sequential((3,), layers.Embedding(21, 4), layers.Flatten(), layers.Dense(1))


def column_embedding():
    """One column of codes beside others of numbers."""
    import keras

    rows = keras.Input((3,))
    codes = keras.layers.Embedding(21, 4)(rows[:, 0])
    both = keras.layers.Concatenate()([codes, rows[:, 1:] / 20])
    return keras.Model(rows, keras.layers.Dense(1)(both))


def nested_embedding():
    import keras

    layers = keras.layers
    inner = keras.Sequential([keras.Input((3,)), layers.Embedding(21, 4)], name="inner")
    return sequential((3,), inner, layers.GlobalAveragePooling1D(), layers.Dense(1))


def positions():
    """Tokens and places, as in the guides of Keras."""
    import keras

    class Tokens(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.tokens = keras.layers.Embedding(21, 4)
            self.places = keras.layers.Embedding(3, 4)

        def build(self, shape):
            self.tokens.build(shape)
            self.places.build(shape)
            super().build(shape)

        def call(self, x):
            return self.tokens(x) + self.places(keras.ops.arange(3))

        def compute_output_shape(self, shape):
            return (*shape, 4)

    layers = keras.layers
    return sequential((3,), Tokens(), layers.GlobalAveragePooling1D(), layers.Dense(1))


def lookup():
    import keras

    layers = keras.layers
    given = layers.IntegerLookup(vocabulary=list(range(21)), num_oov_indices=0)
    return sequential((3,), given, layers.Embedding(21, 4), layers.Flatten(), layers.Dense(1))


def encoded():
    import keras

    layers = keras.layers
    return sequential((3,), layers.CategoryEncoding(21, "multi_hot"), layers.Dense(1))


def checked(check):
    """A model with a layer that asserts something of its rows."""
    import keras

    class Checked(keras.layers.Layer):
        def call(self, x):
            return check(x)

    return sequential((4,), Checked(), keras.layers.Dense(1))


def classifier():
    import keras

    return sequential((4,), keras.layers.Dense(3, activation="softmax"))


def scorer():
    import keras

    return sequential((4,), keras.layers.Dense(3))


def checks_labels():
    """A model whose own step asserts that labels are positive."""
    import keras
    import tensorflow as tf

    class Checking(keras.Model):
        def train_step(self, data):
            tf.debugging.assert_greater(data[1], -50.0)
            return super().train_step(data)

    rows = keras.Input((4,))
    return Checking(rows, keras.layers.Dense(1)(rows))


def gathers(x):
    import tensorflow as tf

    return tf.gather(TABLE, whole(x[:, 0]))


def gathers_many(x):
    import tensorflow as tf

    return tf.gather_nd(TABLE, whole(x[:, :1]))


def takes(x):
    import keras

    return keras.ops.take(TABLE, keras.ops.cast(x[:, 0], "int32"), axis=0)


def looks_up(x):
    import tensorflow as tf

    return tf.nn.embedding_lookup(TABLE, whole(x[:, 0]))


def scatters(x):
    import tensorflow as tf

    rows = tf.shape(x)[0]
    places = tf.stack([tf.range(rows), whole(x[:, 0])], 1)
    return tf.ensure_shape(tf.scatter_nd(places, x[:, 1] / 20, [rows, 21]), [None, 21])


def sums_segments(x):
    import tensorflow as tf

    sums = tf.math.unsorted_segment_sum(x[:, 1] / 20, whole(x[:, 0]), 21)
    return x / 20 + tf.reduce_mean(sums)


def slices(x):
    import tensorflow as tf

    start = whole(tf.reduce_max(x[:, 0])) // 21
    return tf.ensure_shape(tf.slice(x, [0, start], [-1, 3]), [None, 3]) / 20


def divides(x):
    import tensorflow as tf

    return tf.cast(whole(x[:, :1]) // whole(x[:, 1:]), tf.float32)


def takes_modulo(x):
    import tensorflow as tf

    return tf.cast(whole(x[:, :1]) % whole(x[:, 1:]), tf.float32)


def inverts(x):
    import tensorflow as tf

    matrices = tf.reshape(tf.cast(x, tf.float32), [-1, 2, 2])  # none of 16 bits
    return tf.reshape(tf.linalg.inv(matrices), [-1, 4]) / 100


def solves(x):
    import tensorflow as tf

    matrices = tf.reshape(tf.cast(x, tf.float32), [-1, 2, 2])  # none of 16 bits
    return tf.reshape(tf.linalg.solve(matrices, tf.ones_like(matrices)), [-1, 4]) / 100


def reverses(x):
    import tensorflow as tf

    return tf.reverse_sequence(x, whole(x[:, 0]) // 7, 1) / 20


def plain(x):
    return x


def asserts(x):
    import tensorflow as tf

    tf.debugging.assert_less(x, tf.cast(50, x.dtype), message="too large")
    return x


def checks_numerics(x):
    import tensorflow as tf

    return tf.debugging.check_numerics(tf.math.log(x), "of log")


def own_loss(y_true, y_pred):
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(whole(tf.reshape(y_true, [-1])), y_pred)


def asserting_loss(y_true, y_pred):
    import tensorflow as tf

    tf.debugging.assert_greater(y_true, -50.0)
    return tf.square(y_true - y_pred)


def sparse(ignore_class=None):
    import keras

    return keras.losses.SparseCategoricalCrossentropy(ignore_class=ignore_class)


@dataclass(frozen=True)
class Case:
    """A model with rows that Keras trains, and rows that it refuses on TensorFlow.

    Args:
        make: Makes the model.
        x: The features.
        y: The labels.
        bad_x: Features that are refused, or None for `x`.
        bad_y: Labels that are refused, or None for `y`.
        loss: The loss, or a function that makes it.
        metrics: The metrics.
        takes: Whether Keras trains the bad rows too.
        xla: Whether XLA can compile the model.
    """

    make: Callable[[], Any]
    x: np.ndarray
    y: np.ndarray = field(default_factory=lambda: TARGET)
    bad_x: Any = None
    bad_y: Any = None
    loss: Any = "mse"
    metrics: tuple[str, ...] = ()
    takes: bool = False
    xla: bool = True

    def compiled(self, **options):
        """A new model of the same weights each time."""
        import keras

        keras.utils.set_random_seed(1)
        model = self.make()
        made = isinstance(self.loss, functools.partial)
        loss = self.loss() if made else self.loss
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=list(self.metrics), **options)
        return model

    def rows(self, bad):
        """The features and labels."""
        x = self.bad_x if bad and self.bad_x is not None else self.x
        return x, self.bad_y if bad and self.bad_y is not None else self.y


def _codes(function, **options):
    size = options.pop("size", 4)
    value = options.pop("value", 21)
    make = functools.partial(around, function, size=size)
    return Case(make, CODES, bad_x=changed(CODES, value, options.pop("column", 0)), **options)


def _numbers(function, good, value):
    make = functools.partial(around, function, (4,))
    return Case(make, good, bad_x=changed(good, value))


def _labels(value, make=classifier, **options):
    y = options.pop("y", CLASSES)
    return Case(make, NUMBERS, y, bad_y=changed(y, value), **options)


SPARSE = "sparse_categorical_crossentropy"
SINGULAR = [1.0, 1.0, 1.0, 1.0]
BAD_CODES = changed(CODES, 21)

CASES = {
    "Embedding": Case(embedding, CODES, bad_x=BAD_CODES),
    "Embedding below": Case(embedding, CODES, bad_x=changed(CODES, -22)),
    "Embedding from its end": Case(embedding, CODES, bad_x=changed(CODES, -1), takes=True),
    "Embedding of a column": Case(column_embedding, CODES, bad_x=BAD_CODES),
    "Embedding beside numbers": Case(
        column_embedding, CODES, bad_x=changed(CODES, 21, 1), takes=True
    ),
    "Embedding in a model": Case(nested_embedding, CODES, bad_x=BAD_CODES),
    "Embedding in a layer": Case(positions, CODES, bad_x=BAD_CODES),
    "IntegerLookup": Case(lookup, CODES, bad_x=BAD_CODES),
    "CategoryEncoding": Case(encoded, CODES, bad_x=BAD_CODES, takes=True, xla=False),
    "gather": _codes(gathers),
    "gather_nd": _codes(gathers_many),
    "take": _codes(takes),
    "embedding_lookup": _codes(looks_up),
    "scatter_nd": _codes(scatters, size=21),
    "segment sum": _codes(sums_segments, size=3),
    "slice": _codes(slices, size=3),
    "reverse_sequence": _codes(reverses, size=3, value=30),
    "division": _codes(divides, size=2, value=0, column=1),
    "modulo": _codes(takes_modulo, size=2, value=0, column=1),
    "inverse": _numbers(inverts, NUMBERS, SINGULAR),
    "solve": _numbers(solves, NUMBERS, SINGULAR),
    "assert in a layer": Case(
        functools.partial(checked, asserts), NUMBERS, bad_x=changed(NUMBERS, 60)
    ),
    "check_numerics": Case(
        functools.partial(checked, checks_numerics), POSITIVE, bad_x=changed(POSITIVE, -1)
    ),
    "assert in a step": Case(checks_labels, NUMBERS, bad_y=changed(TARGET, -60)),
    "assert in a loss": Case(
        functools.partial(checked, plain), NUMBERS, bad_y=changed(TARGET, -60), loss=asserting_loss
    ),
    "labels": _labels(3, loss=SPARSE),
    "labels below": _labels(-1, loss=SPARSE),
    "labels of a loss of one's own": _labels(3, scorer, loss=own_loss),
    "labels of a metric": _labels(-1, loss=functools.partial(sparse, -1), metrics=(SPARSE,)),
    "ignored label": _labels(-1, loss=functools.partial(sparse, -1), takes=True),
    "label beside ignored ones": _labels(5, loss=functools.partial(sparse, -1)),
    "label in accuracy": _labels(
        -1, loss=functools.partial(sparse, -1), metrics=("sparse_categorical_accuracy",), takes=True
    ),
}
