"""Narrower models of the same design: what may be narrowed, and what must stay."""

from functools import partial

import numpy as np
import pytest
from lazy_modules import keras, layers
from small_fits import make_model

from gpukeras.compression import masks
from gpukeras.compression import student as compression_student
from gpukeras.core.errors import ModelError, SpecError


@pytest.mark.parametrize(
    ("steps", "fixed", "free"),
    [
        ([("join", "a", "b"), ("fix", "a")], "ab", "c"),
        ([("fix", "a"), ("join", "b", "a")], "ab", "c"),
        ([("collect", "w", "ab"), ("fix", "w")], "wab", "c"),
        ([("collect", "w", "ab"), ("join", "w", "c")], "wabc", "d"),
        ([("collect", "w", "ab"), ("join", "a", "c")], "", "wabc"),
        ([("join", "a", "b"), ("join", "b", "c"), ("fix", "c")], "abc", "d"),
    ],
)
def test_widths_that_meet_stay_or_go_together(steps, fixed, free):
    groups = compression_student.Groups()
    for step, *names in steps:
        if step == "collect":
            groups.collect((names[0],), [(name,) for name in names[1]])
        else:
            getattr(groups, step)(*((name,) for name in names))
    assert all(groups.fixed((name,)) for name in fixed)
    assert not any(groups.fixed((name,)) for name in free)


def residual():
    """Branches that are added, a width that meets the input, and two outputs."""
    given = keras.Input((16, 16, 3))
    left = layers.Conv2D(8, 3, padding="same", name="left")(given)
    right = layers.BatchNormalization()(layers.Conv2D(8, 1, name="right")(left))
    both = layers.Add()([left, right])
    back = layers.Conv2D(3, 3, padding="same", name="back")(both)
    joined = layers.Concatenate()([both, layers.Add()([back, given])])
    flat = layers.Flatten()(layers.MaxPooling2D()(joined))
    hidden = layers.Dense(20, "relu", name="hidden")(flat)
    return keras.Model(given, [layers.Dense(10)(hidden), layers.Softmax()(layers.Dense(4)(hidden))])


def grouped():
    return keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            layers.Conv2D(8, 3, name="before"),
            layers.Conv2D(8, 3, groups=2, name="groups"),
            layers.DepthwiseConv2D(3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(6, name="after"),
            layers.Dense(2),
        ]
    )


def convolutions(rank):
    def layer(kind, *arguments, **options):
        return getattr(layers, kind.format(f"{rank}D"))(*arguments, **options)

    apart = [layer("SeparableConv{}", 8, 2, name="apart")] if rank < 3 else []
    return keras.Sequential(
        [
            keras.Input((*[5] * rank, 2)),
            layer("Conv{}", 4, 2, name="first"),
            layer("Conv{}Transpose", 6, 2, name="grown"),
            *apart,
            layer("MaxPooling{}"),
            layer("GlobalAveragePooling{}"),
            layers.Dense(2),
        ]
    )


def text():
    return keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(10, 6, name="embedding"),
            layers.LSTM(8, return_sequences=True, name="lstm"),
            layers.LSTM(8, name="second", trainable=False),
            layers.Dense(2),
        ]
    )


CONVOLUTIONS = {"first": (4, 2), "grown": (6, 3), "apart": (8, 4)}


@pytest.mark.tf
@pytest.mark.parametrize(
    ("make", "widths"),
    [
        (residual, {"left": (8, 4), "right": (8, 4), "hidden": (20, 10)}),
        (grouped, {"after": (6, 3)}),
        (text, {"embedding": (6, 3)}),
        *((partial(convolutions, rank), CONVOLUTIONS) for rank in (1, 2)),
        (partial(convolutions, 3), {name: CONVOLUTIONS[name] for name in ("first", "grown")}),
    ],
)
def test_a_student_is_narrower_where_it_may_be(make, widths):
    teacher = make()
    student, changes = compression_student.derive_student(teacher, 0.5)
    assert {one.layer: (one.before, one.after) for one in changes} == widths
    rows = np.ones((2, *teacher.input_shape[1:]), teacher.inputs[0].dtype)
    assert shapes_of(teacher(rows)) == shapes_of(student(rows))
    assert student.count_params() < teacher.count_params()
    assert type(student) is type(teacher)


def shapes_of(outputs):
    return [np.shape(one) for one in (outputs if isinstance(outputs, list) else [outputs])]


@pytest.mark.tf
def test_a_student_is_compiled_as_its_teacher_and_keeps_what_was_given():
    normal = keras.layers.Normalization()
    normal.adapt(np.arange(20.0).reshape(4, 5))
    teacher = make_model(layers=[])
    model = keras.Sequential([keras.Input((5,)), normal, *teacher.layers])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    student, _ = compression_student.derive_student(model, 0.25)
    np.testing.assert_array_equal(student.layers[0].mean, normal.mean)
    assert student.compiled
    assert type(student.optimizer) is keras.optimizers.Adam
    assert student.name == f"{model.name}_student"


@pytest.mark.tf
def test_a_student_has_the_settings_of_single_variables():
    dense = [keras.layers.Dense(units, name=name) for units, name in ((8, "a"), (6, "b"), (4, "c"))]
    teacher = make_model(layers=dense)
    first, frozen, last = (layer.kernel for layer in dense)
    first.constraint = keras.constraints.NonNeg()
    last.regularizer = keras.regularizers.L2(0.5)
    frozen.trainable = False
    masks.apply_masks(teacher, {"c/kernel": np.arange(24).reshape(6, 4) % 2 == 0})
    student, changes = compression_student.derive_student(teacher, 0.5)
    kernels = {name: student.get_layer(name).kernel for name in "abc"}
    assert type(kernels["a"].constraint) is keras.constraints.NonNeg
    assert kernels["c"].regularizer is last.regularizer
    assert kernels["c"].constraint is None  # its zeros are of the teacher's weights
    assert not kernels["b"].trainable
    np.testing.assert_array_equal(kernels["b"], frozen)
    assert not {"a", "b"} & {change.layer for change in changes}  # widths that meet frozen weights


@pytest.mark.tf
def test_what_cannot_be_narrowed_is_refused():
    lone = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(SpecError, match="no hidden layer"):
        compression_student.derive_student(lone, 0.5)

    class Own(keras.Model):
        def call(self, rows):
            return rows

    with pytest.raises(ModelError, match="`teacher` must be a sequential or functional"):
        compression_student.derive_student(Own(), 0.5)
