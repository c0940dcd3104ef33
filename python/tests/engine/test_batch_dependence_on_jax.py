"""The same on JAX, which compiles the look for each size."""

import pytest
from jax_runs import needs_jax, run_part
from nightly import few

pytestmark = [pytest.mark.process, needs_jax]

DEPENDING = [
    "a lambda",
    "operations of the graph",
    "a function of a layer",
    "weights of 0 behind",
    "a counter",
    "random numbers",
    "a metric of the largest",
    "a recall without positives",
    "masked steps",
    "classes left out",
    "hinge of 0 and 1",
    "a penalty of one's own",
    "an output without axis",
]
OTHERS = ["layers of Keras'", "penalties of outputs", "a lambda of each row", "scores of classes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    few(
        [*DEPENDING, *OTHERS],
        *("a lambda", "random numbers", "masked steps", "a lambda of each row"),
    ),
)
def test_evaluate_and_predict_give_what_keras_gives_in_its_batches(name):
    noted, evaluated, predicted = run_part("jax_batched", name)
    assert noted == (name in DEPENDING)
    assert max(evaluated, predicted) < 1e-5
