"""Makes Keras classes of bodies that are written without Keras.

A body is a plain class with `build()`, `call()` and `get_config()`. Keras is imported when the
first model needs one: then a body and Keras' own class become one class, registered as
"gpukeras>BodysName", under which a saved model names it. `registry.custom_objects()` registers all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gpukeras.backend import runtime

PACKAGE = "gpukeras"


class LayerBody:
    """A layer's own part; Keras' `Layer` gives the rest.

    Its arguments are plain data, and `FIELDS` names them: `get_config()` returns these attributes.
    """

    PARENT = "Layer"  # the class of Keras that a body extends
    FIELDS: tuple[str, ...] = ()
    add_weight: Any  # of keras.Layer, as are the next
    built: bool

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the layer as plain data."""
        inherited: dict[str, Any] = super().get_config()  # type: ignore[misc]
        return {**inherited, **{name: getattr(self, name) for name in self.FIELDS}}


@functools.cache
def keras_class(body: Any) -> Any:
    """Returns the registered Keras class of a body, the same one each time.

    Args:
        body: A class without Keras; its `PARENT` names the class of Keras that it extends.
    """
    keras = runtime.keras()
    bases = (body, getattr(keras, body.PARENT))
    made = type(body.__name__, bases, {"__module__": body.__module__, "__doc__": body.__doc__})
    return keras.saving.register_keras_serializable(PACKAGE)(made)


def register(bodies: Sequence[type]) -> dict[str, Any]:
    """Returns the registered classes of bodies by the names that a saved model has for them."""
    return {f"{PACKAGE}>{body.__name__}": keras_class(body) for body in bodies}
