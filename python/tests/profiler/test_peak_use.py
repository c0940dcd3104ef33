"""The share of a card's peak that training steps reach."""

import pytest
from small_fits import make_model

from gpukeras.profiler import peak_use
from gpukeras.profiler.peak_use import compare_with_peak, measure_peak_use, read_card
from gpukeras.system.cards import Peak, find_peak


def test_the_share_is_flops_over_seconds_and_peak():
    used = compare_with_peak(Peak("a card", "float16", 100.0, "its sheet"), 2.5e12, 0.1)
    assert (used.reached, used.share) == (pytest.approx(25.0), pytest.approx(0.25))
    assert (used.card, used.source) == ("a card", "its sheet")


@pytest.mark.tf
def test_a_processor_has_no_peak():
    assert read_card("CPU:0") == ""
    assert measure_peak_use(None, "CPU:0", 32, 0.1) == (None, "")


@pytest.mark.tf
def test_flops_of_a_model_are_compared(monkeypatch):
    card = "Tesla V100-SXM2-16GB"
    monkeypatch.setattr(peak_use, "read_card", lambda device: card)
    model = make_model(columns=5, units=3)
    used, why = measure_peak_use(model, "GPU:0", 10, 1e-3)
    # Dense 5 -> 8 with relu and 8 -> 3 with softmax: products, biases, activations; see gpu_cost().
    products = 2 * (5 * 8 + 8 * 3)
    least, most = 3 * 10 * products / 1e-3 / 1e12, 3 * 10 * (products + 100) / 1e-3 / 1e12
    assert why == ""
    assert least < used.reached < most
    assert used.share == pytest.approx(used.reached / find_peak(card, "float32", True).tflops)
    monkeypatch.setattr(peak_use, "read_card", lambda device: "A card of my own")
    used, why = measure_peak_use(model, "GPU:0", 10, 1e-3)
    assert (used, why) == (None, "The peak of A card of my own for float32 is not listed.")
