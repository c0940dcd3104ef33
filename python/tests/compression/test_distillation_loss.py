"""Distances between teacher and student, and a loss that lasts as long as the teaching."""

import numpy as np
import pytest
from lazy_modules import keras
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.compression import distillation_loss
from gpukeras.core.errors import ModelError
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.tabular.members import BatchEnsemble, MeanOfMembers, MembersModel
from gpukeras.training import fit

pytestmark = pytest.mark.tf
RNG = np.random.default_rng(1)
LOGITS = RNG.normal(size=(2, 6, 4)).astype(np.float32)


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def divergence(taught, own):
    return (taught * np.log(taught / own)).sum(-1)


def two(taught, own):
    pairs = [(taught, own), (1 - taught, 1 - own)]
    return sum(one * np.log(one / other) for one, other in pairs).mean(-1)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("weights", [None, np.array([0.0, 1, 2, 3, 1, 0], np.float32)])
@pytest.mark.parametrize(
    ("loss", "kind", "squash", "distance"),
    [
        ("sparse_categorical_crossentropy", "classes", softmax, divergence),
        ("binary_crossentropy", "two classes", sigmoid, two),
    ],
)
def test_softened_classes_are_compared(loss, kind, squash, distance, temperature, weights):
    softened = [squash(one / temperature) for one in LOGITS.astype(np.float64)]
    each = distance(*softened) * temperature**2
    expected = np.mean(each if weights is None else each * weights)
    found, compare = distillation_loss.open_distance(loss, temperature)
    assert found == kind
    assert float(compare(*squash(LOGITS), weights)) == pytest.approx(expected, rel=1e-3)
    classes = {
        "classes": keras.losses.SparseCategoricalCrossentropy,
        "two classes": keras.losses.BinaryCrossentropy,
    }
    _, compare = distillation_loss.open_distance(classes[kind](from_logits=True), temperature)
    assert float(compare(*LOGITS, weights)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("loss", ["mse", "mean_absolute_error", "own"])
def test_numbers_are_compared_by_the_student_s_own_loss(loss):
    def own(true, predicted):
        return keras.ops.mean(keras.ops.abs(true - predicted), axis=-1)

    kind, compare = distillation_loss.open_distance(own if loss == "own" else loss, 3.0)
    gap = LOGITS[0] - LOGITS[1]
    expected = np.mean(gap**2 if loss == "mse" else abs(gap))
    assert kind == "numbers"
    assert float(compare(*LOGITS, None)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", ["CategoricalCrossentropy", "MeanSquaredError"])
def test_rows_and_masks_count_as_in_the_student_s_own_loss(loss):
    make = getattr(keras.losses, loss)
    taught, said = map(softmax, RNG.normal(size=(2, 6, 3, 4)).astype(np.float32))
    steps = np.arange(18.0).reshape(6, 3)
    total = distillation_loss.open_distance(make(reduction="sum"), 2.0)[1](taught, said, steps)
    mean = distillation_loss.open_distance(make(), 2.0)[1]
    assert float(mean(taught, said, steps)) == pytest.approx(float(total) / 18, rel=1e-5)
    masked = keras.ops.convert_to_tensor(said)
    masked._keras_mask = keras.ops.convert_to_tensor(steps % 3 == 0)
    alone = float(mean(taught[:, :1], said[:, :1], None))
    assert float(mean(taught, masked, None)) == pytest.approx(alone, rel=1e-5)


def test_certain_probabilities_are_finite():
    _, compare = distillation_loss.open_distance("categorical_crossentropy", 2.0)
    sure = np.eye(3, dtype=np.float32)
    assert np.isfinite(float(compare(sure, sure[::-1].copy(), None)))
    assert float(compare(sure, sure, None)) == 0


def two_headed(losses, weights=None):
    given = keras.Input((5,))
    heads = [keras.layers.Dense(3, "softmax", name="b"), keras.layers.Dense(1, name="a")]
    model = keras.Model(given, {head.name: head(given) for head in heads})
    model.compile("sgd", losses, loss_weights=weights)
    return model


def test_losses_are_listed_in_the_order_of_outputs():
    losses = {"b": "sparse_categorical_crossentropy", "a": "mse"}
    model = two_headed(losses, {"a": 2.0})
    assert distillation_loss.list_losses(model) == ["mse", "sparse_categorical_crossentropy"]
    assert distillation_loss.list_shares(model, 2) == [2.0, 1.0]
    assert distillation_loss.list_shares(two_headed(losses, {"a": 2.0, "b": None}), 2) == [2.0, 1.0]
    several = two_headed(["mse", losses["b"]], [None, 0.5])
    assert distillation_loss.list_shares(several, 2) == [1.0, 0.5]
    assert distillation_loss.list_losses(make_model()) == ["sparse_categorical_crossentropy"]
    assert distillation_loss.list_shares(make_model(), 1) == [1.0]


def test_outputs_and_rows_are_weighed_by_their_names():
    losses = {"b": "sparse_categorical_crossentropy", "a": "mse"}
    student, teacher = two_headed(losses, {"b": 1.0, "a": 2.0}), two_headed(losses)
    x, y = LOGITS[0, :, [0, 1, 2, 3, 0]].T, {"b": np.arange(6) % 3, "a": np.ones((6, 1))}
    weights = {"b": np.arange(6.0, dtype=np.float32), "a": np.ones(6, np.float32)}
    said, taught = student(x), teacher(x)
    apart = {
        name: float(distillation_loss.open_distance(loss, 1.0)[1](*pair, weights[name]))
        for name, loss in losses.items()
        for pair in [(taught[name], said[name])]
    }
    with distillation_loss.taught_by(student, teacher, 1.0, 0.0):
        mixed = student.compute_loss(x=x, y=y, y_pred=said, sample_weight=weights, training=True)
    assert float(mixed) == pytest.approx(apart["b"] + 2 * apart["a"], rel=1e-5)


@pytest.mark.parametrize(
    ("weights", "picked"), [([], [None, None]), ([1], [1, 1]), ([1, 2], [1, 2])]
)
def test_weights_are_an_output_s_own_or_those_of_all(weights, picked):
    assert [distillation_loss.pick_weights(weights, place) for place in (0, 1)] == picked


def test_the_loss_is_mixed_in_training_and_the_student_s_own_otherwise():
    student, teacher = make_model(seed=1), make_model(seed=2)
    x, y = RNG.normal(size=(8, 5)).astype(np.float32), np.arange(8) % 3
    said, taught = student(x), teacher(x)
    own = float(student.compute_loss(y=y, y_pred=said))
    apart = distillation_loss.open_distance("sparse_categorical_crossentropy", 2.0)[1](
        taught, said, None
    )
    with distillation_loss.taught_by(student, teacher, 2.0, 0.25):
        mixed = float(student.compute_loss(x=x, y=y, y_pred=said, training=True))
        assert mixed == pytest.approx(0.25 * own + 0.75 * float(apart), rel=1e-5)
        assert float(student.compute_loss(x=x, y=y, y_pred=said, training=False)) == own
    assert float(student.compute_loss(x=x, y=y, y_pred=said)) == own
    assert "compute_loss" not in vars(student)


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["keras", "graph_loop", "compiled"], "graph_loop"))
def test_every_engine_teaches_and_forgets(engine):
    student, teacher, data = make_model(seed=1), make_model(seed=2), make_dataset()
    options = {"epochs": 1, "engine": engine}
    with distillation_loss.taught_by(student, teacher, 2.0, 0.0):  # the teacher alone
        taught = fit.fit(student, data, {**options, "epochs": 3}).history["loss"]
    assert taught[-1] < taught[0] < 1
    assert fit.fit(student, data, options).history["loss"][0] > 0.9  # the labels' loss again
    assert len(student.variables) == 4


def test_a_validation_has_the_loss_of_the_student_s_class_alone():
    class Older(keras.Model):  # Keras did not tell it whether it is of a training
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return 2 * super().compute_loss(x, y, y_pred, sample_weight)

    given = keras.Input((5,))
    student = Older(given, keras.layers.Dense(3, "softmax")(given))
    student.compile("sgd", "sparse_categorical_crossentropy")
    rows = RNG.normal(size=(8, 5)).astype(np.float32), np.arange(8) % 3
    with distillation_loss.taught_by(student, make_model(seed=2), 2.0, 0.25):
        found = student.evaluate(*rows, verbose=0)
    student.test_function = None
    assert found == pytest.approx(student.evaluate(*rows, verbose=0), rel=1e-5)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_each_member_learns_from_the_teacher_s_output_for_its_row(reduction):
    loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
    given = keras.Input((5,))
    members = keras_class(BatchEnsemble)(3, 4, "normal")(given)
    output = keras_class(MeanOfMembers)()(keras.layers.Softmax()(members))
    student, teacher = keras_class(MembersModel)(given, output), make_model(seed=2)
    student.compile("sgd", loss)
    x, y = RNG.normal(size=(4, 5)).astype(np.float32), np.arange(4) % 3  # as many as members
    said, taught, weights = student(x, training=True), teacher(x), np.arange(4.0)
    compare = distillation_loss.open_distance(loss, 2.0)[1]
    each = [float(compare(taught, said[:, place], weights)) for place in range(4)]
    with distillation_loss.taught_by(student, teacher, 2.0, 0.0):
        found = float(student.compute_loss(x=x, y=y, y_pred=said, sample_weight=weights))
    assert found == pytest.approx(np.mean(each), rel=1e-5)


def test_outputs_of_the_same_names_in_another_order_are_refused():
    given = keras.Input((5,))
    heads = [keras.layers.Dense(1, name=name)(given) for name in ("a", "b")]
    teacher, student = keras.Model(given, heads), keras.Model(given, heads[::-1])
    for model in (teacher, student):
        model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="The outputs of `student` are b, a, and"):
        distillation_loss.match_outputs(teacher, student, np.zeros((2, 5), np.float32))


def test_outputs_of_other_shapes_are_refused():
    rows = np.zeros((2, 5), np.float32)
    distillation_loss.match_outputs(make_model(), make_model(seed=2), rows)
    with pytest.raises(ModelError, match="of shape 4, and `teacher` of shape 3"):
        distillation_loss.match_outputs(make_model(), make_model(units=4), rows)
