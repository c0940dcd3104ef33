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
        joins: Whether several batches are taken together; if not, each is given as it is.
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

        The rows of a batch that is not joined count as 1.

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
                pulled = self._pull(iterator, asked)
                rows = [] if pulled is None else pulled[1]
                done += len(rows)
                if pulled is not None:
                    yield pulled
                if len(rows) < asked:  # as Keras, which learns the end by a step too many
                    epochs._steps_seen -= asked - len(rows) - 1
                    self.ran_out = True
                    raise StopIteration

    def nothing(self) -> Any:
        """Returns an iterator of such batches that has none."""
        return iter(self._epochs._distributed_dataset.take(0))

    def _pull(self, iterator: Any, count: int) -> Pulled | None:
        if not self.joins:
            item = iterator.get_next_as_optional()
            return (item.get_value(), [1]) if item.has_value() else None
        arrays, rows = self._pull_many(iterator, count)
        if not len(rows):
            return None
        return runtime.tensorflow().nest.pack_sequence_as(self.spec, arrays), rows.numpy().tolist()

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
    """Builds the function that takes up to so many batches of an iterator, one below the other."""
    tf = runtime.tensorflow()
    parts = tf.nest.flatten(spec)

    def pull(iterator: Any, most: Any) -> tuple[list[Any], Any]:
        kept = [
            tf.TensorArray(
                part.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=part.shape
            )
            for part in parts
        ]
        sizes = tf.TensorArray(tf.int32, 0, dynamic_size=True)

        def take(done: Any, _: Any, sizes: Any, *kept: Any) -> Any:
            item = iterator.get_next_as_optional()

            def keep() -> Any:
                values = tf.nest.flatten(item.get_value())
                written = [own.write(done, one) for own, one in zip(kept, values, strict=True)]
                return done + 1, True, sizes.write(done, tf.shape(values[0])[0]), *written

            return tf.cond(item.has_value(), keep, lambda: (done, False, sizes, *kept))

        begin = tf.constant(0), tf.constant(True), sizes, *kept
        _, _, sizes, *kept = tf.while_loop(
            lambda done, going, *_: tf.logical_and(going, done < most),
            take,
            begin,
            parallel_iterations=1,
        )
        return [one.concat() for one in kept], sizes.stack()

    traced = tf.function(pull, autograph=False, reduce_retracing=True)
    return lambda iterator, most: traced(iterator, tf.constant(most))


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
