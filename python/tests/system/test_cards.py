"""Peaks of cards by the names that their drivers tell."""

import json

import pytest

from gpukeras.system.cards import PATH, find_peak, lacks_tensor_cores


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
    cards = json.loads(PATH.read_text(encoding="utf-8"))["cards"]
    assert len({card["name"] for card in cards}) == len(cards)
    for card in cards:
        assert card["source"]
        assert card["float16"] >= 2 * card["float32"] * 0.98
        assert card.get("bfloat16", card["float16"]) == card["float16"]
        assert card.get("tf32", card["float32"]) >= card["float32"]


@pytest.mark.parametrize(
    "card",
    [
        "NVIDIA GeForce GTX 1650",
        "GeForce GTX 1650 with Max-Q Design",
        "NVIDIA GeForce GTX 1650 SUPER",
        "NVIDIA GeForce GTX 1660 Ti",
        "NVIDIA GeForce MX450",
        "NVIDIA T400 4GB",
        "NVIDIA T500",
        "NVIDIA T600 Laptop GPU",
        "NVIDIA T1000 8GB",
        "Quadro T2000 with Max-Q Design",
    ],
)
def test_small_cards_of_capability_7_5_have_no_tensor_cores(card):
    assert lacks_tensor_cores(card)


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
    assert not lacks_tensor_cores(card)
