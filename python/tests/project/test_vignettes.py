"""What a package shows of its vignettes was computed from the code that it shows."""

import hashlib
import re
from pathlib import Path

import pytest

VIGNETTES = Path(__file__).parents[3] / "vignettes"
MARK = re.compile(rb"<!-- Computed by make vignettes from .*source (\w+), page (\w+) -->\n")
NAMES = sorted(path.name.removesuffix(".Rmd.orig") for path in VIGNETTES.glob("*.Rmd.orig"))


def test_every_page_has_a_source():
    assert sorted(path.stem for path in VIGNETTES.glob("*.Rmd")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_not_older_than_its_source(name):
    page = (VIGNETTES / f"{name}.Rmd").read_bytes()
    mark = MARK.search(page)
    assert mark, f"{name}.Rmd was not computed by `make vignettes`"
    source = hashlib.md5((VIGNETTES / f"{name}.Rmd.orig").read_bytes()).hexdigest()
    itself = hashlib.md5(page.replace(mark[0], b"")).hexdigest()
    assert mark[1].decode() == source, f"{name}.Rmd.orig was changed: run `make vignettes`"
    assert mark[2].decode() == itself, f"{name}.Rmd was changed by hand: change {name}.Rmd.orig"


def test_figures_are_those_that_pages_show():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in VIGNETTES.glob("*.Rmd"))
    shown = set(re.findall(r"figures/([\w.-]+\.png)", pages))
    assert shown == {path.name for path in (VIGNETTES / "figures").iterdir()}
    assert sum(path.stat().st_size for path in (VIGNETTES / "figures").iterdir()) < 2 * 2**20
