from gpukeras.search.stopper import Stopper


def test_a_listener_that_returns_true_ends_the_search():
    heard = []
    stopper = Stopper(None, lambda event: heard.append(event) or len(heard) == 2)
    assert not stopper.emit({"kind": "waiting"})
    assert not stopper.look()
    assert stopper.emit({"kind": "trial"})
    assert stopper.stopped == "interrupted"
    assert heard == [{"kind": "waiting"}, {"kind": "trial"}]


def test_the_time_ends_the_search():
    stopper = Stopper(10.0)
    assert not stopper.look()
    stopper.began -= 10.0
    assert stopper.emit({"kind": "waiting"})
    assert stopper.stopped == "time"
    stopper.interrupt()
    assert stopper.stopped == "time"


def test_without_time_or_listener_it_goes_on():
    stopper = Stopper()
    stopper.began -= 1e9
    assert not stopper.emit({"kind": "waiting"})
    stopper.interrupt()
    assert stopper.stopped == "interrupted"
