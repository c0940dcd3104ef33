"""What a training would be on a card, reckoned by hand."""

from dataclasses import replace

import pytest

from gpukeras.profiler.aot.child import TrainingProgram
from gpukeras.profiler.cost.card_cost import LIBRARY_BYTES, CardFacts, find_room, judge_card
from gpukeras.system.cards import choose_card, list_cards

MIB = 2**20
PROGRAM = TrainingProgram(
    state_bytes=10 * MIB,
    block_bytes=4 * MIB,
    argument_bytes=14 * MIB + 8,
    output_bytes=10 * MIB + 12,
    aliased_bytes=10 * MIB,
    temporary_bytes=30 * MIB,
    kernels=40,
    launches=3,
    graphs=1,
    unknown_trips=0,
    host_transfers=0,
    conditionals=0,
    seconds=2.0,
)
# 10^6 FLOPs a row on 8.1 TFLOP/s.
FACTS = CardFacts(
    card=choose_card("T4"),
    policy="float32",
    tf32=True,
    rows=2000,
    batch_size=32,
    row_flops=1e6,
    rows_bytes=50.0 * MIB,
    block_bytes=5.0 * MIB,
    blocks=1,
    state_bytes=9.0 * MIB,
    temporary_bytes=20.0 * MIB,
)
COMPILED = replace(FACTS, program=PROGRAM)


def values(cost):
    return {one.name: one.value for one in cost.figures}


def bases(cost):
    return {one.name: one.basis for one in cost.figures}


def test_an_estimate_adds_up_and_calls_nothing_compiled():
    cost = judge_card(FACTS, ("why",), install=True)
    found = values(cost)
    assert found["total_bytes"] == (50 + 5 + 9 + 20) * MIB + LIBRARY_BYTES
    assert found["card_bytes"] == 15360 * MIB
    assert cost.fits is True
    assert [found[name] for name in ("kernels", "launches", "launches_s", "knee")] == [None] * 4
    assert cost.bound == ""
    assert found["arithmetic_s"] == pytest.approx(32 * 1e6 / 8.1e12)
    assert (cost.notes, cost.install) == (("why",), True)
    known = {name for name, basis in bases(cost).items() if basis == "compiled"}
    assert known == {"kernels", "launches"}


@pytest.mark.parametrize(
    ("rows_mib", "share", "fits", "told"),
    [
        (11_000, 0.75, True, False),  # with libraries 11,534 of 12,020 MiB
        (12_000, 0.75, False, True),
        (12_000, 1.0, True, False),
        (15_000, 0.75, False, False),  # more than the whole card
        (None, 0.75, None, False),
    ],
)
def test_what_a_framework_takes_at_most_decides_whether_it_fits(rows_mib, share, fits, told):
    rows = None if rows_mib is None else rows_mib * float(MIB)
    state = FACTS.state_bytes if rows_mib else None
    cost = judge_card(replace(FACTS, rows_bytes=rows, state_bytes=state, share=share))
    assert cost.fits is fits
    assert any("JAX takes 75% of a card's memory at most" in note for note in cost.notes) is told


def test_a_batch_fits_beside_libraries_and_within_a_share():
    card = FACTS.card  # of 15,360 MiB
    assert find_room(card, 1.0) == 14_860 * MIB
    assert find_room(card, 0.75) == 11_520 * MIB
    assert find_room(card, 0.99) == 14_860 * MIB


def test_a_program_replaces_the_estimate():
    cost = judge_card(COMPILED)
    found = values(cost)
    assert found["block_bytes"] == 4 * MIB
    assert found["state_bytes"] == 10 * MIB + 8
    assert found["temporary_bytes"] == 30 * MIB + 12
    assert found["total_bytes"] == (50 + 4 + 10 + 30) * MIB + 20 + LIBRARY_BYTES
    assert found["launches_s"] == pytest.approx(3 * 0.9e-6 + 37 * 0.5e-6)
    assert found["memory_s"] == pytest.approx(2 * 10 * MIB / 320e9)
    assert cost.bound == "memory"
    # (21.2 + 65.5) us of gaps and memory, 0.1235 us a row: 702 rows.
    assert found["knee"] == 1024
    basis = bases(cost)
    assert basis["temporary_bytes"] == basis["block_bytes"] == basis["kernels"] == "compiled"
    assert basis["rows_bytes"] == basis["arithmetic_s"] == "computed"
    assert basis["total_bytes"] == basis["launches_s"] == basis["knee"] == "assumed"


def test_each_figure_has_a_basis_and_a_source():
    for cost in (judge_card(FACTS), judge_card(COMPILED)):
        for one in cost.figures:
            assert one.basis in ("compiled", "computed", "assumed")
            assert one.source
            assert "measured" not in one.source


def test_a_program_that_waits_for_the_host_is_noted():
    assert judge_card(COMPILED).notes == ()
    waits = replace(PROGRAM, unknown_trips=1, host_transfers=2)
    (note,) = judge_card(replace(COMPILED, program=waits)).notes
    assert note.endswith("the program has 1 unknown trip count, 2 host transfers.")


@pytest.mark.parametrize(
    ("rows", "noted"), [(1023, True), (1024, False), (0, False), (None, False)]
)
def test_a_knee_that_no_batch_reaches_is_noted(rows, noted):
    notes = judge_card(replace(COMPILED, rows=rows)).notes
    assert len(notes) == noted
    assert not noted or "more than the 1,023 rows" in notes[0]


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_what_fits_exactly_fits(more, fits):
    room = 15360 * MIB - LIBRARY_BYTES - (4 + 10 + 30) * MIB - 20
    assert judge_card(replace(COMPILED, rows_bytes=float(room + more))).fits is fits


def test_what_is_not_known_is_not_guessed():
    cost = judge_card(replace(FACTS, temporary_bytes=None, row_flops=None))
    assert cost.fits is None
    assert values(cost)["total_bytes"] is None
    assert values(cost)["arithmetic_s"] is None
    unknown = judge_card(replace(COMPILED, program=replace(PROGRAM, launches=None, kernels=None)))
    assert unknown.bound == ""
    assert values(unknown)["knee"] is None
    without_rows = values(judge_card(replace(FACTS, rows_bytes=None)))
    assert not {"rows_bytes", "block_bytes"} & without_rows.keys()
    assert without_rows["total_bytes"] == 29 * MIB + LIBRARY_BYTES


def test_the_larger_part_of_a_step_bounds_it():
    small = replace(PROGRAM, state_bytes=1000)
    assert judge_card(replace(COMPILED, program=small)).bound == "launches"
    wide = replace(COMPILED, program=small, batch_size=4096)
    assert judge_card(wide).bound == "arithmetic"


def test_the_peak_is_that_of_the_models_precision():
    half = judge_card(replace(FACTS, policy="mixed_float16"))
    assert values(half)["arithmetic_s"] == pytest.approx(32 * 1e6 / 65e12)
    ampere = replace(FACTS, card=choose_card("RTX 3090"))
    without = judge_card(replace(ampere, card=choose_card("A100"), tf32=False))
    assert values(without)["arithmetic_s"] == pytest.approx(32 * 1e6 / 19.5e12)
    unlisted = judge_card(replace(FACTS, policy="mixed_bfloat16"))
    assert values(unlisted)["arithmetic_s"] is None


@pytest.mark.parametrize(
    ("card", "policy", "reason"),
    [
        ("GTX 1060", "float32", "compute capability 6.1 has no tensor cores"),
        ("GTX 1650", "float32", "chip TU117"),
        ("GTX 1660 Ti", "float32", "chip TU116"),
        ("T4", "mixed_float16", "compute capability 7.5"),
        ("RTX 2080 Ti", "mixed_float16", "compute capability 7.5"),
        ("A100", "mixed_bfloat16", "compute capability 8.0"),
        ("B200", "mixed_bfloat16", "compute capability 10.0"),
    ],
)
def test_the_precision_that_suits_a_card(card, policy, reason):
    cost = judge_card(replace(FACTS, card=choose_card(card)))
    assert cost.precision == policy
    assert reason in cost.precision_reason


def test_every_card_of_the_table_is_judged():
    for card in list_cards():
        cost = judge_card(replace(COMPILED, card=card))
        assert cost.fits
        assert (cost.precision == "float32") is not card.tensor_cores
