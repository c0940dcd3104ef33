"""Takes many batches of a tf.data iterator in one call, one below the other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cached_property
from typing import Any

from gpukeras.backend import runtime

Pulled = tuple[Any, list[int]]  # a structure of arrays, and the rows of each batch in them


class JoinedBatches:
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

    def abandon(self) -> None:
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
        arrays, sizes, other, self._shapes = self._pull_many(iterator, count, self._shapes)
        pack, rows = runtime.reader().nest.pack_sequence_as, sizes.numpy().tolist()
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
        ranks = [len(part.shape) for part in parts]
        other = [tf.zeros([0] * r, p.dtype) for r, p in zip(ranks, parts, strict=True)]
        other = other if varies else []

        def take(done: Any, _: Any, sizes: Any, kept: Any, shapes: Any, other: Any) -> Any:
            item = iterator.get_next_as_optional()

            def keep(values: list[Any]) -> Any:
                written = [own.write(done, one) for own, one in zip(kept, values, strict=True)]
                found = [tf.shape(one) for one in values] if varies else []
                rows = sizes.write(done, tf.shape(values[0])[0])
                return done + 1, True, rows, written, found, other

            def look() -> Any:
                values = tf.nest.flatten(item.get_value())
                if not varies:
                    return keep(values)
                same = tf.reduce_all(
                    [
                        tf.reduce_all(tf.shape(one)[1:] == shape[1:])
                        for one, shape in zip(values, shapes, strict=True)
                    ]
                )
                return tf.cond(
                    tf.logical_or(shapes[0][0] < 0, same),
                    lambda: keep(values),
                    lambda: (done, False, sizes, kept, shapes, values),
                )

            return tf.cond(
                item.has_value(), look, lambda: (done, False, sizes, kept, shapes, other)
            )

        variables = tf.constant(0), tf.constant(True), sizes, kept, shapes, other
        done, _, sizes, kept, shapes, other = tf.while_loop(
            lambda done, going, *_: tf.logical_and(going, done < most),
            take,
            variables,
            shape_invariants=_invariants(variables, [[None] * rank for rank in ranks], varies),
            parallel_iterations=1,
        )
        if varies:  # nothing cannot be joined where lengths are open
            empty = [lambda one=one: tf.zeros_like(one[:0]) for one in other]
            joined = [tf.cond(done > 0, own.concat, e) for own, e in zip(kept, empty, strict=True)]
        else:
            joined = [own.concat() for own in kept]
        return joined, sizes.stack(), other, shapes

    traced = tf.function(pull, autograph=False, reduce_retracing=True)
    unknown = [tf.fill([len(part.shape)], -1) for part in parts] if varies else []
    return lambda iterator, most, shapes: traced(iterator, tf.constant(most), shapes or unknown)


def _invariants(variables: Any, open_shapes: list[list[None]], varies: bool) -> Any:
    """Returns the shapes of a loop's variables; the last are batches, of any shape."""
    tf = runtime.reader()
    done, going, sizes, kept, shapes, _ = variables
    fixed = (done.shape, going.shape, tf.TensorShape(None), [tf.TensorShape(None) for _ in kept])
    other = [tf.TensorShape(shape) for shape in open_shapes] if varies else []
    return (*fixed, [shape.shape for shape in shapes], other)
