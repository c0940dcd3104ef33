"""What more GPUs are reckoned to bring, as the Markdown tables of the vignette.

`bench_scale.py --only predict` prints them; nothing is measured. The assumptions are those of
`ring_costs`: links reach 80 % of their nominal speed, a message costs 3.4
microseconds over NVLink and 14 over a network, nothing of an exchange hides behind computing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ring_costs import PER_NODE, Exchange, plan_link, plan_nodes, plan_nvlink
from scaling import count_gradient_bytes, find_step_s, predict_table

MODELS = {"1 million": 1e6, "25 million": 25e6, "100 million": 100e6, "350 million": 350e6}
GBIT_PER_S = (10, 25, 100, 200, 400)
REPLICAS = (8, 16, 32, 64, 128, 256, 512)
STEP_S = 0.1
WANTED = 0.9  # efficiency
DESKS = (2, 8)  # computers with a GPU each


def format_tables() -> str:
    """All tables, each under a line that says what it shows."""
    return "\n\n".join([_format_efficiencies(), _format_steps(), _format_desks()])


def _format_efficiencies() -> str:
    names = {f"{speed} Gbit/s": plan_nodes(speed) for speed in GBIT_PER_S}
    rows = predict_table(list(MODELS.values()), names, REPLICAS, STEP_S)
    models = {count: name for name, count in MODELS.items()}
    lines = [
        [models[row.parameters], row.link, *(f"{each.efficiency:.0%}" for each in row.predictions)]
        for row in rows
    ]
    title = (
        f"Efficiency of computers with {PER_NODE} GPUs on NVLink, by the network between them; "
        f"float32 gradients; a GPU alone takes {1000 * STEP_S:.0f} ms for a step:"
    )
    header = ["parameters", "network", *(f"{count} GPUs" for count in REPLICAS)]
    return _format_table(title, header, lines)


def _format_steps() -> str:
    last = REPLICAS[-1]
    links: list[tuple[Exchange, int]] = [(plan_nvlink(), PER_NODE)]
    links += [(plan_nodes(speed), last) for speed in GBIT_PER_S]
    lines = [
        [name, dtype, *(_format_step(count, dtype, link, of) for link, of in links)]
        for name, count in MODELS.items()
        for dtype in ("float32", "float16")
    ]
    title = f"Milliseconds that a GPU must compute in a step for {WANTED:.0%} efficiency:"
    networks = [f"{last} GPUs, {speed} Gbit/s" for speed in GBIT_PER_S]
    header = ["parameters", "gradients", f"{PER_NODE} GPUs, NVLink", *networks]
    return _format_table(title, header, lines)


def _format_desks() -> str:
    speeds = (1, *GBIT_PER_S[:3])
    lines = [
        [
            name,
            *(
                _format_step(count, "float32", plan_link(speed), of)
                for speed in speeds
                for of in DESKS
            ),
        ]
        for name, count in MODELS.items()
    ]
    title = f"The same for computers with one GPU each, float32 gradients, {WANTED:.0%} efficiency:"
    header = ["parameters", *(f"{of} on {speed} Gbit/s" for speed in speeds for of in DESKS)]
    return _format_table(title, header, lines)


def _format_step(parameters: float, dtype: str, link: Exchange, replicas: int) -> str:
    step_s = find_step_s(count_gradient_bytes(parameters, dtype), replicas, link, WANTED)
    return f"{1000 * step_s:,.0f}" if step_s >= 0.0095 else f"{1000 * step_s:.1f}"


def _format_table(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|---" * len(header) + "|"
    return "\n".join([title, "", _format_line(header), rule, *map(_format_line, lines)])


def _format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
