"""Where the core can be given a small fault, and what is drawn."""

import pytest
import sites


def describe(source):
    return [(fault.kind, fault.apply(source.encode()).decode()) for fault in find(source)]


def find(source):
    return sites.Finder("package/file.py", source).faults


@pytest.mark.parametrize(
    ("source", "kind", "faulty"),
    [
        ("a < b", "comparison", "a <= b"),
        ("a == (b)", "comparison", "a != b)"),  # cannot be parsed, and is not drawn
        ("x = a is None", "comparison", "x = a is not None"),
        ("x = a in b", "comparison", "x = a not in b"),
        ("x = 3.5", "constant", "x = (3.5 + 1)"),
        ("f(strict=True)", "constant", "f(strict=False)"),
        ("if a:\n    b()", "branch", "if False:\n    b()"),
        ("x = a if b else c", "branch", "x = a if False else c"),
        ("x = a and b", "branch", "x = a and True"),
        ("x = a or b", "branch", "x = a or False"),
        ("f(a, b, c)", "argument", "f(b, a, c)"),
        ("x = 'ä' if a else b", "branch", "x = 'ä' if False else b"),  # offsets are bytes
    ],
)
def test_a_place_gets_its_fault(source, kind, faulty):
    assert (kind, faulty) in describe(source)


@pytest.mark.parametrize(
    "source",
    [
        "from a import b",
        '"""Text."""',
        "raise Error(1, 2)",
        "if TYPE_CHECKING:\n    import a",
        "f(*a, b)",
        "f(a, a)",
        "contextlib.suppress(A, B)",
        "@dataclass(frozen=True)\nclass Row(Base, kind=1):\n    pass",
    ],
)
def test_what_does_nothing_gets_none(source):
    assert find(source) == []


def test_a_fault_names_its_statement():
    fault = find("f(\n    a,\n    1,\n)")[-1]
    assert (fault.kind, fault.line, fault.end) == ("constant", 3, 4)
    assert fault.describe() == "package/file.py:3:5 constant: 1 -> (1 + 1)"


def test_a_file_that_has_changed_is_told():
    with pytest.raises(ValueError, match="has changed at line 1"):
        find("x = 1")[0].apply(b"y == 2")


def test_each_package_has_its_share_of_a_sample_that_repeats(tmp_path):
    for package, places in (("large", 40), ("small", 2)):
        (tmp_path / package).mkdir()
        (tmp_path / package / "file.py").write_text("x = 1\n" * places + "y = a == (b)\n")
    drawn = sites.draw_faults(tmp_path, 10, seed=3)
    assert drawn == sites.draw_faults(tmp_path, 10, seed=3)
    assert drawn != sites.draw_faults(tmp_path, 10, seed=4)
    assert {fault.file for fault in drawn} == {"large/file.py", "small/file.py"}
    assert {fault.kind for fault in drawn} == {"constant"}
    assert {fault.file for fault in sites.draw_faults(tmp_path, 9, 3, "small/")} == {
        "small/file.py"
    }
