"""Cards as XLA wants them described, against files of XLA's own repository."""

import re

import pytest

from gpukeras.profiler.aot.target import MULTIPROCESSORS, describe_target
from gpukeras.system.cards import choose_card, list_cards

# openxla/xla, xla/backends/gpu/target_config/specs/{a100_sxm_40,h100_sxm,v100,p100,b200}.txtpb
XLA = {
    "A100": (108, 64, 2048, 167936, 166912, 41943040, 42331013120, "NONE"),
    "H100": (132, 128, 2048, 233472, 232448, 52428800, 84942979072, "ACCELERATED_FEATURES"),
    "V100": (80, 64, 2048, 98304, 98304, 6291456, 16935682048, "NONE"),
    "P100": (56, 64, 2048, 65536, 49152, 4194304, 17066885120, "NONE"),
    "B200": (148, 128, 2048, 233472, 232448, 132644864, 191514411008, "ACCELERATED_FEATURES"),
}
FIELDS = (
    "core_count",
    "fpus_per_core",
    "threads_per_core_limit",
    "shared_memory_per_core",
    "shared_memory_per_block_optin",
    "l2_cache_size",
    "device_memory_size",
    "feature_extension",
)


@pytest.mark.parametrize("name", XLA)
def test_a_card_is_described_as_by_xla(name):
    text = describe_target(choose_card(name))
    found = [re.search(rf"\b{field}: (\w+)", text)[1] for field in FIELDS]
    *figures, extension = XLA[name]
    # The table counts memory in MiB.
    assert [int(value) for value in found[:6]] == figures[:6]
    assert int(found[6]) == pytest.approx(figures[6], abs=2**20)
    assert found[7] == extension


def test_every_card_has_a_multiprocessor_and_versions():
    for card in list_cards():
        assert card.capability in MULTIPROCESSORS
        text = describe_target(card)
        major, minor = card.capability
        assert f"cuda_compute_capability {{ major: {major} minor: {minor} " in text
        # Without them XLA makes no CUDA graphs.
        for version in ("driver_version", "runtime_version", "compile_time_toolkit_version"):
            assert f'{version}: "12.8.0"' in text
        assert text.count("{") == text.count("}")
