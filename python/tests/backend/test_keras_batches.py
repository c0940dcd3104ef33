"""Batches come in the order in which Keras' own iterator gives them, one by one or together."""

import random

import numpy as np
import pytest
from small_fits import make_model

from gpukeras.backend.keras_batches import KerasBatches, unseen_generator

pytestmark = pytest.mark.tf

NONE = ("y", "sample_weight", "batch_size", "steps_per_epoch", "class_weight")
ROWS = np.arange(50.0, dtype=np.float32)[:, None]


def pipeline():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((ROWS, ROWS[:, 0])).shuffle(30).batch(8)


def of_open_shape(varies=False):
    import tensorflow as tf

    dataset = tf.data.Dataset.range(7).map(
        lambda n: (tf.zeros([4, 2 + (n // 3 if varies else n // 9)]), tf.fill([4], n))
    )
    assert dataset.element_spec[0].shape.as_list() == [4, None]
    return dataset


def generator():
    for place in range(30):
        yield np.full((4, 1), place, "float32"), np.full(4, float(place))


CASES = {
    "shuffled": lambda: {"x": pipeline()},
    "of unknown number": lambda: {"x": pipeline().filter(lambda x, y: True)},
    "steps": lambda: {"x": pipeline().repeat(), "steps_per_epoch": 5},
    "steps that end within a pass": lambda: {"x": pipeline(), "steps_per_epoch": 5},
    "more steps than batches": lambda: {"x": pipeline(), "steps_per_epoch": 9},
    "a generator": lambda: {"x": generator(), "steps_per_epoch": 8},
    "rows of an unknown shape": lambda: {"x": of_open_shape()},
    "rows whose shape varies": lambda: {"x": of_open_shape(varies=True)},
    "arrays": lambda: {"x": ROWS, "y": ROWS[:, 0], "batch_size": 8, "shuffle": True},
}


def arguments(case):
    import keras

    keras.utils.set_random_seed(3)
    return {**dict.fromkeys(NONE), "shuffle": False, **CASES[case]()}


def epochs_of_keras(model, rows):
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    iterator = TFEpochIterator(**rows, distribute_strategy=model.distribute_strategy)
    iterator.reset()
    for _ in range(3):
        epoch = []
        with iterator.catch_stop_iteration():
            for _, _, batches in iterator:
                epoch.append(batches.get_next()[1].numpy().tolist())
        yield epoch


@pytest.mark.varies
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("case", CASES)
def test_three_epochs_have_the_batches_of_keras(case, most):
    model = make_model()
    expected = list(epochs_of_keras(model, arguments(case)))
    batches, found = KerasBatches(model, arguments(case)), []
    for _ in expected:
        epoch = []
        for (_, labels), sizes in batches.epoch(lambda: most):
            assert len(sizes) <= most
            parts = np.split(labels.numpy(), np.cumsum(sizes)[:-1])  # one if it came alone
            epoch += [part.tolist() for part in parts]
        found.append(epoch)
    assert found == expected


def test_keras_generator_is_taken_back_unless_it_was_used():
    import keras
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    def known():
        return global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)

    drawn = []
    for lends, uses in [(False, False), (True, False), (False, True), (True, True)]:
        keras.utils.set_random_seed(3)
        assert known() is None
        if lends:
            with unseen_generator():
                assert known() is not None
                first = float(keras.random.normal(())) if uses else 0.0
            assert (known() is not None) is uses
        else:
            first = float(keras.random.normal(())) if uses else 0.0
        drawn.append((first, random.random(), float(keras.random.normal(()))))
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3]
