"""Maps the name of an op to the layer that made it.

Keras opens a name scope twice per call of a layer (Keras 3: once to build, once to call), and
TensorFlow appends a number to names that are taken. So the ops of the layers "dense" and "dense_1"
are in the scopes "dense_1" and "dense_1_2". This module replays the numbering to match scopes with
layers.

On JAX a scope has its layer's name, without a number and without the model's name, in the brackets
of JAX's transformations: "jit(step)/transpose(jvp(dense_1))/dot_general".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

NUMBERED = re.compile(r"^(.+)_\d+$")
# A function's ops are prefixed with the op that calls it: "while/body/_1/" and then their full
# name.
INLINED = re.compile(r"/(?:body|cond|then|else)/_\d+/|^(?:Stateful)?PartitionedCall(?:_\d+)?/")
IMPLEMENTATION = re.compile(r"^_(?:Mkl)?(?:Native)?")
BACKWARD = {"gradient_tape", "gradients"}
ANY_MODEL = "model()"  # in place of the model's name, which JAX's scopes lack
JITTED = re.compile(r"^(?:jit\(\w*\)/)?(?:(?:while|body|closed_call|cond|branch_\w+)/)*")
TRANSFORMED = re.compile(r"^(transpose\()?jvp\((\w+)\)+/(.+)$")
ENTERED = (2, 1, 3)  # how often a scope may be entered per call, the likeliest first


@dataclass
class Node:
    """A layer with its inner layers.

    Args:
        name: Its name.
        path: Its names from the model down, joined by "/".
        inner: Its inner layers by name, in the order of their calls.
        scopes: The layer of each scope found in it, filled by `settle()`.
    """

    name: str
    path: str
    inner: dict[str, Node] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)


def from_jax(name: str) -> str:
    """Returns the name of JAX's op as TensorFlow would build it; other names as they are.

    Args:
        name: Such as "jit(step)/while/body/transpose(jvp(dense))/dot_general".
    """
    if not name.startswith("jit("):
        return name
    inner = JITTED.sub("", name)
    match = TRANSFORMED.match(inner)
    if match is None:
        return inner
    way = "gradient_tape/" if match[1] else ""
    return f"{way}{ANY_MODEL}/{match[2]}/{match[3]}"


def build_tree(paths: Iterable[str]) -> dict[str, Node]:
    """Returns the trees of layers for paths such as "model/inner/dense", by the models' names."""
    roots: dict[str, Node] = {}
    for path in paths:
        level, above = roots, ""
        for name in path.split("/"):
            above = f"{above}/{name}" if above else name
            level = level.setdefault(name, Node(name, above)).inner
    return roots


def settle(roots: dict[str, Node], scopes: Iterable[str]) -> None:
    """Assigns each scope to its layer, from the names of all ops in a trace."""
    paths = [scope.split("/") for scope in scopes]
    for root in roots.values():
        reached = [parts[at + 1 :] for parts in paths if (at := _find_root(root, parts)) >= 0]
        _settle_node(root, reached, any(ANY_MODEL in parts for parts in paths))


def _settle_node(node: Node, paths: Sequence[Sequence[str]], exact: bool) -> None:
    seen = {parts[0] for parts in paths if len(parts) > 1}  # the last part is the op itself
    own = {name: name for name in node.inner}
    node.scopes = own if exact else assign_scopes(list(node.inner), seen)
    for name, child in node.inner.items():
        inner = [p[1:] for p in paths if p and node.scopes.get(p[0]) == name]
        _settle_node(child, inner, exact)


def assign_scopes(layers: Sequence[str], seen: Iterable[str]) -> dict[str, str]:
    """Returns the layer that made each scope; scopes outside all layers are left out.

    Args:
        layers: The layers' names in the order of their calls.
        seen: The scopes' names.
    """
    seen = set(seen)
    guesses = [_play(layers, times) for times in ENTERED]
    best = max(guesses, key=lambda guess: len(seen & guess.keys()))
    assigned = {scope: layer for scope, layer in best.items() if scope in seen}
    names = set(layers)
    for scope in (
        seen - assigned.keys()
    ):  # further calls of a shared layer, or another order of calls
        match = NUMBERED.match(scope)
        layer = scope if scope in names else match[1] if match else ""
        if layer in names:
            assigned[scope] = layer
    return assigned


def _play(layers: Sequence[str], times: int) -> dict[str, str]:
    """Returns the scope of each layer's ops if Keras entered it `times` times per call."""
    used: dict[str, int] = {}
    made = {}
    for layer in layers:
        for _ in range(times):
            scope = _take_name(layer, used)
        made[scope] = layer
    return made


def _take_name(name: str, used: dict[str, int]) -> str:
    """Returns the name that TensorFlow's `Graph.unique_name()` would return."""
    number = used.get(name.lower(), 0)
    used[name.lower()] = number + 1
    if not number:
        return name
    while f"{name}_{number}".lower() in used:
        number += 1
    used[f"{name}_{number}".lower()] = 1
    return f"{name}_{number}"


def find_layer(roots: dict[str, Node], scope: str) -> str:
    """Returns the path of the innermost layer whose scope contains an op, or ""."""
    parts = scope.split("/")
    for root in roots.values():
        at = _find_root(root, parts)
        if at >= 0:
            return _descend(root, parts[at + 1 : -1])
    return ""


def _find_root(root: Node, parts: Sequence[str]) -> int:
    for at, part in enumerate(parts[:-1]):
        if part in (root.name, ANY_MODEL) or (
            part.startswith(root.name) and _is_numbered(part, root.name)
        ):
            return at
    return -1


def _is_numbered(part: str, name: str) -> bool:
    match = NUMBERED.match(part)
    return match is not None and match[1] == name


def _descend(node: Node, parts: Sequence[str]) -> str:
    for part in parts:
        if part not in node.scopes:
            break
        node = node.inner[node.scopes[part]]
    return node.path


def is_backward(scope: str) -> bool:
    """Whether an op computes gradients."""
    return not BACKWARD.isdisjoint(scope.split("/"))


def shorten(scope: str) -> str:
    """Returns an op's name without the loops around it, which repeat the name; for display."""
    inner = INLINED.split(scope)[-1]
    inner = inner.replace(f"{ANY_MODEL}/", "", 1)
    return inner.replace("gradient_tape/while/", "gradient_tape/", 1).removeprefix("while/")


def shorten_type(kind: str) -> str:
    """Returns an op's type without its backend: "FusedMatMul" for "_MklNativeFusedMatMul"."""
    return IMPLEMENTATION.sub("", kind)
