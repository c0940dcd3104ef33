"""With a seed and determinism, trainings repeat bit by bit, whatever the time that calls take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import PATHS
from nightly import few

from gpukeras.engine.autotune import EngineAutotuner, EngineFacts, choose_candidates

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.nightly  # `test_kills.py` resumes one in each run, deterministic too, bit by bit
@pytest.mark.tf
@pytest.mark.parametrize("count", few([1, 5], 1))
def test_trainings_of_each_engine_repeat_and_resume_bit_by_bit(count):
    env = {**os.environ, "PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(SUPPORT / "repeat_child.py"), str(count)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout.splitlines()[-1])
    assert len(cases) == count
    for case in cases:
        assert case["stopped"] == "interrupted", case
        assert case["equal"], case
        assert case["trained"] == ("graph_loop" if case["engine"] == "auto" else case["engine"])
    assert cases[0]["reason"] == "a choice by timing would not repeat"


def test_the_first_engine_that_runs_is_chosen_and_no_time_matters():
    facts = EngineFacts(repeats=True)
    candidates, reason = choose_candidates(facts)
    chooser = EngineAutotuner(candidates, 1000, reason, facts=facts)
    chooser.record(1, 5.0)
    assert (chooser.choice.engine, chooser.choice.reason) == ("graph_loop", reason)
    chooser = EngineAutotuner(candidates, 1000, reason, facts=facts)
    assert chooser.refuse("no")
    chooser.record(1, 0.001)
    assert chooser.choice.engine == "keras"


def test_calls_of_a_step_of_the_users_own_have_one_length():
    facts = EngineFacts(repeats=True, own_step=True)
    chooser = EngineAutotuner(("graph_loop",), 1000, "as asked", facts=facts)
    counts = []
    for seconds in (1.0, 1e-6, 0.5):
        counts.append(chooser.count(100))
        chooser.record(counts[-1], seconds)
    assert counts == [16, 16, 16]
    assert chooser.count(5) == 5
