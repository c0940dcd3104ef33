"""The batches that Keras' own `fit()` would take from rows, in its order, many of them in a call.

Keras' epoch iterator is asked itself. So pipelines and generators are read as often, and in the
same order, as by Keras: what they draw at random is the same. The iterator is private, see
`keras_private`; tested with Keras 3.15 on TensorFlow 2.21.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpukeras.backend.joined_batches import JoinedBatches, Pulled


class KerasBatches(JoinedBatches):
    """Epochs of batches. TensorFlow only.

    Args:
        model: The model, for its strategy.
        rows: Keras' arguments: `x`, `y`, `sample_weight`, `batch_size`, `steps_per_epoch`,
            `shuffle` and `class_weight`.
        resets: Whether each pass starts anew, as in an evaluation; a training does only once.

    Attributes:
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
        super().__init__(self._epochs._distributed_dataset.element_spec)
        self._resets, self.ran_out = resets, False
        self._epochs.reset()

    @property
    def count(self) -> int | None:
        """Batches of an epoch, or None while they are unknown."""
        return self._epochs.num_batches

    def epoch(self, most: Callable[[], int], number: int = 1) -> Generator[Pulled, None, None]:
        """Yields the batches of an epoch, several together: a structure of arrays, rows of each.

        A batch that is not joined comes as it is, without the number of its rows.

        Args:
            most: Returns the number of batches to take next.
            number: Not needed.
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
                taken = yield from self.pull(iterator, asked)
                done += taken
                if taken < asked:  # as Keras, which learns the end by a step too many
                    epochs._steps_seen -= asked - taken - 1
                    self.ran_out = True
                    raise StopIteration

    def nothing(self) -> Any:
        """Returns an iterator of such batches that has none."""
        return iter(self._epochs._distributed_dataset.take(0))

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
