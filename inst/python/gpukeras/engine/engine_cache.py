"""Engines that stay with their model from one training or evaluation to the next.

Tracing takes 0.1 to 0.5 s a time and compiling a second; and TensorFlow keeps every compiled
program until the process ends (10 MiB of a small model, TensorFlow 2.21). So what was traced is
taken again as long as nothing has changed that it was traced from. As with Keras' own functions,
a number inside a layer, such as the rate of a dropout, is part of the program: who changes it
compiles the model again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpukeras.backend import devices, keras_private
from gpukeras.engine.engines import Engines
from gpukeras.engine.optimizer import CLIPPING
from gpukeras.engine.train_step import NonFiniteMonitor, TrainingStep, step_counter

ATTRIBUTE = "_gpukeras_engines"  # on the model: they refer to it, and go with it


@dataclass(frozen=True, eq=False)
class CacheKey:
    """What programs were traced from.

    Args:
        values: Plain values.
        objects: Objects that are the same, or not.
    """

    values: tuple[Any, ...]
    objects: tuple[Any, ...]

    def equal(self, other: CacheKey) -> bool:
        """Whether the programs would be the same."""
        return (
            self.values == other.values
            and len(self.objects) == len(other.objects)
            and all(one is other for one, other in zip(self.objects, other.objects, strict=True))
        )


def open_engines(
    model: Any, kind: str, batch_size: int, device: str, step: TrainingStep | None = None
) -> Engines:
    """The engines of before where they still serve, or new ones; for arguments see `Engines`."""
    terms = _read_terms(model, kind, batch_size, device, step)
    kept = _kept(model)
    if kind in kept and kept[kind][0].equal(terms) and kept[kind][1].model is model:
        return kept[kind][1]
    engines = Engines(model, kind, batch_size, device, step)
    if step is None or not step.averaging:  # averages are of one training, and as large as weights
        kept[kind] = terms, engines
    return engines


def open_watch(model: Any) -> NonFiniteMonitor:
    """A model's watch, which has seen nothing; the one of before if its counter is the same."""
    kept, counter = _kept(model), step_counter(model)
    if "watch" in kept and kept["watch"][0] is counter:
        kept["watch"][1].reset()
    else:
        kept["watch"] = counter, NonFiniteMonitor(counter)
    return kept["watch"][1]


class _Kept(dict[str, tuple[Any, Any]]):
    """Not a plain dict: Keras would wrap that, and look for layers in it."""


def _kept(model: Any) -> _Kept:
    kept = vars(model).get(ATTRIBUTE)
    if kept is None:
        kept = _Kept()
        object.__setattr__(model, ATTRIBUTE, kept)
    return kept


def _read_terms(
    model: Any, kind: str, batch_size: int, device: str, step: TrainingStep | None
) -> CacheKey:
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    clipping = tuple(getattr(inner, name, None) for name in CLIPPING.values())
    microbatch_size = None if step is None else step.microbatch_size
    settings = devices.current(), model.jit_compile, model.run_eagerly
    own = getattr(model, f"{kind}_step")
    # Batch normalisation works otherwise when it is frozen, and may have no weights that tell.
    frozen = tuple(layer.trainable for layer in keras_private.list_layers(model))
    return CacheKey(
        (batch_size, microbatch_size, device, *settings, clipping, frozen),
        (
            getattr(own, "__func__", own),
            optimizer,
            keras_private.learning_rate(inner),
            keras_private.compiled_loss(model),
            keras_private.compiled_metrics(model),
            *(() if step is None else step.parts),
            *model.trainable_variables,
            *(variable.constraint for variable in model.trainable_variables),
            None,  # between what is trained and what is not
            *model.non_trainable_variables,
        ),
    )
