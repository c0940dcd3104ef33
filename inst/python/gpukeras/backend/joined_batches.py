"""Takes many batches of a tf.data iterator in one call, one below the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import cached_property
from typing import Any

from gpukeras.backend import runtime

Pulled = tuple[Any, list[int]]  # a structure of arrays, and the rows of each batch in them


class JoinedBatches(ABC):
    """The batches of an iterator, several together.

    Args:
        spec: What a batch is, as TensorFlow's specs.

    Attributes:
        spec: As given.
        joins: Whether several batches are taken together; if not, each is given as it is. Batches
            of unknown shape are joined until one has another shape than those before it.
    """

    def __init__(self, spec: Any) -> None:
        """Joins batches at first."""
        self.spec, self.joins = spec, True
        self._shapes: list[Any] | None = (
            None  # of the batches so far, where the spec leaves it open
        )

    @abstractmethod
    def epoch(self, most: Callable[[], int], number: int) -> Generator[Pulled, None, None]:
        """Yields the batches of an epoch, counted from 1; `most` gives how many to take next."""

    def abandon(self) -> None:  # noqa: B027 (most have nothing to do)
        """Called when an epoch was not read to its end."""

    def pull(self, iterator: Any, count: int) -> Generator[Pulled, None, int]:
        """Yields up to so many batches; returns their number."""
        taken = 0
        if self.joins:
            taken = yield from self._pull_joined(iterator, count)
            if self.joins:
                return taken
        while taken < count:
            item = iterator.get_next_as_optional()
            if not item.has_value():
                break
            taken += 1
            yield item.get_value(), []
        return taken

    def _pull_joined(self, iterator: Any, count: int) -> Generator[Pulled, None, int]:
        arrays, sizes, other, shapes = self._pull_many(iterator, count, self._shapes)
        self._shapes = shapes
        pack = runtime.reader().nest.pack_sequence_as
        rows = sizes.numpy().tolist()
        if rows:
            yield pack(self.spec, arrays), rows
        if not other:
            return len(rows)
        self.joins = not len(other[0])
        if not self.joins:
            yield pack(self.spec, other), []
        return len(rows) + (not self.joins)

    @cached_property
    def _pull_many(self) -> Callable[[Any, int, list[Any] | None], Any]:
        return _build_pull(self.spec)


def _build_pull(spec: Any) -> Callable[[Any, int, list[Any] | None], Any]:
    """Builds the function that takes up to so many batches of an iterator, one below the other.

    It returns the joined arrays and the rows of each batch. Where the spec does not tell the shape
    of a row, it stops at the first batch with another shape than those before it, and returns that
    too, arrays without rows if there was none, and the shapes, to be given in the next call.
    """
    tf = runtime.reader()
    parts = tf.nest.flatten(spec)
    varies = any(None in part.shape[1:] for part in parts)

    def pull(iterator: Any, most: Any, shapes: list[Any]) -> tuple[list[Any], ...]:
        kept = [
            tf.TensorArray(
                part.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=part.shape
            )
            for part in parts
        ]
        sizes = tf.TensorArray(tf.int32, 0, dynamic_size=True)
        nothing = [tf.zeros([0] * len(part.shape), part.dtype) for part in parts]

        def _take(done: Any, _: Any, sizes: Any, kept: Any, shapes: Any, other: Any) -> Any:
            item = iterator.get_next_as_optional()

            def keep(values: list[Any]) -> Any:
                written = [own.write(done, value) for own, value in zip(kept, values, strict=True)]
                rows = sizes.write(done, tf.shape(values[0])[0])
                shapes = [tf.shape(value) for value in values] if varies else []
                return done + 1, True, rows, written, shapes, other

            def look() -> Any:
                values = tf.nest.flatten(item.get_value())
                if not varies:
                    return keep(values)
                stop = done, False, sizes, kept, shapes, values
                return tf.cond(_have_shapes(values, shapes), lambda: keep(values), lambda: stop)

            stop = done, False, sizes, kept, shapes, other
            return tf.cond(item.has_value(), look, lambda: stop)

        other = nothing if varies else []
        variables = tf.constant(0), tf.constant(True), sizes, kept, shapes, other
        done, _, sizes, kept, shapes, other = tf.while_loop(
            lambda done, going, *_: tf.logical_and(going, done < most),
            _take,
            variables,
            shape_invariants=_invariants(variables),
            parallel_iterations=1,
        )
        if not varies:
            return [own.concat() for own in kept], sizes.stack(), other, shapes
        pairs = zip(kept, nothing, strict=True)  # TensorFlow does not join no batches
        joined = [tf.cond(done > 0, own.concat, lambda none=none: none) for own, none in pairs]
        return joined, sizes.stack(), other, shapes

    traced = tf.function(pull, autograph=False, reduce_retracing=True)
    unknown = [tf.fill([len(part.shape)], -1) for part in parts] if varies else []
    return lambda iterator, most, shapes: traced(iterator, tf.constant(most), shapes or unknown)


def _have_shapes(values: list[Any], shapes: list[Any]) -> Any:
    """Whether rows have these shapes, or the shapes are not known yet: -1."""
    tf = runtime.reader()
    pairs = zip(values, shapes, strict=True)
    same = [tf.reduce_all(tf.shape(value)[1:] == shape[1:]) for value, shape in pairs]
    return tf.logical_or(shapes[0][0] < 0, tf.reduce_all(same))


def _invariants(variables: Any) -> Any:
    """Returns the shapes of a loop's variables; the last are batches, of any shape."""
    tf = runtime.reader()
    done, going, _, kept, shapes, other = variables
    fixed = (done.shape, going.shape, tf.TensorShape(None), [tf.TensorShape(None) for _ in kept])
    batches = [tf.TensorShape([None] * len(shape.shape)) for shape in other]
    return (*fixed, [shape.shape for shape in shapes], batches)
