"""How long files and functions may be, over the whole repository."""

import ast
import re
from pathlib import Path

import pytest
from sources import functions_of

pytestmark = pytest.mark.costly
ROOT = Path(__file__).parents[3]
FILE_LINES, FUNCTION_LINES, MOST_POSITIONAL = 700, 60, 5
FOLDERS = ("R", "inst", "python", "tests", "tools", "vignettes")
SUFFIXES = (".py", ".R", ".Rmd", ".sh")
# What a bracket may not be taken from: raw strings, strings, names, comments, in this order.
QUOTED = re.compile(
    r"""[rR]["'](-*)\(.*?\)\1["'] | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | `[^`]*` | \#[^\n]*""",
    re.VERBOSE | re.DOTALL,
)
BRACKETS = {"(": re.compile("[()]"), "{": re.compile("[{}]")}


def list_files():
    """The repository's own code: nothing that is installed, generated or hidden."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                yield path


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def read(path):
    return path.read_text(encoding="utf-8")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def close(text, start):
    """Where the bracket at `start` is closed."""
    depth = 0
    for bracket in BRACKETS[text[start]].finditer(text, start):
        depth += 1 if bracket.group() in BRACKETS else -1
        if not depth:
            return bracket.start()
    raise AssertionError(f"a bracket stays open: {text[start : start + 50]}")


def functions_of_r(text):
    """The first line and the number of lines of each function in R code."""
    bare = QUOTED.sub(blank, text)
    for match in re.finditer(r"\bfunction\s*\(", bare):
        end = close(bare, match.end() - 1)
        body = re.compile(r"\s*\{").match(bare, end + 1)
        end = close(bare, body.end() - 1) if body else end
        yield bare.count("\n", 0, match.start()) + 1, bare.count("\n", match.start(), end) + 1


def functions_of_python(path):
    for node in functions_of(path):
        told = node.body[0] if ast.get_docstring(node) else None
        docstring = 0 if told is None else told.end_lineno - told.lineno + 1
        yield node.lineno, node.end_lineno - node.lineno + 1 - docstring


READERS = {".py": functions_of_python, ".R": lambda path: functions_of_r(read(path))}


def test_files_are_short():
    lengths = {name_of(path): len(read(path).splitlines()) for path in list_files()}
    assert {name: lines for name, lines in lengths.items() if lines > FILE_LINES} == {}


def test_functions_are_short():
    found = [
        (f"{name_of(path)}:{line}", lines)
        for path in list_files()
        if path.suffix in READERS
        for line, lines in READERS[path.suffix](path)
    ]
    assert len(found) > 5000
    assert [one for one in found if one[1] > FUNCTION_LINES] == []


def positional_of(function):
    """Names of the parameters that may be given by their place; `self` is none."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    return [name for name in names if name not in ("self", "cls")]


def test_public_functions_take_few_arguments_by_place():
    found = {
        f"{name_of(path)}:{node.lineno} {node.name}": len(positional_of(node))
        for path in list_files()
        if path.suffix == ".py" and "inst/python/gpukeras/" in name_of(path)
        for node in functions_of(path)
        if node.name == "__init__" or not node.name.startswith("_")
    }
    assert len(found) > 1500
    assert {name: count for name, count in found.items() if count > MOST_POSITIONAL} == {}


def test_functions_of_r_are_found_with_their_lines():
    code = """
f <- function(x = "}", y = '{') { # }
  `odd } name` <- r"(})"
  g <- function(z) z
  g(function() {
    "\\"}"
  })
}
"""
    assert list(functions_of_r(code)) == [(2, 7), (4, 1), (5, 3)]


def test_the_code_is_found():
    assert {path.suffix for path in list_files()} == set(SUFFIXES)
    assert len(list(list_files())) > 500
