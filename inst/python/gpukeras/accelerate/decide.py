"""Decides which engine runs a call of a script: a pure function of facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpukeras.accelerate.rows import ARRAYS, OTHER, SEQUENCE

GPUKERAS, KERAS = "gpukeras", "keras"
# How gpukeras reads rows: it gathers those of arrays itself, in Keras' order, or it takes the
# batches of Keras' own iterator, which are the same whatever they are.
ROWS, BATCHES = "rows", "batches"
# With fewer there is nothing to gain: both trace their programs, and the rest takes little. 20
# batches of a small model took 0.35 and 0.21 s of a processor, by Keras 0.55 and 0.54 s; 12,500
# took 2.4 s, by Keras 15 s (2 cores, TensorFlow 2.21).
FEW_BATCHES = 20


@dataclass(frozen=True)
class CallFacts:
    """What is known of a call before it runs.

    Args:
        function: "fit", "evaluate" or "predict".
        nested: Whether another call goes on in this thread, and a callback or a step made this one.
        busy: Whether gpukeras runs a call of another thread.
        backend: Keras' backend.
        compiled: Whether the model was compiled.
        eager: Whether it was compiled with `run_eagerly`.
        strategy: Whether it was made in a strategy of TensorFlow's.
        distribution: Whether `keras.distribution` spreads models over devices.
        own_method: A method of Keras' trainer that the model's class has its own of, such as
            "make_train_function"; or "".
        rows: How the rows come, see `rows.CallRows.kind`.
        held: How validation rows come; "" if there are none.
        held_once: Whether they come from a generator: how many of its batches Keras has read ahead
            when it asks again depends on time.
        unsteady: Whether a tf.data pipeline draws at random or calls Python, so that another pass
            may differ.
        alone: Why batches of a tf.data pipeline cannot be joined, such as "text", or "".
        splits: Whether `validation_split` was given for rows that are no arrays.
        count: Number of rows of arrays, or None.
        batches: Batches of the whole call, or None if unknown.
        whole: Whether all batches are full, as far as is known.
        outputs: Number of the model's outputs, 1 if unknown.
        integers: Whether integers are rows of a model of its own class, whose code may need them.
        large: Whether the rows have integers that float32 cannot hold.
        floatx: The type that Keras gives fractions, see `keras.config.floatx()`.
        text: Whether the rows have strings.
        shuffle: `shuffle` of `fit()`.
        steps: Whether a number of steps was given.
        both_weights: Whether `class_weight` and `sample_weight` were given.
        weighs_classes: Whether `class_weight` was given.
        misarranged: Whether outputs have weights of their own that Keras would not find.
        epochs: Epochs to train.
        batch_hook: A callback that works on batches of the call, or "".
        test_hook: A callback of `fit()` that works on batches of validation rows, or "".
        callbacks: Whether an evaluation or a prediction has any.
        own_list: Whether `callbacks` is a CallbackList, or holds a progress bar.
        limited: Whether Keras was told to limit epochs or steps.
        together: Batches of a call of Keras' own function, its `steps_per_execution`.
    """

    function: str
    nested: bool = False
    busy: bool = False
    backend: str = "tensorflow"
    compiled: bool = True
    eager: bool = False
    strategy: bool = False
    distribution: bool = False
    own_method: str = ""
    rows: str = ARRAYS
    held: str = ""
    held_once: bool = False
    unsteady: bool = False
    alone: str = ""
    splits: bool = False
    count: int | None = None
    batches: int | None = None
    whole: bool = True
    outputs: int = 1
    integers: bool = False
    large: bool = False
    floatx: str = "float32"
    text: bool = False
    shuffle: bool | str = True
    steps: bool = False
    both_weights: bool = False
    weighs_classes: bool = False
    misarranged: bool = False
    epochs: int = 1
    batch_hook: str = ""
    test_hook: str = ""
    callbacks: bool = False
    own_list: bool = False
    limited: bool = False
    together: int = 1


@dataclass(frozen=True)
class CallPlan:
    """Which engine runs a call, and why.

    Args:
        engine: "gpukeras" or "keras".
        reason: Why Keras runs it; "" where gpukeras does.
        way: "rows" or "batches": how gpukeras reads the rows.
    """

    engine: str
    reason: str = ""
    way: str = ROWS


Rule = tuple[Callable[[CallFacts], bool], str]

# The first rule that holds says why Keras runs the call. `{}` names are fields of the facts.
RULES: tuple[Rule, ...] = (
    (lambda facts: facts.nested, "made within another call, by a callback or a step"),
    (lambda facts: facts.busy, "gpukeras runs a call of another thread"),
    (lambda facts: facts.backend not in ("tensorflow", "jax"), "Keras runs on {backend}"),
    (lambda facts: not facts.compiled, "the model is not compiled"),
    (lambda facts: facts.eager, "`run_eagerly`: each batch runs as Python code"),
    (lambda facts: facts.strategy, "the model belongs to a strategy of TensorFlow's"),
    (lambda facts: facts.distribution, "keras.distribution spreads the model over devices"),
    (lambda facts: bool(facts.own_method), "the model's class has its own {own_method}()"),
    (lambda facts: facts.limited, "keras.config limits epochs or steps"),
    (lambda facts: facts.own_list, "`callbacks` brings a progress bar or a list of its own"),
    (lambda facts: bool(facts.batch_hook), "the callback {batch_hook} works on each batch"),
    (lambda facts: bool(facts.test_hook), "the callback {test_hook} works on each batch"),
    (lambda facts: facts.callbacks, "`callbacks` are given"),
    (lambda facts: facts.rows == OTHER, "the rows are neither arrays, batches nor a pipeline"),
    (
        lambda facts: facts.held == OTHER,
        "the validation rows are neither arrays, batches nor a pipeline",
    ),
    (lambda facts: facts.held_once, "the validation rows come from a generator"),
    (lambda facts: facts.splits, "`validation_split` of rows that are no arrays"),
    (lambda facts: bool(facts.alone), "the tf.data pipeline gives {alone}"),
    (lambda facts: facts.text, "the rows have texts"),
    (
        lambda facts: facts.function == "fit" and facts.batches is None and facts.together > 1,
        "batches of unknown number, {together} in a call by `steps_per_execution`",
    ),
    (
        lambda facts: facts.rows == SEQUENCE and facts.function != "fit",
        "Python makes the batches one by one",
    ),
    (
        lambda facts: facts.unsteady and facts.function == "predict",
        "a prediction of a tf.data pipeline that draws at random or calls Python",
    ),
    (
        lambda facts: _asks_keras(facts) and facts.function == "predict",
        "a prediction of numbers that may be others in float32, or with `steps`",
    ),
    (
        lambda facts: _needs_batches(facts) and facts.backend != "tensorflow",
        "rows on {backend} that only Keras' own iterator gives",
    ),
    (
        lambda facts: facts.both_weights,
        "`class_weight` beside `sample_weight`, which Keras refuses",
    ),
    (
        lambda facts: facts.weighs_classes and facts.outputs > 1,
        "`class_weight` of several outputs",
    ),
    (
        lambda facts: facts.misarranged,
        "weights arranged otherwise than the labels or the outputs, which Keras refuses",
    ),
    (
        lambda facts: _averages_by_batch(facts) and facts.backend != "tensorflow",
        "several outputs and a short last batch on {backend}, whose losses Keras averages by batch",
    ),
    (lambda facts: facts.epochs < 1 or facts.count == 0, "nothing to do"),
    (
        lambda facts: facts.function == "fit" and _few(facts, FEW_BATCHES),
        "too few batches ({batches}) to gain by",
    ),
    (lambda facts: facts.function != "fit" and _few(facts, 2), "a single batch"),
)


def _averages_by_batch(facts: CallFacts) -> bool:
    return facts.function != "predict" and facts.outputs > 1 and not facts.whole


def _asks_keras(facts: CallFacts) -> bool:
    """Whether Keras' batches of arrays are others than those that gpukeras gathers in float32."""
    other = facts.large or facts.integers or facts.floatx != "float32"
    return other or facts.steps or facts.shuffle == "batch"


def _needs_batches(facts: CallFacts) -> bool:
    """Whether the rows, or those of the validation, must come by Keras' own iterator."""
    return facts.rows != ARRAYS or facts.held not in ("", ARRAYS) or _asks_keras(facts)


def _few(facts: CallFacts, least: int) -> bool:
    return facts.batches is not None and facts.batches < least


def plan_call(facts: CallFacts) -> CallPlan:
    """Returns which engine runs a call: gpukeras where that gives the same result and may pay."""
    for holds, reason in RULES:
        if holds(facts):
            return CallPlan(KERAS, reason.format(**vars(facts)))
    gathers = facts.function == "predict" or not (facts.rows != ARRAYS or _asks_keras(facts))
    return CallPlan(GPUKERAS, way=ROWS if gathers else BATCHES)
