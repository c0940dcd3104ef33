"""Facts of cards by the names that users give and that drivers tell."""

from dataclasses import replace

import pytest

from gpukeras.core.errors import SpecError
from gpukeras.profiler.aot.target import MULTIPROCESSORS
from gpukeras.system.cards import (
    choose_card,
    find_card,
    find_chip_without_tensor_cores,
    find_peak,
    list_cards,
)


@pytest.mark.parametrize(
    ("card", "policy", "tf32", "dtype", "tflops"),
    [
        ("Tesla V100-SXM2-16GB", "float32", True, "float32", 15.7),  # it has no TF32
        ("Tesla V100-SXM2-16GB", "mixed_float16", True, "float16", 125),
        ("NVIDIA A100-SXM4-40GB", "float32", True, "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "float32", False, "float32", 19.5),
        ("A100-PCIE-40GB", "mixed_bfloat16", True, "bfloat16", 312),
        ("NVIDIA H100 80GB HBM3", "mixed_bfloat16", True, "bfloat16", 989.5),
        ("Tesla T4", "mixed_float16", True, "float16", 65),
    ],
)
def test_a_known_card_has_its_peak(card, policy, tf32, dtype, tflops):
    peak = find_peak(card, policy, tf32)
    assert (peak.card, peak.dtype, peak.tflops) == (card, dtype, tflops)
    assert "NVIDIA" in peak.source


@pytest.mark.parametrize(
    ("card", "policy"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "float32"),  # a seventh of the card
        ("NVIDIA A10G", "float32"),  # another card than the A10
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "float32"),
        ("Simulated GPU (simulated)", "float32"),
        ("Tesla V100-SXM2-16GB", "mixed_bfloat16"),  # it computes that without tensor cores
        ("NVIDIA A100-SXM4-40GB", "float64"),
    ],
)
def test_what_is_not_listed_is_not_determined(card, policy):
    assert find_peak(card, policy, True) is None


def test_the_list_is_plausible():
    cards = list_cards()
    assert len(cards) >= 20
    assert len({card.name for card in cards}) == len({card.driver for card in cards}) == len(cards)
    for card in cards:
        float32, float16 = card.peaks["float32"], card.peaks.get("float16")
        assert card.capability < (7, 0) or card.tensor_cores or float16 is None
        if float16 is not None:
            assert float16 >= 2 * float32 * 0.98
        assert card.peaks.get("bfloat16", float16) == float16
        assert ("tf32" in card.peaks) == (card.capability >= (8, 0))
        assert card.peaks.get("tf32", float32) >= float32
        units = card.sms * MULTIPROCESSORS[card.capability].fpus
        assert float32 == pytest.approx(2 * units * card.clock_mhz / 1e6, rel=0.025)
        assert 128 <= card.bandwidth_gbs <= 8000
        assert "NVIDIA" in card.source


def test_a_figure_that_is_not_positive_is_refused():
    card = choose_card("T4")
    for wrong in ({"sms": 0}, {"memory_mib": -1}, {"source": ""}, {"peaks": {"float32": 0.0}}):
        with pytest.raises(ValueError, match="T4 has a figure"):
            replace(card, **wrong)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("A100", "A100 SXM4 40GB"),
        ("a100 80gb", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA GeForce RTX 3060", "RTX 3060"),
        ("rtx3060", "RTX 3060"),
        ("GeForce GTX 1660 Ti", "GTX 1660 Ti"),
        ("Tesla T4", "T4"),
        ("H100", "H100 SXM 80GB"),
        ("b200", "B200"),
    ],
)
def test_a_card_is_found_by_the_name_that_a_user_gives(asked, name):
    assert choose_card(asked).name == name


@pytest.mark.parametrize("asked", ["", "RTX 3060 Ti", "RTX 4090 Laptop GPU", "A100 20GB", "K80"])
def test_a_card_that_is_not_listed_is_refused_with_those_that_are(asked):
    with pytest.raises(SpecError, match=f'`card` is "{asked}"') as caught:
        choose_card(asked)
    assert "GTX 1060" in caught.value.hint
    assert "B200" in caught.value.hint


def test_the_name_of_a_driver_leads_to_one_card():
    assert find_card("NVIDIA A100-SXM4-40GB").memory_mib == 40370
    assert find_card("NVIDIA A100-SXM4-40GB MIG 1g.5gb") is None
    for name in ("Tesla T4", "NVIDIA L4", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce GTX 1650"):
        found = [card for card in list_cards() if card == find_card(name)]
        assert len(found) == 1


@pytest.mark.parametrize(
    ("card", "chip"),
    [
        ("NVIDIA GeForce GTX 1650", "TU117"),
        ("GeForce GTX 1650 with Max-Q Design", "TU117"),
        ("NVIDIA GeForce GTX 1650 SUPER", "TU116"),
        ("NVIDIA GeForce GTX 1660 Ti", "TU116"),
        ("NVIDIA GeForce GTX 1660", "TU116"),
        ("NVIDIA GeForce MX450", "TU117"),
        ("NVIDIA GeForce MX550", "TU117"),
        ("NVIDIA GeForce GTX 1630", "TU117"),
        ("NVIDIA T400 4GB", "TU117"),
        ("NVIDIA T400E", "TU117"),
        ("NVIDIA T500", "TU117"),
        ("NVIDIA T600 Laptop GPU", "TU117"),
        ("NVIDIA T1000 8GB", "TU117"),
        ("Quadro T2000 with Max-Q Design", "TU117"),
    ],
)
def test_small_cards_of_capability_7_5_have_no_tensor_cores(card, chip):
    assert find_chip_without_tensor_cores(card) == chip
    listed = find_card(card)
    assert listed is None or (listed.chip == chip and not listed.tensor_cores)


@pytest.mark.parametrize(
    "card",
    [
        "",
        "Tesla T4",
        "NVIDIA T4",
        "NVIDIA GeForce RTX 2060",
        "NVIDIA TITAN RTX",
        "Quadro RTX 4000",
        "NVIDIA GeForce GTX 1080 Ti",
        "NVIDIA T4G",
        "NVIDIA RTX T1000 of another maker",
    ],
)
def test_other_cards_are_judged_by_their_capability(card):
    assert find_chip_without_tensor_cores(card) == ""
