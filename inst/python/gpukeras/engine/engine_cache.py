"""Caches a model's engines from one training or evaluation to the next.

Tracing takes 0.1 to 0.5 s each time and compiling a second; and TensorFlow keeps every compiled
program until the process ends (10 MiB of a small model, TensorFlow 2.21). So engines are reused as
long as nothing has changed that they were traced from. As with Keras' own functions, a number
inside a layer, such as a dropout rate, is part of the program: after changing one, the user
compiles the model again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpukeras.backend import devices, keras_private, runtime
from gpukeras.core.keras_types import Model
from gpukeras.engine.engines import Engines
from gpukeras.engine.jax_engines import JaxEngines
from gpukeras.engine.optimizer import CLIPPING
from gpukeras.engine.train_step import NonFiniteMonitor, TrainingStep, step_counter

ENGINES: dict[str, Any] = {"tensorflow": Engines, "jax": JaxEngines}
ATTRIBUTE = "_gpukeras_engines"  # on the model: they refer to it, and live as long as it


@dataclass(frozen=True, eq=False)
class CacheKey:
    """The inputs that programs were traced from.

    Args:
        values: Plain values, compared by equality.
        objects: Objects, compared by identity.
    """

    values: tuple[Any, ...]
    objects: tuple[Any, ...]

    def equal(self, other: CacheKey) -> bool:
        """Whether the programs would be the same."""
        return (
            self.values == other.values
            and len(self.objects) == len(other.objects)
            and all(held is other for held, other in zip(self.objects, other.objects, strict=True))
        )


def open_engines(
    model: Model, kind: str, batch_size: int, device: str, step: TrainingStep | None = None
) -> Engines:
    """Returns cached engines where they are still valid, or new ones; see `Engines`.

    Args:
        model: See `Engines`.
        kind: See `Engines`.
        batch_size: See `Engines`.
        device: See `Engines`.
        step: See `Engines`.
    """
    terms = _read_terms(model, kind, batch_size, device, step)
    kept = kept_by(model)
    if kind in kept and kept[kind][0].equal(terms) and kept[kind][1].model is model:
        return kept[kind][1]
    engines = make_engines(model, kind, batch_size, device, step)
    if step is None or not step.averaging:  # averages are of one training, and as large as weights
        kept[kind] = terms, engines
    return engines


def make_engines(
    model: Model, kind: str, batch_size: int, device: str, step: TrainingStep | None = None
) -> Engines:
    """Returns new engines of the backend that Keras runs on; see `Engines`.

    Args:
        model: See `Engines`.
        kind: See `Engines`.
        batch_size: See `Engines`.
        device: See `Engines`.
        step: See `Engines`.
    """
    made: Engines = ENGINES[runtime.backend()](model, kind, batch_size, device, step)
    return made


def open_watch(model: Model) -> NonFiniteMonitor:
    """Returns a model's reset monitor; the cached one if its step counter is the same."""
    kept, counter = kept_by(model), step_counter(model)
    if "watch" in kept and kept["watch"][0] is counter:
        kept["watch"][1].reset()
    else:
        kept["watch"] = counter, NonFiniteMonitor(counter)
    return kept["watch"][1]


class _Kept(dict[str, tuple[Any, Any]]):
    """A dict subclass: Keras would wrap a plain dict, and look for layers in it."""


def kept_by(model: Model) -> _Kept:
    """Returns what is kept as long as a model lives: by kind, a key and what was made for it."""
    kept = vars(model).get(ATTRIBUTE)
    if kept is None:
        kept = _Kept()
        object.__setattr__(model, ATTRIBUTE, kept)
    return kept


def _read_terms(
    model: Model, kind: str, batch_size: int, device: str, step: TrainingStep | None
) -> CacheKey:
    optimizer = model.optimizer
    inner = keras_private.without_scaling(optimizer)
    clipping = tuple(getattr(inner, name, None) for name in CLIPPING.values())
    microbatch_size = None if step is None else step.microbatch_size
    settings = devices.current(), model.jit_compile, model.run_eagerly
    step_function = getattr(model, f"{kind}_step")
    # A frozen batch normalisation works differently, and may have no weights that show it.
    frozen = tuple(layer.trainable for layer in keras_private.list_layers(model))
    return CacheKey(
        (batch_size, microbatch_size, device, *settings, clipping, frozen),
        (
            getattr(step_function, "__func__", step_function),
            optimizer,
            keras_private.learning_rate(inner),
            keras_private.compiled_loss(model),
            keras_private.compiled_metrics(model),
            *(() if step is None else step.parts),
            *model.trainable_variables,
            *(variable.constraint for variable in model.trainable_variables),
            None,  # separates trainable from other variables
            *model.non_trainable_variables,
        ),
    )
