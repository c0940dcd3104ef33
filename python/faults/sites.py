"""Where the core can be given a small fault, and the source with that fault in it."""

from __future__ import annotations

import ast
import itertools
import random
from dataclasses import dataclass
from pathlib import Path

TURNED = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

# Calls that mean the same with their arguments swapped, or that any test finds.
UNSWAPPED = {"max", "min", "suppress", "isinstance", "issubclass"}


@dataclass(frozen=True)
class Fault:
    """One change of one place: `old` of a file becomes `new`.

    `line` and `column` are those of the place, and `end` is the last line of its statement, from 1;
    `start` and `stop` are offsets of the place in the file's bytes. `on_import` is whether it
    counts when the file is imported, as a constant or a default.
    """

    file: str
    kind: str
    line: int
    column: int
    end: int
    start: int
    stop: int
    old: str
    new: str
    on_import: bool = False

    def apply(self, source: bytes) -> bytes:
        """The file's source with the fault in it.

        Raises:
            ValueError: The file no longer has `old` in that place.
        """
        if source[self.start : self.stop] != self.old.encode():
            raise ValueError(f"{self.file} has changed at line {self.line}.")
        return source[: self.start] + self.new.encode() + source[self.stop :]

    def describe(self) -> str:
        """The place and the change, on one line."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}:{self.line}:{self.column} {self.kind}: {old[:60]} -> {new[:60]}"


class Finder(ast.NodeVisitor):
    """Collects what may be faults of one file; not each of them can be parsed."""

    def __init__(self, file: str, source: str) -> None:
        """Visits the source of a file."""
        self.file = file
        self.source = source.encode()
        self.faults: list[Fault] = []
        self.statement: ast.stmt | None = None
        self.functions = 0  # around the statement
        lengths = [len(line) for line in self.source.splitlines(keepends=True)]
        self.begins = [sum(lengths[:index]) for index in range(len(lengths))]
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        """Visits a node, and remembers its statement."""
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        outer, self.statement = self.statement, node
        inner = isinstance(outer, FUNCTIONS)
        self.functions += inner
        if not is_inert(node):
            super().visit(node)
        self.functions -= inner
        self.statement = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:  # noqa: N802
        """Leaves out the decorators: a dataclass that is not frozen runs as one that is."""
        for statement in node.body:
            self.visit(statement)

    def visit_Compare(self, node: ast.Compare) -> None:  # noqa: N802 - the name that ast calls
        """Turns the first comparison of a chain."""
        operator = TURNED[type(node.ops[0])]
        left, right = self.text(node.left), self.text(node.comparators[0])
        self.add("comparison", node.left, f"{left} {operator} {right}", node.comparators[0])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:  # noqa: N802
        """Moves a number, and turns a truth value."""
        if isinstance(node.value, bool):
            self.add("constant", node, str(not node.value))
        elif isinstance(node.value, int | float):
            self.add("constant", node, f"({self.text(node)} + 1)")

    def visit_If(self, node: ast.If) -> None:  # noqa: N802
        """Never takes a branch."""
        self.add("branch", node.test, "False")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:  # noqa: N802
        """Never takes the first value of a conditional expression."""
        self.add("branch", node.test, "False")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:  # noqa: N802
        """Drops the last condition of several."""
        self.add("branch", node.values[-1], str(isinstance(node.op, ast.And)))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:  # noqa: N802
        """Swaps the first two positional arguments of a call."""
        name = self.text(node.func).rpartition(".")[2]
        starred = any(isinstance(each, ast.Starred) for each in node.args[:2])
        if len(node.args) > 1 and not starred and name not in UNSWAPPED:
            first, second = self.text(node.args[0]), self.text(node.args[1])
            if first != second:
                self.add("argument", node.args[0], f"{second}, {first}", node.args[1])
        self.generic_visit(node)

    def text(self, node: ast.expr) -> str:
        """The source of an expression, as its parentheses were."""
        start, stop = self.span(node, node)
        return self.source[start:stop].decode()

    def span(self, first: ast.expr, last: ast.expr) -> tuple[int, int]:
        """The offsets of the bytes from one expression to another, both included."""
        if last.end_lineno is None or last.end_col_offset is None:
            raise TypeError("ast.parse() gives each expression its end.")
        start = self.begins[first.lineno - 1] + first.col_offset
        return start, self.begins[last.end_lineno - 1] + last.end_col_offset

    def add(self, kind: str, first: ast.expr, new: str, last: ast.expr | None = None) -> None:
        """Keeps a fault."""
        start, stop = self.span(first, last or first)
        statement = self.statement or first
        fault = Fault(
            file=self.file,
            kind=kind,
            line=first.lineno,
            column=first.col_offset + 1,
            end=statement.end_lineno or first.lineno,
            start=start,
            stop=stop,
            old=self.source[start:stop].decode(),
            new=new,
            on_import=not self.functions,
        )
        if fault.old != fault.new:
            self.faults.append(fault)


def is_inert(node: ast.stmt) -> bool:
    """Whether a statement does nothing when the core runs: imports for types, texts, errors."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Raise)


def find_faults(core: Path) -> list[Fault]:
    """What may be faults of the files in a folder, by file and place."""
    files = {path.relative_to(core).as_posix(): path for path in sorted(core.rglob("*.py"))}
    return [
        fault
        for file, path in files.items()
        for fault in Finder(file, path.read_text("utf-8")).faults
    ]


def can_parse(source: bytes) -> bool:
    """Whether Python can read a source."""
    try:
        ast.parse(source)
    except SyntaxError:  # parentheses around one side of a comparison
        return False
    return True


def draw_faults(core: Path, number: int, seed: int, only: str = "") -> list[Fault]:
    """A sample of the faults of a folder's files, in the order in which they are drawn.

    Each package has its share of the sample, and at least one.

    Args:
        core: The folder.
        number: How many to draw.
        seed: The same seed draws the same faults of the same source.
        only: What the names of the files begin with, such as "data/".
    """
    faults = [fault for fault in find_faults(core) if fault.file.startswith(only)]
    chance = random.Random(seed)  # noqa: S311 - a sample, no secret
    chance.shuffle(faults)
    packages: dict[str, list[Fault]] = {}
    for fault in faults:
        packages.setdefault(fault.file.partition("/")[0], []).append(fault)
    drawn: list[Fault] = []
    for package in sorted(packages):
        share = max(1, round(number * len(packages[package]) / len(faults)))
        good = (
            fault
            for fault in packages[package]
            if can_parse(fault.apply((core / fault.file).read_bytes()))
        )
        drawn += itertools.islice(good, share)
    chance.shuffle(drawn)
    return drawn[:number]
