"""gpukeras trains as Keras does, whatever the model, loss, metrics, optimizer, weights and batches.

`make test-nightly` tries many random cases; seeds that once failed are tried in every run.
"""

import fuzzing
import pytest

pytestmark = pytest.mark.tf

ONCE_FAILED = ()  # seeds, each with what it found
FEW = (9, 13)  # that the machinery itself works
CASES, A_TEST = 480, 10  # some 22 comparisons a case: 10,000 and more
COMPILED_EVERY = 8  # XLA compiles for a second or two


@pytest.mark.varies
@pytest.mark.parametrize("seed", [*FEW, *ONCE_FAILED])
def test_a_random_training_ends_as_keras_does(seed):
    compared, differ = fuzzing.compare(fuzzing.draw_case(seed), ("graph_loop",))
    assert compared > 4
    assert differ == [], fuzzing.draw_case(seed)


def test_a_difference_is_found():
    case = fuzzing.draw_case(2)
    assert not fuzzing.is_close(case, "loss", [1.0, 2.0], [1.0, 2.001])
    assert not fuzzing.is_close(case, "weight 0", [1.0], [1.01])


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 1000 + CASES, A_TEST))
def test_random_trainings_end_as_keras_does(first):
    failed = {}
    for seed in range(first, first + A_TEST):
        engines = ("keras", "graph_loop", *(["compiled"] if seed % COMPILED_EVERY == 0 else []))
        _, differ = fuzzing.compare(fuzzing.draw_case(seed), engines)
        failed |= {seed: differ} if differ else {}
    assert failed == {}
