import re

import pytest

from gpukeras.accelerate.decide import BATCHES, GPUKERAS, KERAS, ROWS, RULES, CallFacts, plan_call

TAKEN = {
    "arrays": {},
    "validation by a pipeline": {"held": "pipeline"},
    "validation by batches made in Python": {"held": "sequence"},
    "one output with a short last batch": {"whole": False},
    "several outputs in whole batches": {"outputs": 2},
    "classes that are weighed": {"weighs_classes": True},
    "several outputs and a short last batch": {"outputs": 2, "whole": False},
    "arrays on JAX": {"backend": "jax"},
}

# By the batches of Keras' own iterator.
BATCHED = {
    "a pipeline": {"rows": "pipeline"},
    "a pipeline that draws at random": {"rows": "pipeline", "unsteady": True},
    "an evaluation of one": {"rows": "pipeline", "unsteady": True, "function": "evaluate"},
    "a generator with steps": {"rows": "sequence", "steps": True},
    "classes of a pipeline that are weighed": {"rows": "pipeline", "weighs_classes": True},
    "integers beyond 2^24": {"large": True},
    "integers for a model of a class of its own": {"integers": True},
    "numbers of float64": {"floatx": "float64"},
    "batches in another order": {"shuffle": "batch"},
    "a number of steps": {"steps": True},
}

KEPT = {
    "made within another call, by a callback or a step": {"nested": True},
    "gpukeras runs a call of another thread": {"busy": True},
    "Keras runs on torch": {"backend": "torch"},
    "the model is not compiled": {"compiled": False},
    "`run_eagerly`: each batch runs as Python code": {"eager": True},
    "the model belongs to a strategy of TensorFlow's": {"strategy": True},
    "keras.distribution spreads the model over devices": {"distribution": True},
    "the model's class has its own make_train_function()": {"own_method": "make_train_function"},
    "keras.config limits epochs or steps": {"limited": True},
    "`callbacks` brings a progress bar or a list of its own": {"own_list": True},
    "`callbacks` are given": {"function": "predict", "callbacks": True},
    "the callback Mine works on each batch": {"batch_hook": "Mine"},
    "the callback Yours works on each batch": {"test_hook": "Yours"},
    "the rows are neither arrays, batches nor a pipeline": {"rows": "other"},
    "the validation rows are neither arrays, batches nor a pipeline": {"held": "other"},
    "the validation rows come from a generator": {"held": "sequence", "held_once": True},
    "`validation_split` of rows that are no arrays": {"splits": True},
    "the tf.data pipeline gives text": {"alone": "text"},
    "the rows have texts": {"text": True},
    "batches of unknown number, 4 in a call by `steps_per_execution`": {
        "batches": None,
        "together": 4,
    },
    "Python makes the batches one by one": {"rows": "sequence", "function": "evaluate"},
    "a prediction of a tf.data pipeline that draws at random or calls Python": {
        "function": "predict",
        "unsteady": True,
    },
    "a prediction of numbers that may be others in float32, or with `steps`": {
        "function": "predict",
        "large": True,
    },
    "rows on jax that only Keras' own iterator gives": {"rows": "pipeline", "backend": "jax"},
    "`class_weight` beside `sample_weight`, which Keras refuses": {"both_weights": True},
    "`class_weight` of several outputs": {"weighs_classes": True, "outputs": 2},
    "weights arranged otherwise than the labels or the outputs, which Keras refuses": {
        "misarranged": True
    },
    "several outputs and a short last batch on jax, whose losses Keras averages by batch": {
        "outputs": 2,
        "whole": False,
        "backend": "jax",
    },
    "nothing to do": {"epochs": 0},
    "too few batches (19) to gain by": {"batches": 19},
    "a single batch": {"function": "evaluate", "batches": 1},
}


def facts(**other):
    return CallFacts(**{"function": "fit", "batches": 1000, "count": 10_000, **other})


@pytest.mark.parametrize("case", TAKEN)
def test_calls_that_give_the_same_are_taken_over(case):
    plan = plan_call(facts(**TAKEN[case]))
    assert (plan.engine, plan.way) == (GPUKERAS, ROWS)


@pytest.mark.parametrize("case", BATCHED)
def test_other_rows_come_by_keras_own_iterator(case):
    plan = plan_call(facts(**BATCHED[case]))
    assert (plan.engine, plan.way) == (GPUKERAS, BATCHES)


@pytest.mark.parametrize("reason", KEPT)
def test_other_calls_are_left_to_keras_with_the_reason(reason):
    plan = plan_call(facts(**KEPT[reason]))
    assert (plan.engine, plan.reason) == (KERAS, reason)


def test_each_rule_has_a_case():
    found = "\n".join(KEPT)
    for _, reason in RULES:
        assert re.search(re.sub(r"\\\{\w+\\\}", ".+", re.escape(reason)), found), reason


def test_outputs_of_a_prediction_need_no_whole_batches():
    assert plan_call(facts(function="predict", outputs=2, whole=False)).engine == GPUKERAS
