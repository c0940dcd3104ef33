import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.core.errors import SpecError
from gpukeras.engine import autotune
from gpukeras.engine.autotune import EngineAutotuner, EngineFacts

THREE = ("graph_loop", "keras", "compiled")


JAX = ("compiled", "keras")


@pytest.mark.parametrize(
    ("facts", "candidates", "reason"),
    [
        (EngineFacts(), THREE, ""),
        (EngineFacts(requested="graph_loop"), ("graph_loop",), "as asked"),
        (EngineFacts(available=JAX), ("compiled",), "on JAX XLA compiles every engine"),
        (EngineFacts(available=JAX, model_jit=False), ("keras",), "on JAX XLA compiles"),
        (EngineFacts(jit=False), ("graph_loop", "keras"), ""),
        (EngineFacts(model_jit=False), THREE[:2], ""),
        (EngineFacts(jit=True), ("compiled",), "gpu_setup(jit = TRUE)"),
        (EngineFacts(eager=True), ("keras",), "run_eagerly"),
        (EngineFacts(batch_hook="Mine"), ("keras",), "callback Mine works on every batch"),
        (EngineFacts(own_function=True), ("keras",), "its own train function"),
        (EngineFacts(repeats=True), ("graph_loop", "keras", "compiled"), "would not repeat"),
        (EngineFacts(eager=True, jit=True), ("keras",), "run_eagerly"),
    ],
)
def test_candidates_and_why(facts, candidates, reason):
    chosen, why = autotune.choose_candidates(facts)
    assert chosen == candidates
    assert reason in why


@pytest.mark.parametrize(
    ("flops", "batches", "found"),
    [(1e6, 7000, True), (25e6, 10**6, True), (1e6, 6999, False), (26e6, 10**6, False)],
)
def test_compiled_is_foreseen_for_many_small_batches_of_dense_layers(flops, batches, found):
    reason = autotune.foresee_compiled(EngineFacts(dense_flops=flops), batches)
    assert bool(reason) == found
    assert not autotune.foresee_compiled(EngineFacts(), batches)


def test_evaluation_leaves_out_keras_own_unless_it_is_alone():
    assert autotune.choose_evaluation_candidates(EngineFacts()) == ("graph_loop", "compiled")
    assert autotune.choose_evaluation_candidates(EngineFacts(eager=True)) == ("keras",)


def drive(chooser, batch_s, start_s=0.5, batches=10**6, block=10**9):
    """Feeds a chooser with the times that engines of known speed would take.

    What is prepared is ready, and has cost its start, by the next call.
    """
    trained, started = 0, set()
    while chooser.choice is None and trained < batches:
        left = min(batches - trained, block - trained % block)
        engine, count = chooser.engine, chooser.count(left)
        seconds = count * batch_s[engine] + (0.0 if engine in started else start_s)
        started.add(engine)
        if chooser.preparing:
            chooser.try_prepared(0.0)
        else:
            chooser.record(count, seconds)
            trained += count
    return trained


speeds = st.fixed_dictionaries({name: st.floats(1e-5, 1e-1) for name in THREE})


@given(speeds)
def test_the_fastest_engine_goes_on(batch_s):
    chooser = EngineAutotuner(THREE, 10**9)
    drive(chooser, batch_s, batches=10**9)
    tried = {trial.engine for trial in chooser.choice.trials}
    assert batch_s[chooser.choice.engine] == pytest.approx(min(batch_s[name] for name in tried))
    slow = batch_s["graph_loop"] >= autotune.KERAS_BATCH_S
    assert tried == (set(THREE) if slow else {"graph_loop", "compiled"})


@pytest.mark.costly
@settings(max_examples=30)  # each feeds up to a million batches
@given(speeds, st.integers(1, 9))
def test_small_blocks_do_not_keep_it_from_choosing(batch_s, block):
    chooser = EngineAutotuner(THREE, 10**9)
    assert drive(chooser, batch_s, batches=10**9, block=block) < 10**6
    tried = {trial.engine for trial in chooser.choice.trials}
    assert batch_s[chooser.choice.engine] == pytest.approx(min(batch_s[name] for name in tried))


def test_the_reason_has_the_figures():
    chooser = EngineAutotuner(THREE, 10**6)
    drive(chooser, {"keras": 9e-3, "graph_loop": 3e-3, "compiled": 4e-4})
    expected = "measured fastest: 400 us a batch against 3,000 us (graph_loop) and 9,000 us (keras)"
    assert chooser.choice.reason == expected


def test_engines_that_cannot_pay_are_not_tried():
    chooser = EngineAutotuner(THREE, 300)
    drive(chooser, dict.fromkeys(THREE, 1e-3), start_s=0.5, batches=300)
    assert chooser.choice.engine == "graph_loop"
    assert "too few batches left to pay for trying keras and compiled" in chooser.choice.reason


def test_a_call_a_batch_is_not_tried_where_the_call_alone_takes_longer():
    chooser = EngineAutotuner(THREE[:2], 10**9)
    drive(chooser, {"graph_loop": 2e-4, "keras": 1e-9}, batches=10**9)
    assert chooser.choice.engine == "graph_loop"
    assert chooser.choice.reason == "200 us a batch"


def until_preparing():
    chooser = EngineAutotuner(THREE, 10**6)
    while not chooser.preparing:
        chooser.record(chooser.count(10**6), 1e-4 * chooser.count(10**6))
    return chooser


def test_the_fastest_so_far_goes_on_while_another_is_prepared():
    chooser = until_preparing()
    assert (chooser.engine, chooser.preparing) == ("graph_loop", "compiled")
    trials = chooser.trials
    for _ in range(20):
        count = chooser.count(10**6)
        assert count * 1e-4 == pytest.approx(autotune.PREPARING_CALL_S, rel=0.01)
        chooser.record(count, 3e-4 * count)  # slowed down by what goes on beside it
    assert chooser.trials == trials
    assert chooser.choice is None
    chooser.try_prepared(1.5)
    assert (chooser.engine, chooser.preparing) == ("compiled", "")
    drive(chooser, {"compiled": 1e-5}, start_s=0.25)
    assert chooser.choice.trials[-1].start_s == pytest.approx(1.75, rel=0.01)
    assert chooser.choice.engine == "compiled"
    assert "10 us a batch against 100 us (graph_loop)" in chooser.choice.reason


def test_what_was_traced_before_does_not_make_compiling_cheap():
    tried = []
    for started_s in (0.0, 5.0):
        chooser = EngineAutotuner(("graph_loop", "compiled"), 10**5, started_s=started_s)
        drive(chooser, {"graph_loop": 1e-4, "compiled": 1e-5}, start_s=1e-3, batches=10**5)
        tried.append([trial.engine for trial in chooser.finish().trials])
        assert chooser.started_s == (started_s or pytest.approx(1e-3, rel=0.2))
    assert tried == [["graph_loop", "compiled"], ["graph_loop"]]


def test_what_is_refused_while_it_is_prepared_is_left_out():
    chooser = until_preparing()
    assert chooser.refuse("no kernel for PyFunc")
    assert chooser.choice.engine == "graph_loop"
    assert (chooser.preparing, chooser.choice.trials[-1].engine) == ("", "compiled")


def test_batches_may_run_out_during_the_preparation():
    choice = until_preparing().finish()
    assert choice.engine == "graph_loop"
    assert choice.reason.endswith("; too few batches left to measure compiled")


@pytest.mark.parametrize(
    ("epochs", "engine", "reason"),
    [
        (3, "graph_loop", "200 us a batch; too few batches left to measure compiled"),
        (4, "compiled", "measured fastest: 40 us a batch against 200 us (graph_loop)"),
    ],
)
def test_an_epoch_that_is_one_call_is_measured_as_soon_as_two_are_left(epochs, engine, reason):
    chooser = EngineAutotuner(THREE, 2500 * epochs)
    started, counts = False, []
    for epoch in range(epochs):
        left = 2500
        while left:
            known = chooser.engine == "compiled"
            counts.append(chooser.count(left, 2500 if known else 0))
            seconds = counts[-1] * (4e-5 if known else 2e-4)
            chooser.record(counts[-1], seconds if started else 0.3)
            started, left = True, left - counts[-1]
        if epoch == 1:  # compiled in the meantime
            assert chooser.preparing == "compiled"
            chooser.try_prepared(1.0)
    assert counts[2 - epochs :] == [2500] * (epochs - 2)
    assert (chooser.finish().engine, chooser.finish().reason) == (engine, reason)


def test_the_only_engine_is_tried_at_once():
    chooser = EngineAutotuner(("compiled",), 10**6, "as asked")
    assert (chooser.engine, chooser.preparing) == ("compiled", "")


@pytest.mark.parametrize(
    ("engine", "batch_s", "seconds_left", "expected"),
    [
        ("compiled", 9e-4, 2.2, False),
        ("compiled", 9e-4, 2.3, True),
        ("keras", 9e-4, 1e6, False),
        ("keras", 1e-3, 14.9, False),
        ("keras", 1e-3, 15.1, True),
        ("compiled", 1e-3, 2.2, False),
        ("compiled", 1e-3, 2.3, True),
        ("compiled", 2e-3, 8.9, False),
        ("compiled", 2e-3, 9.1, True),
        ("compiled", 5e-3, 44.9, False),
        ("compiled", 5e-3, 45.1, True),
    ],
)
def test_what_an_engine_must_promise(engine, batch_s, seconds_left, expected):
    # 0.5 s of start. Fast batches: 2.25 s must be left to pay for compiling; slow: 30 times as
    # much as tracing (0.5 s) or compiling (1.5 s) costs, so that vain trials are lost in it. In
    # between what must be left to pay for compiling grows with the square of a batch's time.
    left = round(seconds_left / batch_s)
    assert autotune.is_worth_trying(engine, 0.5, batch_s, left) is expected


@given(speeds, st.integers(1, 10**5), st.floats(0.05, 5.0))
def test_vain_trials_of_slow_batches_cost_no_more_than_a_twentieth(batch_s, batches, start_s):
    chooser = EngineAutotuner(THREE, batches)
    batch_s = {**batch_s, "graph_loop": max(batch_s["graph_loop"], 5 * autotune.KERAS_BATCH_S)}
    drive(chooser, dict.fromkeys(THREE, batch_s["graph_loop"]), start_s, batches)
    others = [trial.engine for trial in chooser.trials if trial.engine != "graph_loop"]
    spent_s = sum(autotune.PRICE[engine] * start_s for engine in others)
    assert spent_s <= 0.05 * (start_s + batch_s["graph_loop"] * batches)


def test_an_engine_alone_is_measured_too():
    chooser = EngineAutotuner(("graph_loop",), 10**6, "as asked")
    drive(chooser, {"graph_loop": 1e-4})
    assert chooser.choice.reason == "as asked: 100 us a batch"


def test_batches_may_run_out_during_the_first_trial():
    chooser = EngineAutotuner(THREE, 5)
    drive(chooser, dict.fromkeys(THREE, 1e-4), batches=5)
    assert chooser.finish().engine == "graph_loop"
    assert "too few" in chooser.finish().reason


def test_a_refused_engine_is_left_out_with_its_reason():
    chooser = EngineAutotuner(("graph_loop", "compiled"), 10**6)
    while not chooser.preparing:
        chooser.record(chooser.count(10**6), 0.1)
    chooser.try_prepared(0.0)
    assert chooser.refuse("no kernel for PyFunc")
    assert chooser.choice.engine == "graph_loop"
    assert chooser.choice.trials[-1].refused == "no kernel for PyFunc"


def test_the_only_engine_cannot_be_refused():
    assert not EngineAutotuner(("compiled",), 100).refuse("no")


@given(st.floats(1e-7, 10.0), st.integers(1, 10**6))
def test_a_call_takes_about_as_long_as_wanted(batch_s, left):
    count = autotune.choose_count(batch_s, left)
    assert 1 <= count <= left
    assert count == 1 or count * batch_s <= autotune.CALL_S * 1.001


def test_calls_have_the_length_of_a_block_where_programs_have_fixed_lengths():
    chooser, counts = EngineAutotuner(("compiled",), 10**6), []
    for block in (22, 22, 22, 18):
        left = block
        while left:
            counts.append(chooser.count(left, block))
            chooser.record(counts[-1], 0.09 * counts[-1])
            left -= counts[-1]
    assert counts == [1, 1, 20, 22, 22, 18]  # 0.2 s would be 2 batches


def test_the_first_call_is_as_long_as_later_ones_if_an_earlier_training_was_timed():
    chooser = EngineAutotuner(("compiled",), 10**6, batch_s=0.09)
    assert chooser.count(22, 22) == 22
    assert chooser.count(22) == 1  # of a program of any length
    assert EngineAutotuner(("compiled",), 10**6, batch_s=0.1).count(22, 22) == 11
    chooser.record(22, 22 * 0.05)
    chooser.record(22, 22 * 0.05)
    assert chooser.batch_s == pytest.approx(0.05)


def test_the_second_call_takes_the_rest_of_a_block_if_the_first_told_what_it_compiled():
    chooser = EngineAutotuner(("compiled",), 10**6)
    chooser.record(chooser.count(22, 22), 5.05, compiled_s=5.0)
    assert chooser.started_s == 5.05
    assert chooser.batch_s == pytest.approx(0.05)
    assert chooser.count(21, 22) == 21
    chooser.record(21, 3.0, compiled_s=2.0)  # another program
    assert chooser.batch_s == pytest.approx(1 / 21)


def test_a_call_that_waited_for_a_program_is_no_trial():
    chooser = EngineAutotuner(("compiled",), 10**3)
    chooser.record(chooser.count(22, 22), 5.0)  # starts
    chooser.record(chooser.count(21, 22), 1e-3)
    chooser.record(20, math.inf)
    assert chooser.choice is None
    assert chooser.batch_s == 1e-3
    for _ in range(3):
        chooser.record(chooser.count(22, 22), 22 * 1e-3)
    assert chooser.choice.reason == "1,000 us a batch"


def test_calls_of_a_users_own_step_that_repeats_have_one_length_whatever_the_block():
    chooser = EngineAutotuner(("compiled",), 10**6, facts=EngineFacts(repeats=True, own_step=True))
    assert chooser.count(100, 100) == autotune.FIXED_BATCHES


def test_an_engine_of_tensorflow_is_refused_on_jax():
    with pytest.raises(SpecError, match='"graph_loop" runs on TensorFlow only') as caught:
        autotune.choose_candidates(EngineFacts(requested="graph_loop", available=JAX))
    assert 'engine = "compiled"' in caught.value.hint
