"""Rules of labels by their kind, with the number of units that each has by its other fields."""

from gpukeras.data.recipe import targets

KINDS = {
    "class": targets.ClassLabel,
    "binary": targets.BinaryLabel,
    "number": targets.NumberLabel,
    "matrix": targets.MatrixLabel,
}


def label_rule(kind, units=1, levels=(), **more):
    if kind == "class":
        more["levels"] = levels
    if kind == "matrix":
        more.setdefault("shape", (units,))
    return KINDS[kind](**more)
