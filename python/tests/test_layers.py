"""The house: imports point one way, one door to TensorFlow, pure verbs are pure, sizes."""

import ast
from pathlib import Path

import pytest

import gpukeras

CORE = Path(gpukeras.__file__).parent
# From the bottom up; a module may import only from the floors below its own.
FLOORS = [
    ["errors"],
    ["specs"],
    ["arrays", "runtime", "choosing", "plans", "machine", "signs"],
    ["labels", "precision", "environment", "causes", "probe"],
    ["recipes", "settings", "judgement"],
    ["devices"],
    ["pipeline", "diagnosis"],
    ["engine"],
    ["models"],
    ["inference"],
    ["training"],
    ["border"],
    ["contract", "__main__"],
]
FLOOR = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}
PURE_VERBS = ("parse_", "check_", "choose_", "plan_", "explain_", "judge", "split_", "to_plain")
TENSORFLOW = {"tensorflow", "keras"}
FILES = sorted(CORE.glob("*.py"))


def imports_of(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module and node.level:
                yield "." + node.module
            elif node.level:
                yield from ("." + alias.name for alias in node.names)
            else:
                yield node.module


def functions_of(tree):
    return [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


@pytest.fixture(params=[path for path in FILES if path.stem != "__init__"], ids=lambda p: p.stem)
def path(request):
    return request.param


@pytest.fixture
def tree(path):
    return ast.parse(path.read_text())


def test_every_module_has_a_floor():
    assert {path.stem for path in FILES} - {"__init__"} == set(FLOOR)


def test_imports_point_down(path, tree):
    own = {name[1:].split(".")[0] for name in imports_of(tree) if name.startswith(".")}
    upward = [name for name in own & set(FLOOR) if FLOOR[name] >= FLOOR[path.stem]]
    assert not upward


def test_only_runtime_imports_tensorflow(path, tree):
    if path.stem == "runtime":
        pytest.skip("runtime is the door")
    assert not {name.split(".")[0] for name in imports_of(tree)} & TENSORFLOW


def test_pure_verbs_do_not_touch_tensorflow(path, tree):
    # Models are checked by asking Keras about them, so models.py is not bound by its verbs.
    if path.stem in ("models", "runtime"):
        pytest.skip("asks Keras about a model")
    for function in functions_of(tree):
        if function.name.startswith(PURE_VERBS):
            names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            assert "runtime" not in names, function.name


def test_sizes(path, tree):
    assert len(path.read_text().splitlines()) <= 400
    for function in functions_of(tree):
        docstring = ast.get_docstring(function, clean=False) or ""
        lines = function.end_lineno - function.lineno + 1 - len(docstring.splitlines())
        assert lines <= 60, function.name


def test_public_names_are_sorted_and_complete():
    public = [name for name in vars(gpukeras) if not name.startswith("_") and name[0].isupper()]
    assert sorted(public) == gpukeras.__all__
