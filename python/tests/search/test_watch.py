from gpukeras.search.watch import Watch


def test_a_listener_that_returns_true_ends_the_search():
    heard = []
    watch = Watch(None, lambda event: heard.append(event) or len(heard) == 2)
    assert not watch.emit({"kind": "waiting"})
    assert not watch.look()
    assert watch.emit({"kind": "trial"})
    assert watch.stopped == "interrupted"
    assert heard == [{"kind": "waiting"}, {"kind": "trial"}]


def test_the_time_ends_the_search():
    watch = Watch(10.0)
    assert not watch.look()
    watch.began -= 10.0
    assert watch.emit({"kind": "waiting"})
    assert watch.stopped == "time"
    watch.interrupt()
    assert watch.stopped == "time"


def test_without_time_or_listener_it_goes_on():
    watch = Watch()
    watch.began -= 1e9
    assert not watch.emit({"kind": "waiting"})
    watch.interrupt()
    assert watch.stopped == "interrupted"
