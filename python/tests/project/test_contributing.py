"""CONTRIBUTING.md names every R file and Python package, and nothing that is gone."""

import ast
import re
from pathlib import Path

import gpukeras

CORE = Path(gpukeras.__file__).parent
ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def read_table(heading):
    """First cells of the table whose header begins with `heading`, with their roles."""
    table = TEXT.split(f"| {heading} | role |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [re.fullmatch(r"\| `(.+?)` \| (.+) \|", line) for line in table.splitlines()]
    assert all(rows), table
    return {row[1]: row[2] for row in rows}


def test_the_table_of_files_names_what_is_there():
    rows = read_table("file")
    assert sorted(rows) == sorted(f"R/{path.name}" for path in (ROOT / "R").glob("*.R"))
    assert all(len(role) > 5 for role in rows.values())


def test_the_table_of_packages_says_what_each_says_of_itself():
    there = {
        f"{path.parent.relative_to(CORE).as_posix()}/": ast.get_docstring(
            ast.parse(path.read_text(encoding="utf-8"))
        )
        for path in CORE.rglob("__init__.py")
        if path.parent != CORE
    }
    assert read_table("package") == there


def test_files_and_targets_that_are_named_are_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in re.findall(r"`((?:python|tests|tools|inst)/[\w./-]+)`", TEXT):
        assert "MODULE" in path or (ROOT / path).exists(), path


def test_each_name_of_r_is_defined_once():
    """R lets the file that comes last win, without a word."""
    defined: dict[str, list[str]] = {}
    for path in sorted((ROOT / "R").glob("*.R")):
        for name in re.findall(r"^`?([\w.]+(?:<-)?)`? <- ", path.read_text(), re.MULTILINE):
            defined.setdefault(name, []).append(path.name)
    assert len(defined) > 500
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}
