"""What it costs to add up the gradients of several devices, in a ring.

In a ring of n replicas each passes an n-th of the gradients to its neighbour, n - 1 times to add
up and n - 1 times to hand the sums round (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69; Thakur, Rabenseifner &
Gropp 2005, "Optimization of collective communication operations in MPICH", Int. J. High Perform.
Comput. Appl. 19). With the latency and the bandwidth of a link that takes

    2 (n - 1) (latency + bytes / (n bandwidth)).

It grows with n in its latency only: however many replicas, the bytes cost at most 2 bytes /
bandwidth. Latency and bandwidth are those that the exchange reaches, not those on the box, so
`fit_ring()` takes them from measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.options import Spec, check_count, check_number, check_positive

REACHED = 0.8  # share of a link's nominal speed that an exchange is assumed to reach
# What NCCL itself reckons with for a message of its ring (src/graph/tuning.cc, "Simple").
NVLINK_LATENCY_S = 3.4e-6
NETWORK_LATENCY_S = 14e-6
NVLINK_BYTES_PER_S = 300e9  # of an A100, in each direction
PER_NODE = 8  # GPUs in a computer
COLLINEAR = 1e-9  # of two columns of length 1: below it one is a multiple of the other


class Exchange(Protocol):
    """Any way to add up the gradients of all replicas."""

    def reduce_s(self, replicas: int, size_bytes: float) -> float:
        """Seconds to add up `size_bytes` of each of `replicas`."""


@dataclass(frozen=True)
class RingCost(Spec):
    """One ring over links that are all alike.

    Args:
        latency_s: Seconds that each of a ring's 2 (n - 1) messages costs whatever its size.
        bytes_per_s: What a link carries in one direction; `math.inf` where size costs nothing.
    """

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        self._set(latency_s=check_number("latency_s", self.latency_s, 0.0))
        if self.bytes_per_s != math.inf:
            self._set(bytes_per_s=check_positive("bytes_per_s", self.bytes_per_s))

    def reduce_s(self, replicas: int, size_bytes: float) -> float:
        """Seconds to add up `size_bytes` of each of `replicas`; 0 for one replica."""
        replicas = check_count("replicas", replicas)
        size_bytes = check_number("size_bytes", size_bytes, 0.0)
        message_s = self.latency_s + size_bytes / replicas / self.bytes_per_s
        return 2 * (replicas - 1) * message_s


@dataclass(frozen=True)
class NodesCost(Spec):
    """A ring inside each computer, and rings between the computers.

    The GPUs of a computer add up among themselves until each holds a part of the sums; the
    computers add up these parts, all at once over the network that its GPUs share; then each
    computer hands the parts round (Cho et al. 2019, "BlueConnect: Decomposing all-reduce for deep
    learning on heterogeneous network hierarchy", MLSys). The phases follow each other. The network
    of a computer carries as much as in one ring with a member for each computer.

    Args:
        inside: Between the GPUs of a computer.
        between: Between computers; its speed is that of a computer's whole network.
        per_node: GPUs in a computer. The last one may have fewer.
    """

    inside: RingCost
    between: RingCost
    per_node: int = PER_NODE

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        self._set(per_node=check_count("per_node", self.per_node))

    def reduce_s(self, replicas: int, size_bytes: float) -> float:
        """Seconds to add up `size_bytes` of each of `replicas`; 0 for one replica."""
        nodes = math.ceil(check_count("replicas", replicas) / self.per_node)
        within_s = self.inside.reduce_s(min(replicas, self.per_node), size_bytes)
        return within_s + self.between.reduce_s(nodes, size_bytes)


@dataclass(frozen=True)
class Measurement(Spec):
    """How long one all-reduce took.

    Args:
        replicas: How many took part, 2 or more.
        size_bytes: What each gave.
        seconds: How long it took.
    """

    replicas: int
    size_bytes: float
    seconds: float

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        self._set(
            replicas=check_count("replicas", self.replicas, 2),
            size_bytes=check_number("size_bytes", self.size_bytes, 0.0),
            seconds=check_positive("seconds", self.seconds),
        )


@dataclass(frozen=True)
class RingFit:
    """The ring that explains measurements best, and how well it does.

    Args:
        ring: Its latency and bandwidth.
        measurements: What was explained.
        fitted_s: Seconds by the ring, for each measurement.
        residuals: Measured less fitted, as a share of the measured, for each measurement.
        typical_error: Median of the residuals' sizes.
        worst_error: Largest of them.
    """

    ring: RingCost
    measurements: tuple[Measurement, ...]
    fitted_s: tuple[float, ...]
    residuals: tuple[float, ...]
    typical_error: float
    worst_error: float


def plan_link(
    gbit_per_s: float, latency_s: float = NETWORK_LATENCY_S, reached: float = REACHED
) -> RingCost:
    """A network link from what is printed on it.

    Args:
        gbit_per_s: Its nominal speed in one direction, in 10^9 bits a second.
        latency_s: Of a message; 14 microseconds is what NCCL reckons with.
        reached: Share of the nominal speed that an exchange reaches.
    """
    nominal = check_positive("gbit_per_s", gbit_per_s) * 1e9 / 8
    return RingCost(latency_s, nominal * check_positive("reached", reached, 1.0))


def plan_nodes(gbit_per_s: float, per_node: int = PER_NODE) -> NodesCost:
    """Computers whose GPUs are joined by NVLink, with one network link for each computer."""
    return NodesCost(plan_nvlink(), plan_link(gbit_per_s), per_node)


def plan_nvlink(reached: float = REACHED) -> RingCost:
    """NVLink as an A100 has it: 300 GB a second in each direction."""
    return RingCost(NVLINK_LATENCY_S, NVLINK_BYTES_PER_S * check_positive("reached", reached, 1.0))


def fit_ring(measurements: Sequence[Measurement]) -> RingFit:
    """Latency and bandwidth of the ring that explains measurements best.

    Least squares of the relative errors, since small and large exchanges differ by orders of
    magnitude, with neither latency nor seconds a byte below 0.

    Args:
        measurements: At least two, which differ in size or replicas.

    Raises:
        DataError: if they cannot tell latency from bandwidth.
    """
    points = tuple(measurements)
    seconds = np.array([point.seconds for point in points])
    messages = np.array([2.0 * (point.replicas - 1) for point in points])
    carried = messages * np.array([point.size_bytes / point.replicas for point in points])
    latency_s, s_per_byte = _solve_positive(messages / seconds, carried / seconds)
    ring = RingCost(latency_s, 1.0 / s_per_byte if s_per_byte > 0 else math.inf)
    fitted = tuple(ring.reduce_s(point.replicas, point.size_bytes) for point in points)
    residuals = tuple(
        (point.seconds - each) / point.seconds for point, each in zip(points, fitted, strict=True)
    )
    sizes = [abs(residual) for residual in residuals]
    return RingFit(ring, points, fitted, residuals, median(sizes), max(sizes))


def _solve_positive(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The factors of two columns, none below 0, whose sum is nearest to 1 everywhere.

    Columns of length 1, because latency and bandwidth differ by many orders of magnitude.
    """
    lengths = np.array([np.linalg.norm(first), np.linalg.norm(second)])
    if len(first) < 2 or not lengths.all():
        raise _one_direction()
    columns = np.stack([first, second], axis=1) / lengths
    if np.linalg.svd(columns, compute_uv=False)[1] < COLLINEAR:
        raise _one_direction()
    wanted = np.ones(len(first))
    both = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    if (both < 0).any():
        # The problem is convex, so its optimum lies where one factor is 0. The columns are
        # positive, so the other one alone is not below 0.
        alone = columns.T @ wanted
        both = np.where(alone == alone.max(), alone, 0.0)
    return float(both[0] / lengths[0]), float(both[1] / lengths[1])


def _one_direction() -> DataError:
    return DataError(
        "`measurements` cannot tell latency from bandwidth.",
        hint="Measure all-reduces of at least two sizes.",
        arg="measurements",
    )
