"""CONTRIBUTING.md names every R file, Python module and package, and nothing that is gone."""

import re
from pathlib import Path

import pytest

import gpukeras

CORE = Path(gpukeras.__file__).parent
ROOT = Path(__file__).parents[2]


def read_table(heading):
    """First cells of the table whose header begins with `heading`, with their roles."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split(f"| {heading} | role |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [re.fullmatch(r"\| `(.+?)` \| (.+) \|", line) for line in table.splitlines()]
    assert all(rows), table
    return [(row[1], row[2]) for row in rows]


def list_there(heading):
    """What the table must name, from the files."""
    if heading == "file":
        return sorted(f"R/{path.name}" for path in (ROOT / "R").glob("*.R"))
    if heading == "module":
        return sorted(path.name for path in CORE.glob("*.py") if path.stem != "__init__")
    return sorted(f"{path.parent.name}/" for path in CORE.glob("*/__init__.py"))


@pytest.mark.parametrize("heading", ["file", "module", "package"])
def test_the_table_names_what_is_there(heading):
    rows = read_table(heading)
    assert sorted(name for name, _ in rows) == list_there(heading)
    assert all(len(role) > 5 for _, role in rows)


def test_the_picture_names_what_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = text.split("```\n")[1]
    named = [
        name
        for floor in re.findall(r"^ +\|  (\w.*)$", picture, re.MULTILINE)
        for name in floor.split()
    ]
    assert len(named) > 30
    missing = [
        name
        for name in named
        if not (CORE / name).is_dir() and not (CORE / f"{name.rstrip('/')}.py").is_file()
    ]
    assert missing == []


def test_files_and_targets_that_are_named_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"`((?:python|tests|tools|inst)/[\w./-]+)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path
