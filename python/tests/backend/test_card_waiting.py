"""Which card is free, who holds one, and locks that end with their process."""

import json
import os
import signal
import subprocess
import sys

import pytest
from stub_driver import stub_environment

from gpukeras import DeviceBusyError, NoDeviceError, SpecError
from gpukeras.backend import card_waiting
from gpukeras.backend.card_waiting import (
    GIB,
    MIB,
    Card,
    CardsBusyError,
    Reservation,
    choose_card,
    describe_process,
    wait_for_card,
)
from gpukeras.core.file_lock import take_lock
from gpukeras.core.options import WaitSpec
from gpukeras.system.host import NvmlGpu

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")


def gpu(number=0, free=16, processes=()):
    return NvmlGpu("Tesla T4", f"GPU-{number}", 16 * GIB, free * GIB, tuple(processes))


def card(number=0, reservations=(), **facts):
    return Card(f"GPU:{number}", gpu(number, **facts), tuple(reservations))


def reserved(gib=None, pid=7, uid=1000):
    return Reservation("GPU-0", pid, uid, None if gib is None else gib * GIB, "10:03")


def tell(pid, uid):
    return f"<{pid}>"


# Decisions ----------------------------------------------------------------------------------------

BUSY = [
    # The card, the GiB needed, whether it is shared, and why it is not free.
    (card(), 8, False, ""),
    (card(free=8), 8, False, ""),
    (card(free=7.9), 8, False, "GPU:0 has 7.9 GiB free, and 8.0 are needed."),
    (card(processes=[(9, GIB)]), 8, False, "GPU:0 is used by <9>."),
    (card(processes=[(9, GIB), (8, None)]), 8, False, "GPU:0 is used by <9> and 1 more."),
    (card(processes=[(1, GIB)]), 8, False, ""),  # this process
    (card(processes=[(9, GIB)], free=15), 8, True, ""),
    (card(reservations=[reserved()]), 1, False, "GPU:0 is reserved by <7> since 10:03."),
    (card(reservations=[reserved()]), 1, True, "GPU:0 is reserved by <7> since 10:03."),
    (card(reservations=[reserved(4)]), 1, False, "GPU:0 is reserved by <7> since 10:03."),
    (card(reservations=[reserved(4)]), 12, True, ""),
    (
        card(reservations=[reserved(4), reserved(4, pid=8)]),
        9,
        True,
        "GPU:0 has 8.0 GiB free beyond 2 reservations, and 9.0 are needed.",
    ),
    # What a reservation has taken already is not free any more, and counts once.
    (card(reservations=[reserved(4)], processes=[(7, 3 * GIB)], free=13), 12, True, ""),
    (
        card(reservations=[reserved(4)], processes=[(7, None)], free=13),
        12,
        True,
        "GPU:0 has 9.0 GiB free beyond 1 reservation, and 12.0 are needed.",
    ),
    (Card("GPU:0", None), 0, False, "GPU:0 is not told apart from others by the driver."),
]


@pytest.mark.parametrize(("facts", "needed", "shares", "reason"), BUSY)
def test_why_a_card_is_not_free(facts, needed, shares, reason):
    if not reason:
        assert choose_card([facts], needed * GIB, shares, tell, pid=1) == facts
        return
    with pytest.raises(CardsBusyError) as busy:
        choose_card([facts], needed * GIB, shares, tell, pid=1)
    assert str(busy.value) == reason


def test_of_several_free_cards_the_one_with_most_memory_is_taken():
    cards = [card(0, free=3), card(1, free=9), card(2, free=12, reservations=[reserved()])]
    assert choose_card(cards, 2 * GIB, False, tell) == cards[1]


@pytest.mark.parametrize(
    ("uid", "own_uid", "told"),
    [
        (1000, 1000, "your process 7"),
        (1001, 1000, "another user's process"),
        (None, 1000, "another user's process"),
        (0, 1000, "another user's process"),
        (0, 0, "your process 7"),
        (987654321, 0, "process 7"),
        (None, 0, "process 7"),
    ],
)
def test_only_root_sees_other_users(uid, own_uid, told):
    assert describe_process(7, uid, own_uid) == told
    pwd = pytest.importorskip("pwd")
    if own_uid == 1000:
        assert pwd.getpwuid(0).pw_name not in told


def test_what_is_waited_for_is_checked():
    assert WaitSpec.parse(8) == WaitSpec(free_gib=8)
    assert WaitSpec.parse({"seconds": 5}) == WaitSpec(1.0, 5)
    for wrong in (-1, True, "8", {"gib": 8}):
        with pytest.raises(SpecError):
            WaitSpec.parse(wrong)


# Locks of real processes --------------------------------------------------------------------------

HOLDER = """
import json, sys, time
from pathlib import Path
from gpukeras.backend.card_waiting import wait_for_card
from gpukeras.core.options import WaitSpec
from gpukeras.system.host import read_nvml
folder, memory, free, seconds = json.loads(sys.argv[1])
cards = lambda: [(f"GPU:{place}", one) for place, one in enumerate(read_nvml() or [])]
said = lambda reason: print("waits", reason, flush=True)
print(wait_for_card(WaitSpec(free, seconds), memory, cards, said, Path(folder)), flush=True)
time.sleep(600)
"""


@pytest.fixture
def holders():
    """Starts processes that wait for a card of the stand-in for the driver, and hold it."""
    children = []

    def start(folder, memory="growth", free=1, seconds=600, count=1, **settings):
        settings = {"STUB_COUNT": count, "STUB_FREE_MIB": 16000, **settings}
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, json.dumps([str(folder), memory, free, seconds])],
            env=stub_environment(("nvml",), **settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_cards_of_other_jobs_that_the_driver_refuses_are_left_out(tmp_path, holders):
    # NVML's "Insufficient Permissions"
    first = holders(tmp_path, count=3, STUB_NVML_HANDLE="4,0,4", STUB_FREE_MIB="1,16000,1")
    assert first.stdout.readline() == "GPU:0\n"
    none = holders(tmp_path, count=3, STUB_NVML_HANDLE="4")
    assert none.wait(timeout=60) == 1
    assert "There is no GPU to wait for" in none.stderr.read()


def test_a_card_is_handed_on_when_its_process_is_killed(tmp_path, holders):
    first = holders(tmp_path)
    assert first.stdout.readline() == "GPU:0\n"
    second = holders(tmp_path)
    assert second.stdout.readline().startswith(
        f"waits GPU:0 is reserved by your process {first.pid}"
    )
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert "GPU:0\n" in iter(second.stdout.readline, "")
    with pytest.raises(DeviceBusyError, match=rf"your process {second.pid} since \d\d:\d\d"):
        wait_here(tmp_path, seconds=0)
    assert len(list(tmp_path.glob("*.json"))) == 1  # that of the killed process is removed


def wait_here(folder, memory="growth", free=1, seconds=0, on_wait=None):
    cards = [("GPU:0", gpu_of_stub())]
    return wait_for_card(WaitSpec(free, seconds), memory, lambda: cards, on_wait, folder)


def gpu_of_stub():
    """The first card of the stand-in, whose UUID the holders reserve."""
    code = "from gpukeras.system.host import read_nvml; print(read_nvml()[0].uuid)"
    env = stub_environment(("nvml",))
    child = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return NvmlGpu("Simulated GPU", child.stdout.strip(), 16 * GIB, 15 * GIB)


def test_several_sessions_share_a_card_within_their_limits(tmp_path, holders):
    for _ in range(2):
        assert holders(tmp_path, memory=7000).stdout.readline() == "GPU:0\n"
    third = holders(tmp_path, memory=7000)
    assert "GiB free beyond 2 reservations, and 7.3 are needed." in third.stdout.readline()
    fourth = holders(tmp_path, memory="growth")
    assert "is reserved by your process" in fourth.stdout.readline()


def test_two_cards_are_taken_by_two_of_three_sessions(tmp_path, holders):
    found = [holders(tmp_path, count=2).stdout.readline() for _ in range(3)]
    assert sorted(found[:2]) == ["GPU:0\n", "GPU:1\n"]
    assert found[2].startswith("waits GPU:0 is reserved")


def test_a_program_that_the_driver_shows_is_waited_for(tmp_path, holders):
    child = holders(tmp_path, STUB_PID=os.getpid())
    assert child.stdout.readline() == f"waits GPU:0 is used by your process {os.getpid()}.\n"


def test_sessions_that_start_at_once_never_hold_the_same_card(tmp_path, holders):
    children = [holders(tmp_path, seconds=3) for _ in range(4)]
    holding = [child for child in children if "GPU:0\n" in iter(child.stdout.readline, "")]
    assert len(holding) == 1
    assert holding[0].poll() is None


def test_files_of_others_do_no_harm(tmp_path):
    (tmp_path / "gpukeras-card-a.json").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "gpukeras-card-b.json")
    (tmp_path / "gpukeras-card-c.json").write_text("{")
    deep = os.open(tmp_path / "gpukeras-card-d.json", os.O_WRONLY | os.O_CREAT)
    os.write(deep, b"[" * 1000)
    assert take_lock(deep)
    with card_waiting.deciding(tmp_path):
        assert card_waiting.read_reservations(tmp_path) == []
        with (
            pytest.raises(CardsBusyError, match="Another session is choosing"),
            card_waiting.deciding(tmp_path),
        ):
            pass
    os.close(deep)


def test_names_that_others_took_are_told(tmp_path):
    free = NvmlGpu("Tesla T4", "GPU-0", 16 * GIB, 16 * GIB)
    (tmp_path / "gpukeras-card-decision.lock").symlink_to(tmp_path / "target")
    with pytest.raises(DeviceBusyError, match="No card can be reserved by a file in"):
        wait_for_card(WaitSpec(1.0, 600), "growth", lambda: [("GPU:0", free)], None, tmp_path)


def test_an_interrupt_and_a_computer_without_cards_end_the_waiting(tmp_path):
    busy = NvmlGpu("Tesla T4", "GPU-0", 16 * GIB, 2 * MIB)
    with pytest.raises(DeviceBusyError, match=r"No card was free within 0 s: GPU:0 has 0.0"):
        wait_for_card(
            WaitSpec(1.0, 600), "growth", lambda: [("GPU:0", busy)], lambda _: True, tmp_path
        )
    with pytest.raises(NoDeviceError, match="There is no GPU to wait for"):
        wait_for_card(WaitSpec(1.0, 600), "growth", list, None, tmp_path)
