import re

import pytest

from gpukeras.accelerate.decide import GPUKERAS, KERAS, RULES, CallFacts, plan_call

TAKEN = {
    "arrays": {},
    "a pipeline of unknown length": {"rows": "pipeline", "batches": None},
    "validation by a pipeline": {"held": "pipeline"},
    "one output with a short last batch": {"whole": False},
    "several outputs in whole batches": {"outputs": 2},
    "classes that are weighed": {"weighs_classes": True},
    "arrays on JAX": {"backend": "jax"},
}

KEPT = {
    "made within another call, by a callback or a step": {"nested": True},
    "gpukeras runs a call of another thread": {"busy": True},
    "Keras runs on torch": {"backend": "torch"},
    "the model is not compiled": {"compiled": False},
    "`run_eagerly`: each batch runs as Python code": {"eager": True},
    "the model belongs to a strategy of TensorFlow's": {"strategy": True},
    "the model's class has its own make_train_function()": {"own_method": "make_train_function"},
    "keras.config limits epochs or steps": {"limited": True},
    "`callbacks` brings a progress bar or a list of its own": {"own_list": True},
    "`callbacks` are given": {"function": "predict", "batch_hook": "History"},
    "the callback Mine works on each batch": {"batch_hook": "Mine"},
    "the callback Yours works on each batch": {"test_hook": "Yours"},
    "Python makes the batches one by one": {"rows": "sequence"},
    "the rows are neither arrays nor a tf.data pipeline": {"rows": "other"},
    "the validation rows are neither arrays nor a tf.data pipeline": {"held": "sequence"},
    "a tf.data pipeline on jax": {"rows": "pipeline", "backend": "jax"},
    "Python makes the rows of the tf.data pipeline": {"rows": "pipeline", "foreign": True},
    "a tf.data pipeline that draws at random, and would draw anew": {"random": True},
    "the rows have texts": {"text": True},
    "integers beyond 2^24, which float32 cannot hold": {"large": True},
    "integers for a model of a class of its own": {"integers": True},
    '`shuffle = "batch"`': {"shuffle": "batch"},
    "a number of steps was given": {"steps": True},
    "`class_weight` beside `sample_weight`, which Keras refuses": {"both_weights": True},
    "`class_weight` of a pipeline, or of several outputs": {"weighs_classes": True, "outputs": 2},
    "several outputs and a short last batch, whose losses Keras averages by batch": {
        "outputs": 2,
        "whole": False,
    },
    "nothing to do": {"epochs": 0},
    "too few batches (19) to gain by": {"batches": 19},
    "a single batch": {"function": "evaluate", "batches": 1},
}


def facts(**other):
    return CallFacts(**{"function": "fit", "batches": 1000, "count": 10_000, **other})


@pytest.mark.parametrize("case", TAKEN)
def test_calls_that_give_the_same_are_taken_over(case):
    assert plan_call(facts(**TAKEN[case])).engine == GPUKERAS


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
