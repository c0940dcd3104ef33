"""The costs, tables and groups of processes of bench_scale.py, without TensorFlow."""

import json
import math
from itertools import groupby, product

import pytest
from ring_costs import (
    Measurement,
    NodesCost,
    RingCost,
    fit_ring,
    plan_link,
    plan_nodes,
    plan_nvlink,
)
from scale_group import FREE, run_group
from scale_tables import MODELS, REPLICAS, format_tables
from scaling import count_gradient_bytes, find_step_s, predict, predict_strong, predict_table

from gpukeras.core.errors import DataError, SpecError

RING = RingCost(1e-3, 1e9)
NODES = NodesCost(RingCost(0.0, 10e9), RING, per_node=4)
COUNTS = (1, 2, 3, 4, 5, 16, 100, 2000)
SIZES = (1.0, 1e6, 1e10)


# What an exchange costs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "replicas", "size_bytes", "seconds"),
    [
        (RING, 1, 1e9, 0.0),
        (RING, 2, 0, 2e-3),
        (RING, 2, 1e9, 2e-3 + 1.0),
        (RING, 4, 1e9, 6e-3 + 1.5),
        (RING, 8, 4e9, 14e-3 + 7.0),
        (NODES, 1, 1e9, 0.0),
        (NODES, 4, 1e9, 0.15),
        # Four computers: 2 * 3 messages of a quarter of the bytes each.
        (NODES, 16, 1e9, 0.15 + 6 * (1e-3 + 0.25)),
    ],
)
def test_an_exchange_worked_out_by_hand(cost, replicas, size_bytes, seconds):
    assert cost.reduce_s(replicas, size_bytes) == pytest.approx(seconds)


def test_more_replicas_or_bytes_never_cost_less():
    for cost, replicas, size in product((RING, NODES), COUNTS, SIZES):
        now = cost.reduce_s(replicas, size)
        assert cost.reduce_s(replicas + 1, size) >= now * (1 - 1e-12)
        assert cost.reduce_s(replicas, size * 1.5) >= now
        assert RingCost(0.0, 1e9).reduce_s(replicas, size) <= 2 * size / 1e9


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), [(1e-3, 1e9), (1e-6, 1e8), (1e-4, 1e11)])
def test_a_fit_finds_the_ring_behind_exact_times(latency_s, bytes_per_s):
    ring = RingCost(latency_s, bytes_per_s)
    fit = fit_ring([Measurement(4, size, ring.reduce_s(4, size)) for size in (2e3, 1e5, 5e7)])
    assert (fit.ring.latency_s, fit.ring.bytes_per_s) == pytest.approx((latency_s, bytes_per_s))
    assert fit.worst_error < 1e-6


def test_no_ring_near_a_fit_of_noisy_times_explains_more():
    points = [Measurement(2, 1e3, 3e-3), Measurement(4, 1e6, 4e-3), Measurement(8, 1e7, 0.05)]
    fit = fit_ring(points)

    def loss(ring):
        return sum((1 - ring.reduce_s(p.replicas, p.size_bytes) / p.seconds) ** 2 for p in points)

    assert loss(fit.ring) == pytest.approx(sum(residual**2 for residual in fit.residuals))
    assert fit.typical_error <= fit.worst_error == max(map(abs, fit.residuals))
    for latency, speed in product((0.9, 1.0, 1.1), repeat=2):
        near = RingCost(fit.ring.latency_s * latency, fit.ring.bytes_per_s * speed)
        assert loss(near) >= loss(fit.ring) - 1e-12


@pytest.mark.parametrize(
    ("seconds", "ring"),
    [
        ((3.0, 2.0), (1.1538, math.inf)),  # larger was faster: size costs nothing
        ((1e-9, 1.0), (0.0, 1000.0)),  # more than in proportion: no latency
    ],
)
def test_no_part_of_a_fit_is_below_zero(seconds, ring):
    fit = fit_ring([Measurement(2, 1e-6, seconds[0]), Measurement(2, 1000.0, seconds[1])])
    assert (fit.ring.latency_s, fit.ring.bytes_per_s) == pytest.approx(ring, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("sizes", [(), (1024,), (1024, 1024), (0, 0)])
def test_too_few_measurements_are_refused(sizes):
    with pytest.raises(DataError, match="latency from bandwidth"):
        fit_ring([Measurement(2, size, 1e-3 * place) for place, size in enumerate(sizes, 1)])


def test_links_as_they_are_printed_on_the_box():
    assert plan_link(100, reached=1.0).bytes_per_s == 12.5e9
    assert plan_link(100).bytes_per_s == pytest.approx(10e9)
    assert plan_nvlink().bytes_per_s == pytest.approx(240e9)
    assert plan_nodes(100) == NodesCost(plan_nvlink(), plan_link(100), 8)


# What a step costs -------------------------------------------------------------------------------


def test_predictions_worked_out_by_hand():
    link = RingCost(0.0, 10e9)
    found = predict(0.3, 1e9, 2, link, batch_size=32)
    assert found.reduce_s == pytest.approx(0.1)
    assert (found.batch_size, found.samples_per_s) == (64, pytest.approx(160))
    assert found.efficiency == pytest.approx(0.75)
    hidden = predict(0.3, 1e9, 2, link, overlap=0.2)
    assert hidden.efficiency == pytest.approx(0.3 / 0.34)
    divided = predict_strong(0.4, 1e9, 2, link, batch_size=1024, fixed_s=0.1)
    assert divided.compute_s == pytest.approx(0.25)
    assert (divided.step_s, divided.batch_size) == (pytest.approx(0.35), 1024)
    assert divided.efficiency == pytest.approx(0.2 / 0.35)
    assert predict_strong(0.4, 1e9, 1, link).step_s == pytest.approx(0.4)


def test_the_step_that_is_long_enough_is_no_longer_than_needed():
    for cost, replicas, share in product((RING, NODES), (2, 16, 2000), (0.05, 0.9)):
        step_s = find_step_s(1e8, replicas, cost, share, 0.3)
        assert predict(step_s, 1e8, replicas, cost, 0.3).efficiency == pytest.approx(share)
    assert find_step_s(1e8, 1, RING) == 0.0


def test_a_table_has_a_row_for_all_that_was_asked():
    assert count_gradient_bytes(25e6) == 2 * count_gradient_bytes(25e6, "float16") == 100e6
    links = {"slow": plan_link(10), "fast": plan_link(400)}
    rows = predict_table([1e6, 100e6], links, [8, 64, 512], 0.1, ("float32", "float16"))
    assert len(rows) == 8
    found = {(row.parameters, row.dtype, row.link): row.predictions for row in rows}
    assert [each.replicas for each in found[1e6, "float32", "slow"]] == [8, 64, 512]
    for at in range(3):
        whole, half = (found[100e6, dtype, "slow"][at] for dtype in ("float32", "float16"))
        fast = found[100e6, "float32", "fast"][at]
        assert whole.efficiency < half.efficiency < fast.efficiency


def test_the_tables_are_whole():
    lines = [line for line in format_tables().splitlines() if line]
    tables = [list(group) for row, group in groupby(lines, lambda line: line[0] == "|") if row]
    assert [len(table) - 2 for table in tables] == [5 * len(MODELS), 2 * len(MODELS), len(MODELS)]
    assert all(len({line.count("|") for line in table}) == 1 for table in tables)
    assert tables[0][0].count("GPUs") == len(REPLICAS)


@pytest.mark.parametrize(
    ("call", "arg"),
    [
        (lambda: RingCost(-1e-6, 1e9), "latency_s"),
        (lambda: RingCost(0.0, 0.0), "bytes_per_s"),
        (lambda: NodesCost(RING, RING, 0), "per_node"),
        (lambda: RING.reduce_s(0, 1), "replicas"),
        (lambda: RING.reduce_s(2, -1), "size_bytes"),
        (lambda: Measurement(1, 10, 1.0), "replicas"),
        (lambda: Measurement(2, 10, 0.0), "seconds"),
        (lambda: plan_link(0), "gbit_per_s"),
        (lambda: plan_link(10, reached=1.5), "reached"),
        (lambda: count_gradient_bytes(10, "int8"), "dtype"),
        (lambda: predict(0.0, 1, 2, RING), "step_s"),
        (lambda: predict(1.0, 1, 2.5, RING), "replicas"),
        (lambda: predict(1.0, 1, 2, RING, 1.5), "overlap"),
        (lambda: predict_strong(1.0, 1, 2, RING, fixed_s=2.0), "fixed_s"),
        (lambda: find_step_s(1, 2, RING, 1.0), "efficiency"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, arg):
    with pytest.raises(SpecError) as caught:
        call()
    assert caught.value.details["arg"] == arg


# Groups of processes -----------------------------------------------------------------------------

TELLS = """
import json, os, sys
print("noise")
print(json.dumps([json.loads(os.environ.get("TF_CONFIG", "null")), sys.argv[1:]]))
"""
FAILS = """
import json, os, sys, time
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
    sys.exit("this one fails")
time.sleep(3600)  # until it is ended
"""


@pytest.mark.costly
def test_every_worker_knows_the_others_and_one_that_fails_ends_them(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(TELLS)
    records = run_group(3, FREE, str(program), "one", 2)
    clusters = [config["cluster"]["worker"] for config, _ in records]
    assert clusters == [clusters[0]] * 3
    assert len(set(clusters[0])) == 3
    assert all(address.startswith("127.0.0.1:") for address in clusters[0])
    assert [config["task"]["index"] for config, _ in records] == [0, 1, 2]
    assert [arguments for _, arguments in records] == [["one", "2"]] * 3
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {}}))
    assert run_group(1, FREE, str(program)) == [[None, []]]
    program.write_text(FAILS)
    with pytest.raises(RuntimeError, match="this one fails") as caught:
        run_group(2, FREE, str(program))
    assert "worker 2 ended with 1" in str(caught.value)
