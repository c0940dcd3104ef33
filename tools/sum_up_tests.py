"""Says in one sentence how `make test` has ended.

    sum_up_tests.py PYTHON_XML R_TSV

PYTHON_XML is pytest's --junitxml; R_TSV has a line a test from tools/test_r.R: "passed", "failed"
or "skipped", a tab, and why it was skipped. A file that is missing is of tests that came to no end.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

SHOWN = 3  # reasons
LANE = "Left to "  # how the reason of a test begins that another target of make runs
REST = (
    "`make test-all` goes deeper, `make test-nightly` runs the long tables; what lacks something "
    "runs once that is installed."
)
Outcome = tuple[str, str]  # "passed", "failed" or "skipped", and why it was skipped


def read_python(path: Path) -> list[Outcome] | None:
    """Returns the outcome of each test of pytest; None if there is no whole file."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 (written by the tests just run)
    except (OSError, ET.ParseError):
        return None
    return [_read_case(case) for case in root.iter("testcase")]


def _read_case(case: ET.Element) -> Outcome:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed", ""
    skipped = case.find("skipped")
    return ("passed", "") if skipped is None else ("skipped", skipped.get("message", ""))


def read_r(path: Path) -> list[Outcome] | None:
    """Returns the outcome of each test of R; None if there is no file."""
    if not path.exists():
        return None
    parts = [line.partition("\t") for line in path.read_text("utf-8").splitlines()]
    return [(outcome, why) for outcome, _, why in parts]


def sum_up(python: Sequence[Outcome] | None, r: Sequence[Outcome] | None) -> str:
    """Returns the sentence.

    Args:
        python: Outcomes of Python's tests, or None if these came to no end.
        r: Those of R's.
    """
    found = [*(python or ()), *(r or ())]
    count = Counter(outcome for outcome, _ in found)
    reasons = Counter(why.strip().rstrip(".") for outcome, why in found if outcome == "skipped")
    skipped = f"{count['skipped']:,} skipped{_explain(reasons)}"
    said = f"{count['passed']:,} tests passed, {count['failed'] or 'none'} failed, {skipped}."
    lost = [name for name, one in (("Python", python), ("R", r)) if one is None]
    ends = "".join(f" The tests of {name} came to no end: see above." for name in lost)
    return said + ends + (f" {REST}" if reasons else "")


def _explain(reasons: Counter[str]) -> str:
    """Tells what is left to other targets, then what lacks here, the most frequent first."""
    if not reasons:
        return ""
    left = Counter({why: n for why, n in reasons.items() if why.startswith(LANE)})
    lacks = (reasons - left).most_common()
    told = [f"{n:,} l{why[1:]}" for why, n in left.most_common()]
    told += [f"{n:,} because: {why}" for why, n in lacks[:SHOWN]]
    if more := lacks[SHOWN:]:
        rest = sum(count for _, count in more)
        told.append(f"{rest:,} for {len(more):,} other reason{'s' * (len(more) > 1)}")
    return f" ({'; '.join(told)})"


if __name__ == "__main__":
    print("gpukeras test:", sum_up(read_python(Path(sys.argv[1])), read_r(Path(sys.argv[2]))))
