"""Python files as syntax trees, which several tests of the project read."""

import ast
import functools


@functools.cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path):
    """All nodes of a file, as `ast.walk()` gives them."""
    return list(ast.walk(parse(path)))


def functions_of(path):
    """The functions of a file, those of classes and of other functions too."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    return [node for node in nodes_of(path) if isinstance(node, kinds)]
