import numpy as np
import pytest
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime
from gpukeras.checkpoint.fingerprint import describe_training
from gpukeras.checkpoint.identity import DIGESTS, WORDS, find_changes, find_mismatch
from gpukeras.data.dataset import map_dataset
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.dataset.streams import build_stream
from gpukeras.data.loader.loader import sample_rows
from gpukeras.data.recipe.augmentation import AugmentSpec
from gpukeras.models.variables import build_variables

HERE = {
    "layers": ["Dense", "Dropout", "Dense"],
    "model": "ab",
    "loss": "mse",
    "batch_size": 64,
    "shuffle": True,
    "shard": [1, 1],
    "augment": None,
    "schedule": {"kind": "one_cycle", "max_rate": 0.1},
    "epochs": 10,
    "clip_norm": None,
    "steps_per_epoch": None,
}


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({}, ""),
        ({"batch_size": 32}, "the batch size was 32 and is 64"),
        ({"shuffle": False}, "`shuffle` was FALSE and is TRUE"),
        ({"shard": [1, 2]}, "`shard` was (1, 2) and is (1, 1)"),
        ({"clip_norm": 0.5}, "`clip_norm` was 0.5 and is none"),
        ({"steps_per_epoch": 3}, "`steps_per_epoch` was 3 and is none"),
        ({"loss": "mae", "batch_size": 1}, "the loss was mae and is mse"),
        ({"model": "cd"}, "an option of the model's layers is not the same"),
        ({"layers": ["Dense", "Dense"]}, "layer 2 of the model was Dense and is Dropout"),
        ({"layers": [*HERE["layers"], "ReLU"]}, "layer 4 of the model was ReLU and is none"),
        ({"schedule": None, "epochs": None}, "the schedule was none and is one_cycle"),
        (
            {"schedule": {"kind": "one_cycle", "max_rate": 0.2}},
            "max_rate of the schedule was 0.2 and is 0.1",
        ),
        ({"epochs": 5}, "the number of epochs, which this schedule spans, was 5 and is 10"),
        ({"augment": {"flip": "both"}}, "`augment` was given and is none"),
    ],
)
def test_the_first_difference_is_told(there, says):
    assert find_mismatch(HERE, {**HERE, **there}) == says


def test_what_another_version_did_not_tell_is_passed_over():
    assert find_mismatch(HERE, {"batch_size": 64}) == ""


def test_versions_and_rates_are_only_told():
    here = {"versions": {"Keras": "3.15.1", "NumPy": "1.26"}, "learning_rate": 0.01}
    there = {"versions": {"Keras": "3.14.0", "NumPy": "1.26"}, "learning_rate": 0.001}
    assert find_mismatch(here, there) == ""
    assert find_changes(here, there) == (
        "The checkpoint was made by Keras 3.14.0, not 3.15.1.",
        "The learning rate was 0.001 when the training began, and is 0.01 now: the checkpoint's "
        "own goes on.",
    )
    assert find_changes(here, here) == ()
    assert find_changes(here, {}) == ()


# Real models and data ----------------------------------------------------------------------------


def describe(model=None, data=None, batch_size=None, **options):
    data = make_dataset() if data is None else data
    model = make_model() if model is None else model
    build_variables(model, sample_rows(data, 8))
    return describe_training(model, data, data.plan("CPU:0", batch_size), options)


def make_net(optimizer=None, loss="mse", activation="relu", name="", units=4, metrics=None):
    keras = runtime.keras()
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(units, activation)(inputs)
    other = keras.layers.Dense(units, name=name or None)(keras.layers.Dropout(0.5)(hidden))
    added = keras.ops.add(keras.layers.Add()([hidden, other]), 1.0)
    outputs = keras.layers.Lambda(lambda t: t * 2)(added)
    model = keras.Model(inputs, keras.layers.Dense(1)(outputs))
    model.compile(optimizer or "adam", loss, metrics=metrics)
    return model


def make_labelled(x, labels, **options):
    labels = {"kind": "numeric", "values": np.asarray(labels, float)}
    return map_dataset.build_dataset({"kind": "array", "values": x}, {"seed": 1, **options}, labels)


@pytest.mark.tf
def test_the_same_training_made_again_is_the_same():
    one, other = describe(make_net()), describe(make_net())  # whose layers have other names
    assert find_mismatch(one, other) == ""
    assert find_changes(one, other) == ()
    assert {name for name in WORDS if name not in one} == {
        "buffer",  # of rows in sequence only
        "shards",  # of workers that read their own files only
    }
    assert set(DIGESTS) <= set(one)


@pytest.mark.tf
def test_training_changes_nothing_that_is_compared():
    data, model = make_dataset(), make_model(optimizer="adam")
    before = describe(model, data)
    model.fit(*data.arrays, epochs=1, verbose=0)
    assert find_mismatch(describe(model, data), before) == ""


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda keras: {"units": 8}, "variable 1 of the model was dense/kernel"),
        (lambda keras: {"activation": "tanh"}, "an option of the model's layers"),
        (lambda keras: {"loss": "mae"}, "the loss was mse and is mae"),
        (lambda keras: {"loss": keras.losses.Huber(0.5)}, "the loss was mse and is Huber"),
        (lambda keras: {"metrics": ["mae"]}, "metric 2 was none and is mae"),
        (lambda keras: {"optimizer": "sgd"}, "the optimizer was Adam and is SGD"),
        (
            lambda keras: {"optimizer": keras.optimizers.Adam(beta_1=0.8)},
            "an option of the optimizer",
        ),
        (lambda keras: {"optimizer": keras.optimizers.Adam(0.1)}, ""),  # is told, see find_changes
    ],
    ids=["units", "activation", "loss", "loss object", "metrics", "optimizer", "beta", "rate"],
)
def test_another_model_is_told(change, says):
    found = find_mismatch(describe(make_net(**change(runtime.keras()))), describe(make_net()))
    assert found.startswith(says)
    assert bool(found) == bool(says)


@pytest.mark.tf
def test_another_rate_is_only_told():
    keras = runtime.keras()
    fast = describe(make_net(keras.optimizers.Adam(0.1)))
    assert find_changes(fast, describe(make_net()))[0].startswith(
        "The learning rate was 0.001 when"
    )
    decay = keras.optimizers.schedules.ExponentialDecay
    one, other = (
        describe(make_net(keras.optimizers.Adam(decay(0.1, steps, 0.9)))) for steps in (10, 20)
    )
    assert one["learning_rate"] is None
    assert find_mismatch(one, other).startswith("an option of the optimizer")


@pytest.mark.tf
def test_a_class_of_the_users_own_that_tells_no_settings_is_described():
    keras = runtime.keras()

    class Own(keras.Model):
        def __init__(self, units):
            super().__init__()
            self.dense = keras.layers.Dense(units)

        def call(self, x):
            return self.dense(x)

    def make(units):
        model = Own(units)
        model.compile("sgd", lambda y, p: (keras.ops.reshape(y, (-1, 1)) - p) ** 2)
        return describe(model)

    assert find_mismatch(make(3), make(3)) == ""
    assert find_mismatch(make(3), make(4)).startswith("variable 1 of the model was")


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seed": 2}, "the dataset's seed was 1 and is 2"),
        ({"shuffle": False}, "`shuffle` was TRUE and is FALSE"),
        ({"drop_last": True}, "`drop_last` was FALSE and is TRUE"),
        ({"batch_size": 8}, "the batch size was 32 and is 8"),
        ({"validation": 0.5}, "the number of training rows was 200 and is 100"),
        ({"scale": True}, "the encoding of the rows (columns, levels, means) is not the same"),
    ],
)
def test_other_options_of_the_data_are_told(options, says):
    x = np.random.default_rng(1).normal(size=(200, 5))
    common = {"batch_size": 32}
    there = describe(data=make_labelled(x, np.arange(200), **common))
    here = describe(data=make_labelled(x, np.arange(200), **{**common, **options}))
    assert find_mismatch(here, there) == says


@pytest.mark.tf
def test_other_rows_and_labels_are_told():
    x, y = np.random.default_rng(1).normal(size=(200, 5)), np.arange(200.0)
    there = describe(data=make_labelled(x, y))
    other, labels = x.copy(), y.copy()
    other[17, 3] += 0.01
    labels[[0, 1]] = labels[[1, 0]]
    assert find_mismatch(describe(data=make_labelled(other, y)), there) == (
        "the content of the rows is not the same"
    )
    assert find_mismatch(describe(data=make_labelled(x, labels)), there) == (
        "the content of the labels or weights is not the same"
    )
    noise = x * (1 + 1e-15)  # what the sums of another processor may come to
    assert find_mismatch(describe(data=make_labelled(noise, y)), there) == ""


@pytest.mark.tf
def test_of_many_rows_some_are_looked_at(monkeypatch):
    from gpukeras.checkpoint import fingerprint

    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 100)
    x, y = np.random.default_rng(1).normal(size=(2000, 5)), np.arange(2000.0)
    there = describe(data=make_labelled(x, y))
    other = x.copy()
    other[0] += 1
    assert find_mismatch(describe(data=make_labelled(x, y)), there) == ""
    assert "content of the rows" in find_mismatch(describe(data=make_labelled(other, y)), there)


@pytest.mark.tf
def test_augmentation_and_the_batch_size_of_the_training_count():
    data = make_dataset()
    there = describe(data=data)
    assert find_mismatch(describe(data=data, batch_size=16), there).startswith("the batch size")
    data.augment = AugmentSpec(mixup=0.2)
    assert find_mismatch(describe(data=data), there) == "`augment` was none and is given"


@pytest.mark.tf
def test_epochs_count_only_where_the_schedule_spans_them():
    cosine, decay = ({"kind": kind} for kind in ("warmup_cosine", "exponential"))
    for schedule, says in ((None, ""), (decay, ""), (cosine, "the number of epochs")):
        one, other = (describe(schedule=schedule, epochs=epochs) for epochs in (5, 10))
        assert find_mismatch(one, other).startswith(says)
        assert bool(find_mismatch(one, other)) == bool(says)


def make_stream(rows=100, **options):
    x = np.random.default_rng(1).normal(size=(rows, 5))
    labels = {"name": "y", "kind": "numeric", "values": x[:, 0], "levels": []}
    chunk = {"features": {"kind": "array", "values": x, "names": []}, "labels": labels}
    given = {"kind": "generator", "call": lambda epoch, batch: {**chunk, "weights": None}}
    return build_stream({**given, "steps": 3}, Request(options, recipe=None))


@pytest.mark.tf
def test_rows_in_sequence_are_described_by_what_is_known():
    model, data = make_net(), make_stream()
    there = describe(model, data)
    assert there["rows"] == 300
    assert not {"features", "labels"} & set(there)
    data.widen_label(np.array([1e6], np.float32))  # as later rows do
    assert find_mismatch(describe(model, data), there) == ""
    assert find_mismatch(describe(model, make_stream()), there) == ""
    for other, says in (
        (make_stream(99), "the number of training rows was 300 and is 297"),
        (make_stream(buffer=50), "`buffer` was none and is 50"),
        (make_stream(seed=3), "the dataset's seed was 0 and is 3"),
        (make_dataset(), "the kind of data was a batch at a time from a function and is rows"),
    ):
        assert find_mismatch(describe(model, other, 100), there).startswith(says)
