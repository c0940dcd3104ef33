"""The search for Keras' fastest `steps_per_execution`."""

import pytest
import steps_search
from steps_search import STEPS, best_of, choose_best, list_steps, time_steps


def test_candidates_fit_into_an_epoch_and_the_fastest_is_chosen():
    assert list_steps(1000) == STEPS
    assert list_steps(31) == (1, 8, 16)
    assert list_steps(1) == list_steps(0) == (1,)
    for seconds, best in (({1: 2.0, 8: 1.0, 32: 1.5}, 8), ({8: 1.0, 1: 1.0}, 1), ({128: 0.1}, 128)):
        assert choose_best(seconds) == best
        assert best_of({str(steps): value for steps, value in seconds.items()}) == best
    with pytest.raises(ValueError, match="at least one candidate"):
        choose_best({})


def test_each_candidate_is_warmed_up_and_its_fastest_epoch_counts_while_there_is_time():
    calls = []

    def train(steps, epochs):
        calls.append((steps, epochs))
        return [9.0] if epochs == 1 else [2.0 / steps, 1.0 / steps]

    assert time_steps(train, 8) == {1: 1.0, 8: 0.125}
    assert calls == [(1, 1), (1, steps_search.EPOCHS), (8, 1), (8, steps_search.EPOCHS)]
    assert time_steps(train, 1000, lambda: True) == {1: 1.0}


@pytest.mark.slow
@pytest.mark.tf
def test_a_model_trains_as_many_steps_a_call_as_it_is_set_to():
    from small_fits import make_dataset, make_model

    from gpukeras.backend import runtime

    class Calls(runtime.keras().callbacks.Callback):
        count = 0

        def on_train_batch_end(self, batch, logs=None):
            self.count += 1

    x, y = make_dataset(320).arrays[:2]
    for steps, calls in ((1, 10), (8, 2)):
        clock = Calls()
        model = steps_search.set_steps(make_model(), steps)
        model.fit(x, y, batch_size=32, epochs=1, verbose=0, callbacks=[clock])
        assert clock.count == calls
    assert list(steps_search.search(make_model, x, y, 32)) == ["1", "8"]
