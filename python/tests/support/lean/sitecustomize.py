"""A faster start of the tests' child processes: Python imports this file by its name.

Keras and TensorFlow import three packages only to recognize their objects: half of the processor
time of their own import. Where Keras does not find them it goes on without them, as on computers
where they are not installed; all others that import them get them.
"""

import gc
import sys

# The package --> whose modules look for it in vain.
UNSEEN = {"jax": ("tensorflow.", "keras.src.callbacks."), "pandas": "keras.", "sklearn": "keras."}
# What carries an import out; rpytools is reticulate's.
IMPORTING = ("_frozen", "importlib", "rpytools")


class Unseen:
    """A finder that refuses a package to those who only look whether it is there."""

    def find_spec(self, name, path=None, target=None):
        if name in UNSEEN and importer().startswith(UNSEEN[name]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return


def importer():
    """The name of the module that imports."""
    frame = sys._getframe(2)
    while frame and frame.f_globals.get("__name__", "").startswith(IMPORTING):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame else ""


sys.meta_path.insert(0, Unseen())
# Of the many objects of an import none is garbage.
gc.set_threshold(20_000, 20, 20)
