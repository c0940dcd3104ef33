"""Steps, measured: with real input, on repeated rows, the input alone; and traced."""

from contextlib import closing, contextmanager

import pytest
from nightly import few
from profiled import SlowFunction, make_sleepy_model
from small_fits import make_dataset, make_model

from gpukeras import DataError
from gpukeras.data import plan as data_plan
from gpukeras.data.loader import loader
from gpukeras.data.stage_timer import Clock
from gpukeras.engine import engines
from gpukeras.engine.epoch_loop import draw
from gpukeras.models.variables import build_variables
from gpukeras.profiler.benchmark import Bench
from gpukeras.profiler.trace.xplane import read_activity
from gpukeras.training.model_guard import kept_model

pytestmark = pytest.mark.tf
ENGINES = ["keras", "graph_loop", "compiled"]


@contextmanager
def open_bench(data, engine="graph_loop", model=None, emit=lambda kind: None):
    model = model or make_model(optimizer="adam")
    build_variables(model, loader.sample_rows(data, 32))
    with kept_model(model):
        yield Bench(model, data, data.plan("CPU:0"), engine, emit)


@pytest.mark.parametrize("engine", few(ENGINES, "graph_loop"))
def test_every_engine_is_timed_and_traced(engine, tmp_path):
    with open_bench(make_dataset(rows=2000), engine) as bench:
        times = bench.measure()
        calls = bench.trace(str(tmp_path), 7)
    assert times.repeated_s > 0
    assert 0 <= times.wait_s <= times.real_s
    assert calls == 7 if engine == "keras" else calls == -(-7 // bench.count)
    assert len(read_activity(tmp_path).steps) in (calls, 2 * calls, 3 * calls)


@pytest.mark.slow
def test_what_is_timed_and_traced_is_what_trains_where_programs_have_a_known_length(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(engines, "knows_trip_counts", lambda device, deterministic: True)
    data = make_dataset(rows=1632)  # 51 batches
    monkeypatch.setattr(data_plan, "BLOCK_BYTES", 26 * 32 * data.row_bytes)  # blocks of 26 and 25
    with open_bench(data, "compiled") as bench:
        assert bench.count == 26
        bench.measure()
        assert bench.trace(str(tmp_path), 7) == 1
        assert bench._engines._made["compiled"].sizes == (26, 7, 1)


def test_waiting_is_what_the_function_took():
    # Whoever sleeps, sleeps at least so long: a busy computer only adds to it.
    data = SlowFunction(0.06).dataset(steps=12)
    with open_bench(data, model=make_sleepy_model(0.04)) as bench:
        times = bench.measure()
    assert times.wait_s >= 0.06
    assert times.repeated_s >= 0.04
    assert times.real_s >= times.wait_s + 0.04


@pytest.mark.slow
def test_blocks_of_a_slow_function_are_small():
    with open_bench(SlowFunction(0.05).dataset()) as slow, closing(draw(slow._loader)) as blocks:
        assert next(blocks)[0].batches <= 4
    with open_bench(SlowFunction(0.0).dataset()) as fast, closing(draw(fast._loader)) as blocks:
        assert next(blocks)[0].batches > 4


def test_the_input_alone_is_told_by_its_stages():
    function = SlowFunction(0.01)
    with open_bench(function.dataset()) as bench:
        alone_s, stages = bench.drain()
        assert type(bench._loader.clock) is Clock
    assert alone_s >= 0.01
    assert [stage.stage for stage in stages] == ["read", "decode", "gather", "send"]
    assert sum(stage.share for stage in stages) == pytest.approx(1)
    assert sum(stage.batch_s for stage in stages) == pytest.approx(alone_s)
    assert stages[0].batch_s >= 0.01  # the function sleeps so long


def test_rows_in_memory_have_their_own_stages():
    with open_bench(make_dataset(rows=2000)) as bench:
        _, stages = bench.drain()
    assert [stage.stage for stage in stages] == ["gather", "send"]


def test_an_epoch_without_a_full_batch_is_an_error():
    data = SlowFunction(0.0, rows=8).dataset(steps=3, batch_size=100)
    with pytest.raises(DataError, match="fewer rows than a batch of 100"), open_bench(data):
        pass


def test_drawing_passes_over_short_last_batches():
    data = make_dataset(rows=100)
    feed = loader.open_loader(data, data.plan("CPU:0"))
    with closing(draw(feed)) as blocks:
        drawn = [next(blocks)[0] for _ in range(4)]
    assert not any(block.tail for block in drawn)
    assert {block.batches for block in drawn} == {3}


def test_who_listens_may_end_it():
    def emit(kind):
        heard.append(kind)
        if kind == "measuring":
            raise KeyboardInterrupt

    heard = []
    with pytest.raises(KeyboardInterrupt), open_bench(make_dataset(), emit=emit) as bench:
        bench.measure()
    assert heard[0] == "starting"
    assert heard[-1] == "measuring"
