"""Waits for a card that others use, and reserves it among the sessions of gpukeras.

A reservation is a file that its process has locked: the lock ends with the process, in any way.
What the driver tells of other programs counts too. Users see the names and processes of other users
only as root.

    read_cards() --> choose_card(): a card, or CardsBusyError says why not --> reserve()
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.errors import DeviceBusyError, NoDeviceError
from gpukeras.core.file_lock import take_lock
from gpukeras.core.messages import count_of
from gpukeras.core.options import WaitSpec
from gpukeras.system.host import NvmlGpu

FOLDER = Path("/tmp")  # all users of a computer share it
PREFIX = "gpukeras-card-"
GIB, MIB = float(2**30), float(2**20)
CONTEXT_MIB = 512  # CUDA's own of a process, beyond what the framework may take: 300 to 500
LOOK_S = 1.0  # between two looks at the cards
MOST_TEXT = 1000  # bytes of a reservation's file

TellUser = Callable[[int, int | None], str]  # returns words for a process and its user
Cards = Sequence[tuple[str, NvmlGpu | None]]  # by name, with what the driver tells of them


class CardsBusyError(Exception):
    """No card is free; the text says why, as sentences."""


@dataclass(frozen=True)
class Reservation:
    """A card that a process has reserved, whole or in part.

    Args:
        uuid: The card's, by the driver.
        pid: The process.
        uid: Its user.
        reserved_bytes: The part of its memory; None for the whole card.
        since: When, as a time of day.
    """

    uuid: str
    pid: int
    uid: int
    reserved_bytes: float | None
    since: str


@dataclass(frozen=True)
class Card:
    """A card, and who uses it.

    Args:
        name: Such as "GPU:0".
        gpu: What the driver tells of it, or None.
        reservations: Those of other processes.
    """

    name: str
    gpu: NvmlGpu | None
    reservations: tuple[Reservation, ...] = ()


def available_bytes(card: Card) -> float:
    """Returns the free bytes that no reservation is still to take."""
    assert card.gpu is not None
    used = dict(card.gpu.processes)
    promised = [
        max(0.0, (reservation.reserved_bytes or 0.0) - (used.get(reservation.pid) or 0.0))
        for reservation in card.reservations
    ]
    return max(0.0, card.gpu.free_bytes - sum(promised))


def choose_card(
    cards: Sequence[Card], needed_bytes: float, shares: bool, tell_user: TellUser, pid: int = 0
) -> Card:
    """Returns the card with the most memory available among those that are free.

    Args:
        cards: The cards that may be taken.
        needed_bytes: What must be available.
        shares: Whether others may use the card too.
        tell_user: Returns words for a process and its user.
        pid: This process, whose own use of a card does not count.

    Raises:
        CardsBusyError: if none is free.
    """
    reasons = {card.name: why_busy(card, needed_bytes, shares, tell_user, pid) for card in cards}
    free = [card for card in cards if not reasons[card.name]]
    if not free:
        raise CardsBusyError(" ".join(f"{name} {reason}." for name, reason in reasons.items()))
    return max(free, key=available_bytes)


def why_busy(
    card: Card, needed_bytes: float, shares: bool, tell_user: TellUser, pid: int = 0
) -> str:
    """Returns why a card is not free, as a part of a sentence, or ""; arguments as above."""
    if card.gpu is None:
        return "is not told apart from others by the driver"
    for reservation in card.reservations:
        if reservation.reserved_bytes is None or not shares:
            holder = tell_user(reservation.pid, reservation.uid)
            return f"is reserved by {holder} since {reservation.since}"
    others = [other for other, _ in card.gpu.processes if other != pid]
    if others and not shares:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"is used by {tell_user(others[0], None)}{more}"
    available = available_bytes(card)
    if available >= needed_bytes:
        return ""
    reserved = count_of(len(card.reservations), "reservation") if card.reservations else ""
    left = f" beyond {reserved}" if reserved else ""
    return f"has {available / GIB:.1f} GiB free{left}, and {needed_bytes / GIB:.1f} are needed"


def describe_process(pid: int, uid: int | None, own_uid: int) -> str:
    """Returns words for a process; those of other users are named to root alone.

    Args:
        pid: The process.
        uid: Its user, or None if unknown.
        own_uid: The user who reads it.
    """
    if uid == own_uid:
        return f"your process {pid}"
    if own_uid != 0:
        return "another user's process"
    with suppress(ImportError, KeyError, TypeError):  # Windows, a user without a name, or unknown
        import pwd

        return f"process {pid} of {pwd.getpwuid(uid).pw_name}"  # type: ignore[arg-type]
    return f"process {pid}"


# Reservations -------------------------------------------------------------------------------------

_held: dict[str, int] = {}  # locked files by the card's UUID, to the end of this process


def read_reservations(folder: Path = FOLDER) -> list[Reservation]:
    """Returns the reservations of other living processes, and removes those of ended ones.

    Called under `deciding()`: a file that is just being made is not locked yet.
    """
    reservations = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        # What a stranger wrote into a file of that name is no reservation, however deep it nests.
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            reservation = _read_living(path)
            if reservation is None:
                path.unlink()
            elif reservation.pid != os.getpid():
                reservations.append(reservation)
    return reservations


def _read_living(path: Path) -> Reservation | None:
    """Returns the reservation of a file, or None if no process holds its lock."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if take_lock(handle):
            return None
        told, file = json.loads(os.read(handle, MOST_TEXT)), os.fstat(handle)
        size = None if told["bytes"] is None else float(told["bytes"])
        since = time.strftime("%H:%M", time.localtime(file.st_mtime))
        return Reservation(str(told["uuid"]), int(told["pid"]), file.st_uid, size, since)
    finally:
        os.close(handle)


def reserve(uuid: str, reserved_bytes: float | None, folder: Path = FOLDER) -> None:
    """Reserves a card, to the end of this process; called under `deciding()`.

    Args:
        uuid: The card's.
        reserved_bytes: The part of its memory; None for the whole card.
        folder: Where the files are.

    Raises:
        OSError: if the file cannot be made.
    """
    if uuid in _held:  # an earlier reservation of this process
        os.close(_held.pop(uuid))
    path = folder / f"{PREFIX}{uuid}-{os.getpid()}.json"
    path.unlink(missing_ok=True)  # of an ended process that had this number
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o644)
    os.fchmod(handle, 0o644)  # whatever the umask: all users read it
    take_lock(handle)
    told = {"uuid": uuid, "pid": os.getpid(), "bytes": reserved_bytes}
    os.write(handle, json.dumps(told).encode())
    _held[uuid] = handle


@contextmanager
def deciding(folder: Path = FOLDER) -> Iterator[None]:
    """Keeps others from deciding at the same time.

    The file is opened for reading: Linux lets nobody create another user's file in a folder
    that all may write to (`fs.protected_regular`).

    Raises:
        CardsBusyError: while another one decides.
    """
    path = folder / f"{PREFIX}decision.lock"
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        handle = os.open(path, flags | os.O_CREAT, 0o644)
        with suppress(OSError):
            os.fchmod(handle, 0o644)
    try:
        if not take_lock(handle):
            raise CardsBusyError("Another session is choosing a card.")
        yield
    finally:
        os.close(handle)


# Waiting ------------------------------------------------------------------------------------------


def wait_for_card(
    wait: WaitSpec,
    memory: str | int,
    read_cards: Callable[[], Cards],
    on_wait: Callable[[str], Any] | None = None,
    folder: Path = FOLDER,
) -> str:
    """Waits until a card is free, reserves it, and returns its name.

    Args:
        wait: What is waited for.
        memory: As in `SetupSpec`: with MiB others may use the rest of the card.
        read_cards: Returns the cards that may be taken, with what the driver tells of them.
        on_wait: Called at each look with the reason to wait; true ends the waiting.
        folder: Where the reservations are.

    Raises:
        NoDeviceError: if there is no card.
        DeviceBusyError: if none was free in time, or the user ended the waiting.
    """
    if os.name == "nt":
        raise NoDeviceError("Windows has no locks by which to wait for a card.", arg="wait")
    shares = not isinstance(memory, str)
    own = (memory + CONTEXT_MIB) * MIB if not isinstance(memory, str) else 0.0
    needed, began = max(wait.free_gib * GIB, own), time.monotonic()
    while True:
        try:
            with deciding(folder):
                card, uuid = _choose(read_cards(), needed, shares, folder)
                reserve(uuid, needed if shares else None, folder)
                return card
        except CardsBusyError as busy:
            reason = str(busy)
        except OSError as error:  # a full disk, or what others made under the names of the files
            raise DeviceBusyError(
                f"No card can be reserved by a file in {folder}: {error.strerror}.",
                hint=f"Only its owner or root can remove what lies at {folder}/{PREFIX}*.",
                arg="wait",
            ) from error
        passed_s = time.monotonic() - began
        ended = on_wait is not None and on_wait(reason) is True
        if ended or passed_s >= wait.seconds:
            raise DeviceBusyError(
                f"No card was free within {passed_s:.0f} s: {reason}",
                hint="Give `wait` more `seconds` or less `free_gib`, or end the other process.",
                arg="wait",
            )
        time.sleep(min(LOOK_S, max(0.0, wait.seconds - passed_s)))


def _choose(cards: Cards, needed: float, shares: bool, folder: Path) -> tuple[str, str]:
    """Returns the name and the UUID of a card that is free."""
    if not cards:
        hint = "gpu_check() says why."
        raise NoDeviceError("There is no GPU to wait for.", hint=hint, arg="wait", found=())
    known = read_reservations(folder)
    facts = [
        Card(name, gpu, tuple(each for each in known if gpu and each.uuid == gpu.uuid))
        for name, gpu in cards
    ]
    chosen = choose_card(facts, needed, shares, _tell_user, os.getpid())
    assert chosen.gpu is not None  # another is never free
    return chosen.name, chosen.gpu.uuid


def _tell_user(pid: int, uid: int | None) -> str:
    if uid is None:
        with suppress(OSError):
            uid = os.stat(f"/proc/{pid}").st_uid
    return describe_process(pid, uid, os.geteuid())
