"""Which models train at a time, and why."""

import pytest
from small_fits import make_dataset, make_model

from gpukeras.many.plan import (
    CPU_FLOPS,
    MOST,
    STEP_FLOPS,
    Candidate,
    ModelFacts,
    describe_work,
    find_refusal,
    plan_stacks,
    read_model_facts,
)

SMALL = ModelFacts(1000, 100)


def plan(structures, free_bytes=None, most="auto", facts=SMALL):
    candidates = [Candidate(key, 10, facts) for key in structures]
    return plan_stacks(candidates, free_bytes=free_bytes, most=most)


def test_models_of_one_structure_train_together():
    found = plan(["a"] * 4)
    assert found.stacks == ((0, 1, 2, 3),)
    assert found.reason == "4 models of one structure: those of one structure train together"


def test_each_structure_has_stacks_of_its_own():
    found = plan(["a", "b", "a"])
    assert found.stacks == ((0, 2), (1,))
    assert (found.structures, found.most) == (2, 2)


def test_memory_limits_a_stack():
    found = plan(["a"] * 5, free_bytes=2 * SMALL.bytes * 3)
    assert found.stacks == ((0, 1, 2), (3, 4))
    assert "as many as fit into half of the free memory" in found.reason


def test_one_model_trains_however_little_memory_is_free():
    assert plan(["a"] * 2, free_bytes=1.0).most == 1


def test_more_models_than_are_faster_train_in_turns():
    found = plan(["a"] * (MOST + 1))
    assert len(found.stacks) == 2
    assert "more at a time were not faster" in found.reason


def test_models_of_some_settings_train_one_after_another():
    reasons = {"a": "", "b": "it is large"}
    candidates = [Candidate(key, 10, SMALL, reasons[key]) for key in ("a", "b", "a")]
    found = plan_stacks(candidates, free_bytes=None, most="auto")
    assert (found.stacks, found.alone, found.structures) == (((0, 2),), (1,), 2)
    assert found.reason.endswith("train together; 1 model alone: it is large")
    failed = found.without([(0, 2)], "it failed")
    assert (failed.stacks, failed.alone) == ((), (1, 0, 2))
    assert failed.reason.endswith("; 2 models alone: it failed")


def test_stacks_that_are_too_small_to_compile_are_left():
    found = plan(["a", "a", "a", "b"])
    assert found.without_small([10_000] * 4).stacks == ((0, 1, 2),)
    small = found.without_small([10] * 4)
    assert (small.stacks, small.alone) == ((), (0, 1, 2, 3))
    assert small.reason == "4 models alone: too few have their structure"
    both = found.without_small([10_000] * 3 + [10])
    assert both.reason.endswith(
        "those of one structure train together; 1 model alone: too few have their structure"
    )


def test_on_a_cpu_large_steps_and_convolutions_keep_it_busy():
    large = ModelFacts(1000, 100, step_flops=CPU_FLOPS + 1)
    images = ModelFacts(1000, 100, convolves=True)
    assert describe_work(large, "CPU:0") == "a step of 20 MFLOP keeps a CPU busy"
    assert "convolutions" in describe_work(images, "CPU:0")
    assert {describe_work(large, "GPU:0"), describe_work(images, "GPU:0")} == {""}
    assert describe_work(SMALL, "CPU:0") == ""


@pytest.mark.tf
def test_the_work_of_a_step_counts_weights_at_each_place():
    import keras

    def products(*layers):
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
        return read_model_facts(model, 4, 1).step_flops // STEP_FLOPS

    dense = keras.layers.Dense(5)
    assert products(keras.Input((3,)), dense) == 3 * 5 + 5
    nested = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5)])
    assert products(keras.Input((3,)), nested) == 3 * 5 + 5
    images = [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3, padding="same")]
    assert products(*images) == 8 * 8 * (9 * 2 + 2)
    words = [keras.Input((4,)), keras.layers.Embedding(100, 3), keras.layers.GRU(2)]
    weights = 3 * 6 + 2 * 6 + 2 * 6
    assert products(*words) == 4 * weights


@pytest.mark.tf
def test_a_model_whose_optimizer_averages_weights_is_not_stacked():
    import keras

    model = make_model(optimizer=keras.optimizers.SGD(0.1, use_ema=True))
    assert find_refusal(model, make_dataset()) == "its optimizer averages weights"


@pytest.mark.tensorflow
@pytest.mark.tf
@pytest.mark.parametrize("name", ["Nadam", "ScheduleFreeAdamW", "Own", "Adam"])
def test_an_optimizer_that_a_stack_would_apply_otherwise_is_not_stacked(name):
    import keras

    def reset(self):
        pass

    methods = {"_backend_reset_gradient_accumulators": reset}
    own = type("Own", (keras.optimizers.SGD,), methods)
    kind = getattr(keras.optimizers, name, own)
    refusal = find_refusal(make_model(optimizer=kind()), make_dataset())
    expected = "TensorFlow has no program for stacks of its optimizer"
    assert refusal == ("" if name == "Adam" else expected)


@pytest.mark.tf
@pytest.mark.parametrize("name", ["train_step", "test_step", "predict_step", "compute_metrics"])
def test_a_step_of_ones_own_is_not_stacked(name):
    import keras

    given = keras.Input((5,))
    own = type("Own", (keras.Model,), {name: lambda self, *given: None})
    model = own(given, keras.layers.Dense(3, "softmax")(given))
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert find_refusal(model, make_dataset()) == "its step is its own"


@pytest.mark.tensorflow
@pytest.mark.tf
def test_on_tensorflow_a_model_that_accumulates_gradients_is_not_stacked():
    import keras

    model = make_model(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    reason = "TensorFlow has no program for stacks that accumulate gradients"
    assert find_refusal(model, make_dataset()) == reason
