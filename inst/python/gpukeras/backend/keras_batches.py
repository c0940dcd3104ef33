"""The batches that Keras' own `fit()` would take from rows, in its order, many of them in a call.

Keras' epoch iterator is asked itself. So pipelines and generators are read as often, and in the
same order, as by Keras: what they draw at random is the same. The iterator is private, see
`keras_private`; tested with Keras 3.15 on TensorFlow 2.21.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from gpukeras.backend import runtime

Pulled = tuple[Any, list[int]]


class KerasBatches:
    """Epochs of batches. TensorFlow only.

    Args:
        model: The model, for its strategy.
        rows: Keras' arguments: `x`, `y`, `sample_weight`, `batch_size`, `steps_per_epoch`,
            `shuffle` and `class_weight`.
        resets: Whether each pass starts anew, as in an evaluation; a training does only once.

    Attributes:
        spec: What a batch is, as TensorFlow's specs.
        joins: Whether several batches are taken together; if not, each is given as it is. Batches
            of unknown shape are joined until one has another shape than those before it.
        ran_out: Whether the last pass ended where Keras asks for a batch that is not there.

    Raises:
        ValueError: as Keras, for rows that it does not take.
    """

    def __init__(self, model: Any, rows: Mapping[str, Any], resets: bool = False) -> None:
        """Opens the iterator; of a Python generator it takes two batches, as Keras does."""
        from keras.src.backend.tensorflow.trainer import TFEpochIterator

        self._epochs = TFEpochIterator(
            **rows, distribute_strategy=model.distribute_strategy, steps_per_execution=1
        )
        self.spec = self._epochs._distributed_dataset.element_spec
        self._resets, self.joins, self.ran_out = resets, True, False
        self._epochs.reset()

    @property
    def count(self) -> int | None:
        """Batches of an epoch, or None while they are unknown."""
        return self._epochs.num_batches

    def epoch(self, most: Callable[[], int]) -> Generator[Pulled, None, None]:
        """Yields the batches of an epoch, several together: a structure of arrays, rows of each.

        A batch that is not joined comes as it is, without the number of its rows.

        Args:
            most: Returns the number of batches to take next.
        """
        epochs, done = self._epochs, 0
        if self._resets:
            epochs.reset()
        with epochs.catch_stop_iteration():
            steps = iter(epochs)
            while True:
                asked = self._count_next(most() if self.joins else 1, done)
                iterator = _take_steps(steps, asked)
                if iterator is None:
                    return
                taken = yield from self._pull(iterator, asked)
                done += taken
                if taken < asked:  # as Keras, which learns the end by a step too many
                    epochs._steps_seen -= asked - taken - 1
                    self.ran_out = True
                    raise StopIteration

    def nothing(self) -> Any:
        """Returns an iterator of such batches that has none."""
        return iter(self._epochs._distributed_dataset.take(0))

    def _pull(self, iterator: Any, count: int) -> Generator[Pulled, None, int]:
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
        arrays, sizes, other = self._pull_many(iterator, count)
        pack, rows = runtime.tensorflow().nest.pack_sequence_as, sizes.numpy().tolist()
        if rows:
            yield pack(self.spec, arrays), rows
        if not other:
            return len(rows)
        self.joins = not len(other[0])
        if not self.joins:
            yield pack(self.spec, other), []
        return len(rows) + (not self.joins)

    @cached_property
    def _pull_many(self) -> Callable[[Any, int], Any]:
        return _build_pull(self.spec)

    def _count_next(self, most: int, done: int) -> int:
        """Returns the batches to take: the last one before Keras' iterator learns of the end."""
        epochs = self._epochs
        asked = [most]
        if epochs.steps_per_epoch:
            asked.append(epochs.steps_per_epoch - done)
        if epochs._num_batches:
            goes_on = done or epochs.steps_per_epoch  # where the epoch before ended
            asked.append(epochs._num_batches - (epochs._steps_seen if goes_on else 0))
        return max(1, min(asked))


def _take_steps(steps: Iterator[Any], count: int) -> Any | None:
    """Takes steps of Keras' iterator, which counts them; returns the batches' own iterator."""
    iterator = None
    for _ in range(count):
        step = next(steps, None)
        if step is None:
            return iterator
        iterator = step[2]
    return iterator


def _build_pull(spec: Any) -> Callable[[Any, int], Any]:
    """Builds the function that takes up to so many batches of an iterator, one below the other.

    It returns the joined arrays and the rows of each batch. Where the spec does not tell the shape
    of a row, it stops at the first batch with another shape than those before it, and returns that
    too: arrays without rows if there was none.
    """
    tf = runtime.tensorflow()
    parts = tf.nest.flatten(spec)
    varies = any(None in part.shape[1:] for part in parts)

    def pull(iterator: Any, most: Any) -> tuple[list[Any], Any, list[Any]]:
        kept = [
            tf.TensorArray(
                part.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=part.shape
            )
            for part in parts
        ]
        sizes = tf.TensorArray(tf.int32, 0, dynamic_size=True)
        ranks = [len(part.shape) for part in parts]
        shapes = [tf.zeros([rank], tf.int32) for rank in ranks] if varies else []
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
                    tf.logical_or(done == 0, same),
                    lambda: keep(values),
                    lambda: (done, False, sizes, kept, shapes, values),
                )

            return tf.cond(
                item.has_value(), look, lambda: (done, False, sizes, kept, shapes, other)
            )

        variables = tf.constant(0), tf.constant(True), sizes, kept, shapes, other
        _, _, sizes, kept, _, other = tf.while_loop(
            lambda done, going, *_: tf.logical_and(going, done < most),
            take,
            variables,
            shape_invariants=_invariants(variables, [[None] * rank for rank in ranks], varies),
            parallel_iterations=1,
        )
        return [one.concat() for one in kept], sizes.stack(), other

    traced = tf.function(pull, autograph=False, reduce_retracing=True)
    return lambda iterator, most: traced(iterator, tf.constant(most))


def _invariants(variables: Any, open_shapes: list[list[None]], varies: bool) -> Any:
    """Returns the shapes of a loop's variables; the last are batches, of any shape."""
    tf = runtime.tensorflow()
    done, going, sizes, kept, shapes, _ = variables
    fixed = (done.shape, going.shape, tf.TensorShape(None), [tf.TensorShape(None) for _ in kept])
    other = [tf.TensorShape(shape) for shape in open_shapes] if varies else []
    return (*fixed, [shape.shape for shape in shapes], other)


@contextmanager
def unseen_generator() -> Iterator[None]:
    """Lends Keras its global random generator, which gpukeras copies, and takes it back unused.

    Keras makes it when it is first asked for, with a number that Python's `random` draws. A script
    would otherwise see other numbers after a training than after Keras' own.
    """
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    name = seed_generator.GLOBAL_SEED_GENERATOR
    if global_state.get_global_attribute(name) is not None:
        yield
        return
    before = random.getstate()
    lent = seed_generator.global_seed_generator()
    random.setstate(before)
    try:
        yield
    finally:
        if int(lent.state.numpy()[1]):  # the model's own step has drawn from it
            seed_generator.make_default_seed()
        elif global_state.get_global_attribute(name) is lent:
            global_state.set_global_attribute(name, None)
