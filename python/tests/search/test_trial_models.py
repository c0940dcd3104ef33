import random

import numpy as np
import pytest
from small_fits import make_dataset
from trialled import build

from gpukeras import GeneratorError, ModelError, SpecError
from gpukeras.backend import runtime
from gpukeras.data.dataset.chunks import GeneratorInterrupt
from gpukeras.search.trial_models import build_model
from gpukeras.search.trials import Trial

TRIAL = Trial(1, {"units": 4, "rate": 0.1}, seed=3)


@pytest.mark.tf
def test_a_trial_has_the_same_weights_whenever_it_is_built():
    data = make_dataset(40)
    runtime.keras()  # its import draws
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = build_model(build, TRIAL, data).get_weights()
    assert random.random() == expected  # the user's own draws go on as if there were no search
    again = build_model(build, TRIAL, data).get_weights()
    other = build_model(build, Trial(1, TRIAL.settings, seed=4), data).get_weights()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


@pytest.mark.tf
def test_a_model_that_does_not_fit_the_rows_is_refused():
    with pytest.raises(ModelError):
        build_model(build, TRIAL, make_dataset(40, columns=6))
    with pytest.raises(SpecError, match=r"`builder\(\)` must be a Keras 3 model, not "):
        build_model(lambda settings, seed: {"model": "a model"}, TRIAL, make_dataset(40))


@pytest.mark.tf
def test_a_builder_that_fails_is_an_error_with_its_words():
    answers = [{"failed": True, "message": "no such layer"}, {"interrupted": True}]
    with pytest.raises(GeneratorError) as caught:
        build_model(lambda settings, seed: answers.pop(0), TRIAL, make_dataset(40))
    assert caught.value.message == "`builder` failed: no such layer"
    with pytest.raises(GeneratorInterrupt) as caught:
        build_model(lambda settings, seed: answers.pop(0), TRIAL, make_dataset(40))
    assert caught.value.message == "Interrupted in `builder`."
