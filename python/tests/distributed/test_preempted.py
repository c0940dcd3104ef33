"""A signal to one worker ends the training of all at the same step, saved by the chief."""

import signal

import pytest
from clusters import plan_workers, started

pytestmark = [pytest.mark.tf, pytest.mark.slow]


@pytest.mark.parametrize(("victim", "number"), [(1, signal.SIGUSR1), (0, signal.SIGTERM)])
def test_all_workers_end_at_the_same_step_and_go_on_there(tmp_path, victim, number):
    saved = ["long", {"folder": str(tmp_path / "run")}]
    with started(plan_workers(2, [saved, saved, ["long", {"folder": ""}]])) as workers:
        workers[victim].wait_for("epoch", 3)
        workers[victim].process.send_signal(number)
        for worker in workers:
            assert worker.finish() == 0, worker.explain()
        ended, resumed, undisturbed = zip(*[worker.cases() for worker in workers], strict=True)
    for index, found in enumerate(ended):
        assert found["error"] == "PreemptedError", found
        told = f"after {signal.Signals(number).name}."
        assert (told in found["message"]) == (index == victim)
    (note,) = {found["notes"][0] for found in resumed}
    assert note.startswith("Resumed after "), note
    assert {found["stopped"] for found in resumed} == {"completed"}
    assert len({found["hash"] for found in (*resumed, *undisturbed)}) == 1
