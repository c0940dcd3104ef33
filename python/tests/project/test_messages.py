"""Every message of the core has been read: an R snapshot shows it, or a test quotes it."""

import ast
import functools
import re
from pathlib import Path

import pytest
from sources import nodes_of

import gpukeras
from gpukeras.core import errors

pytestmark = pytest.mark.costly
CORE = Path(gpukeras.__file__).parent
TESTS = Path(__file__).parents[1]
SNAPSHOTS = TESTS.parents[1] / "tests" / "testthat" / "_snaps"
BASE = errors.GpuKerasError
ERRORS = {BASE.__name__, *(error.__name__ for error in BASE.__subclasses__())}
SHORTEST = 12  # characters of a message's constant text; shorter ones say nothing of their own
QUOTED = 3  # words in a row that a test must have


def texts(nodes):
    """What string literals hold, those within f-strings too."""
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@functools.cache
def find_makers():
    """Functions whose annotation says that they make an error, with their parameters."""
    found = {}
    for path in CORE.rglob("*.py"):
        for node in nodes_of(path):
            returns = getattr(node, "returns", None)
            if returns and set(re.findall(r"\w+", ast.unparse(returns))) & ERRORS:
                names = [argument.arg for argument in node.args.args]
                found[node.name] = [name for name in names if name != "self"]
    return found


def bare(text):
    """Its words, with a space before and after each."""
    return f" {' '.join(re.findall(r'[A-Za-z0-9]+', text))} "


def longest_text(node):
    return max(texts(ast.walk(node)), key=len, default="").strip()


def find_messages(nodes):
    """The line of each error that is made, and the longest piece of its message.

    That is the first text of an error's class, or of a function that makes one.
    """
    makers = find_makers()
    for node in nodes:
        name = getattr(node, "func", None)
        if getattr(getattr(name, "value", None), "id", "") == "LOG":
            continue  # the server's own log
        name = getattr(name, "id", getattr(name, "attr", ""))
        if name in ERRORS or name in makers:
            taken = zip(node.args, makers.get(name, ["message"]), strict=False)
            pieces = [longest_text(argument) for argument, taker in taken if taker != "hint"]
            yield from [(node.lineno, piece) for piece in pieces if is_sentence(piece)][:1]


def is_sentence(piece):
    return len(bare(piece)) - 2 >= SHORTEST and " " in piece


def is_read(piece, shown, quoted):
    words = bare(piece).split()
    runs = (words[at : at + QUOTED] for at in range(max(1, len(words) - QUOTED + 1)))
    return bare(piece) in shown or any(bare(" ".join(run)) in quoted for run in runs)


@pytest.fixture(scope="module")
def shown():
    """All that snapshots show; testthat's `.new.md` are not accepted yet."""
    paths = [path for path in SNAPSHOTS.rglob("*.md") if not path.name.endswith(".new.md")]
    assert len(paths) > 20
    return bare(" ".join(path.read_text(encoding="utf-8") for path in paths))


@pytest.fixture(scope="module")
def quoted():
    """The string literals of all other tests."""
    paths = [path for path in TESTS.rglob("*.py") if path.name != Path(__file__).name]
    return "|".join(bare(text) for path in paths for text in texts(nodes_of(path)))


SOURCES = [path.relative_to(CORE).as_posix() for path in sorted(CORE.rglob("*.py"))]


def test_each_message_has_been_read(shown, quoted):
    unread = [
        f"{source}:{line}: {piece}"
        for source in SOURCES
        for line, piece in find_messages(nodes_of(CORE / source))
        if not is_read(piece, shown, quoted)
    ]
    assert unread == []


def test_the_messages_are_found():
    assert sum(len(list(find_messages(nodes_of(CORE / source)))) for source in SOURCES) > 300


@pytest.mark.parametrize(
    ("code", "piece"),
    [
        ('raise DataError(f"`{arg}` has {rows:,} rows too many.", arg=arg)', "rows too many."),
        ('errors.SpecError("a word more" if one else "some words more")', "some words more"),
        ('raise DataError(f"{a} is {b}.")', None),
        ('raise ValueError("of no interest here")', None),
        ("raise DataError(message)", None),
        ("raise DataError()", None),
    ],
)
def test_the_longest_piece_of_a_message_is_taken(code, piece):
    found = [piece for _, piece in find_messages(ast.walk(ast.parse(code)))]
    assert found == ([] if piece is None else [piece])


def test_a_message_is_read_where_words_of_it_stand_in_a_row():
    assert is_read("` of the data, which is not there", "", bare("data, which is"))
    assert is_read("is not there", bare("It `is` *not* there."), "")
    assert not is_read("is not there", bare("It is not"), bare("is not") + "|" + bare("there"))
    assert not is_read("is not there", "", bare("This not there"))
    assert is_read("nowhere else", "", bare("it is nowhere else."))
