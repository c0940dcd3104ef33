"""TensorFlow's C++ log is silenced for a moment, and no longer."""

import threading

import pytest

from gpukeras.backend import cpp_log, runtime


@pytest.mark.tf
def test_the_last_of_several_threads_restores_the_level(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    runtime.tensorflow()
    read, _ = cpp_log._find_level()
    before, inside, seen = read(), threading.Event(), []

    def mute():
        with cpp_log.muted_cpp_log():
            inside.wait()

    other = threading.Thread(target=mute)
    with cpp_log.muted_cpp_log():
        other.start()
        seen.append(read())
    inside.set()
    other.join()
    assert seen == [cpp_log.FATAL]
    assert read() == before


@pytest.mark.tf
def test_who_asks_for_notes_gets_them(monkeypatch):
    runtime.tensorflow()
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    read, _ = cpp_log._find_level()
    before = read()
    with cpp_log.muted_cpp_log():
        assert read() == before
