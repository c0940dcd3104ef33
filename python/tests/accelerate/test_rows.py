import numpy as np
import pytest

from gpukeras.accelerate import rows
from gpukeras.accelerate.rows import CallRows

pytestmark = pytest.mark.tf

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6)


def test_kinds_of_rows_are_told_apart():
    import keras
    import tensorflow as tf

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return X, Y

    kinds = {
        "arrays": [X, [X, X], {"a": X, "b": X}, tf.constant(X)],
        "pipeline": [tf.data.Dataset.from_tensors((X, Y))],
        "sequence": [Batches(), iter([(X, Y)]), (one for one in [(X, Y)])],
        "other": [[X, X[:3]], [[1.0, 2.0], [3.0, 4.0]], None, object()],
    }
    for kind, values in kinds.items():
        for value in values:
            assert CallRows(value).kind == kind, value


def test_a_sequence_of_batches_is_told_when_its_epoch_has_ended():
    import keras

    class Batches(keras.utils.PyDataset):
        ended = 0

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return X[index : index + 1], Y[index : index + 1]

        def on_epoch_end(self):
            self.ended += 1

    batches = Batches()
    call = rows.chunks_of(CallRows(batches), None)
    for epoch in (1, 2):
        assert [call(epoch, batch)["labels"]["values"].tolist() for batch in (1, 2)] == [[0], [1]]
        assert batches.ended == epoch - 1
        assert call(epoch, 3) is None
        assert batches.ended == epoch


def test_labels_of_another_length_are_no_rows():
    assert CallRows(X, Y).count == 6
    assert CallRows(X, Y[:5]).count is None


def test_the_last_rows_are_split_off_as_keras_does():
    from keras.src.trainers.data_adapters import array_slicing

    for share in (0.1, 0.2, 0.34, 0.5):
        first, last = rows.take_last(CallRows(X, Y, None, 3), share)
        known, held = array_slicing.train_validation_split((X, Y, None), share)
        np.testing.assert_array_equal(first.x, known[0])
        np.testing.assert_array_equal(last.y, held[1])
        assert (first.weights, first.steps, last.steps) == (None, 3, None)


def test_validation_rows_are_unpacked():
    given = rows.validation_of((X, Y), 2)
    assert given.x is X
    assert given.y is Y
    assert (given.weights, given.steps) == (None, 2)
    assert rows.validation_of(X, None).x is X


def test_parts_of_a_list_have_the_models_names(model):
    assert rows.features_of({"a": X}, model)["inputs"][0]["name"] == "a"
    found = rows.features_of([X, X], model)
    assert [part["name"] for part in found["inputs"]] == ["input_1", "input_2"]
    assert found["listed"]


def test_callbacks_become_a_list():
    import keras

    one = keras.callbacks.Callback()
    assert rows.as_callbacks(None) == []
    assert rows.as_callbacks(one) == rows.as_callbacks([one]) == [one]
    assert one in rows.as_callbacks(keras.callbacks.CallbackList([one]))
