"""Students that learn from a teacher."""

import numpy as np
import pytest
from lazy_modules import keras
from small_fits import make_dataset, make_model

from gpukeras.compression import distillation, masks
from gpukeras.compression.distillation_loss import taught_by
from gpukeras.core.errors import CompressionError, ModelError, SpecError
from gpukeras.models import model_recipes
from gpukeras.models.clone import copy_model
from gpukeras.training import evaluate
from gpukeras.training import fit as training_fit

pytestmark = pytest.mark.tf


def test_a_derived_student_is_smaller_and_the_teacher_stays():
    teacher, data = make_model(), make_dataset(validation=0.2)
    training_fit.fit(teacher, data, {"epochs": 3, "engine": "keras"})
    weights, trainable = teacher.get_weights(), teacher.trainable
    options = {"epochs": 2, "fit": {"engine": "keras"}}
    found = distillation.distill(teacher, data, options)
    report, student = found["report"], found["model"]
    assert report.after.parameters < report.before.parameters
    assert [one.unit for one in report.layers] == ["units"]
    assert report.settings == {"temperature": 3.0, "alpha": 0.5, "epochs": 2, "width": 0.5}
    assert report.training.epochs == 2
    assert report.notes == ("The student was compared with its teacher by softened classes.",)
    assert model_recipes.recipe_of(student) is data.recipe
    assert teacher.trainable is trainable
    for before, after in zip(weights, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.nightly  # the next test has a student of its own
def test_of_a_student_of_one_s_own_a_copy_is_trained():
    teacher, data = make_model(), make_dataset()
    student = keras.Sequential([keras.layers.Dense(3, "softmax")])  # neither built nor compiled
    options = {"epochs": 1, "fit": {"engine": "keras"}}
    found = distillation.distill(teacher, data, options, student=student)
    assert not student.built
    assert not student.compiled
    assert found["model"].compiled
    assert "width" not in found["report"].settings
    with pytest.raises(SpecError, match="`student` must be another model than `teacher`"):
        distillation.distill(teacher, data, options, student=teacher)
    wide = keras.Sequential([keras.layers.Dense(4, "softmax")])
    with pytest.raises(ModelError, match="`student` gives outputs of shape 4"):
        distillation.distill(teacher, data, options, student=wide)

    class Closed(keras.layers.Dense):
        def get_config(self):
            raise NotImplementedError

    closed = keras.Sequential([keras.Input((5,)), Closed(3, "softmax")])
    with pytest.raises(ModelError, match="`student` cannot be copied"):
        distillation.distill(teacher, data, options, student=closed)


@pytest.mark.slow
def test_a_student_that_is_worse_than_allowed_is_refused_and_stays_as_it_was():
    teacher, data = make_model(optimizer="adam"), make_dataset(validation=0.3)
    training_fit.fit(teacher, data, {"epochs": 30, "engine": "graph_loop"})
    student = make_model(seed=2)
    path = masks.list_kernels(student)[0].path
    masks.apply_masks(student, {path: np.eye(5, 8, dtype=bool)})
    before = student.get_weights()
    options = {"epochs": 1, "fit": {"engine": "keras"}}
    taught = distillation.distill(teacher, data, options, student=student)["model"]
    assert masks.sparsity(masks.read_masks(taught)) == pytest.approx(7 / 8)
    strict = {**options, "max_drop": 0.0, "metric": "loss"}
    with pytest.raises(CompressionError, match="loss goes from"):
        distillation.distill(teacher, data, strict, student=student)
    assert all((a == b).all() for a, b in zip(before, student.get_weights(), strict=True))
    assert int(student.optimizer.iterations.numpy()) == 0


def noisy(flipped, seed=3):
    """Rows whose labels are often wrong, and the same rows with labels that are not."""
    rng = np.random.default_rng(seed)
    clean = make_dataset(rows=600, columns=8, seed=seed, shuffle=False)
    wrong = make_dataset(rows=600, columns=8, seed=seed, shuffle=False)
    labels = wrong.sources[1].array
    places = rng.random(len(labels)) < flipped
    labels[places] = rng.integers(0, 3, places.sum())
    return clean, wrong


@pytest.mark.nightly
def test_a_teacher_that_knows_more_than_the_labels_is_worth_its_trouble():
    clean, wrong = noisy(0.6)
    teacher = make_model(columns=8, optimizer="adam")
    training_fit.fit(teacher, clean, {"epochs": 60, "engine": "graph_loop"})
    gains = []
    for seed in range(5):
        alone = make_model(columns=8, optimizer="adam", seed=seed)
        taught = copy_model(alone)
        fit = {"engine": "graph_loop"}
        training_fit.fit(alone, wrong, {"epochs": 20, **fit})
        with taught_by(taught, teacher, temperature=2, alpha=0.1):  # distill() measures much more
            training_fit.fit(taught, wrong, {"epochs": 20, **fit})
        scores = [evaluate.evaluate(m, clean)["metrics"]["accuracy"] for m in (alone, taught)]
        gains.append(scores[1] - scores[0])
    gains = np.array(gains)
    half = 2.776 * gains.std(ddof=1) / np.sqrt(5)  # Student's t, 4 degrees of freedom
    assert gains.mean() - half > 0
