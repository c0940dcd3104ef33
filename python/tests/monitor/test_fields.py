import pytest

from gpukeras.monitor.fields import DEVICE_UNITS, HOST_UNITS, explain_throttling


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (0, ""),
        (0x01, ""),  # it has nothing to do
        (0x102, ""),  # its owner's clocks
        (0x04, "power limit"),
        (0x05, "power limit"),
        (0x24, "power limit, temperature"),
        (0x48, "hardware slowdown, temperature at the hardware's limit"),
        (None, None),
    ],
)
def test_throttling_names_what_slows_a_busy_card(bits, text):
    assert explain_throttling(bits) == text


@pytest.mark.parametrize("units", [HOST_UNITS, DEVICE_UNITS])
def test_names_say_their_units(units):
    ends = {"%": "_percent", "bytes": "_bytes", "bytes/s": "_bytes_per_s", "W": "_w"}
    ends |= {"degrees C": "_c", "MHz": "_mhz"}
    assert all(name.endswith(ends[unit]) for name, unit in units.items())
