"""Who may import whom, what only one module may do, and what each package says of itself.

The packages' order stands in `[tool.importlinter]` of pyproject.toml, top to bottom.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

from sources import functions_of, nodes_of, parse

import gpukeras

CORE = Path(gpukeras.__file__).parent
PYTHON = Path(__file__).parents[2]
PURE_VERBS = ("parse_", "check_", "choose_", "plan_", "explain_", "judge", "split_", "to_plain")
FRAMEWORKS = {"tensorflow", "keras", "jax", "jaxlib"}
PACKAGES = sorted(path for path in CORE.rglob("__init__.py") if path.parent != CORE)
FILES = sorted(path for path in CORE.rglob("*.py") if path.stem != "__init__")
ASKS_KERAS = (
    "models/compatibility.py",
    "models/mlp.py",
    "models/model_checks.py",
    "backend/runtime.py",
    "engine/rowwise.py",
)


def name_of(path):
    return path.relative_to(CORE).as_posix()


def test_a_package_imports_only_from_below():
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    environment = {**os.environ, "PYTHONPATH": str(CORE.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PYTHON,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout
    assert "broken" in ended.stdout


def test_only_the_backend_reaches_into_keras_src():
    others = [path for path in FILES if name_of(path).split("/")[0] != "backend"]
    reached = {
        name_of(path)
        for path in others
        for node in nodes_of(path)
        if (isinstance(node, ast.Attribute) and node.attr == "src")
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras.src"))
    }
    assert reached == set()


def test_only_packages_and_two_modules_are_at_the_top():
    assert {path.name for path in CORE.glob("*.py")} == {"__init__.py", "__main__.py", "api.py"}


def test_a_package_says_in_a_line_what_lives_there_and_runs_nothing():
    assert len(PACKAGES) > 20
    bodies = {path: parse(path) for path in PACKAGES}
    silent = [path for path, body in bodies.items() if "\n" in (ast.get_docstring(body) or "\n")]
    running = [path for path, body in bodies.items() if len(body.body) != 1]
    assert (list(map(name_of, silent)), list(map(name_of, running))) == ([], [])


def imported(path):
    """The packages that a file imports, wherever in it."""
    for node in nodes_of(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (name.split(".")[0] for name in names)


def test_only_the_backend_imports_tensorflow_jax_and_keras():
    others = [path for path in FILES if not name_of(path).startswith("backend/")]
    assert len(others) > 350
    found = {name_of(path): FRAMEWORKS.intersection(imported(path)) for path in others}
    assert {name: frameworks for name, frameworks in found.items() if frameworks} == {}


def test_pure_verbs_do_not_touch_tensorflow():
    found = [
        f"{name_of(path)}: {function.name}()"
        for path in FILES
        if name_of(path) not in ASKS_KERAS
        for function in functions_of(path)
        if function.name.startswith(PURE_VERBS)
        if any(getattr(node, "id", "") == "runtime" for node in ast.walk(function))
    ]
    assert found == []


def test_public_names_are_sorted_and_complete():
    public = [name for name in vars(gpukeras) if not name.startswith("_") and name[0].isupper()]
    assert sorted(public) == gpukeras.__all__
