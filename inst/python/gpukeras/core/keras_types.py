"""Protocols of the parts of Keras' classes that gpukeras uses; Keras itself has no types.

What has no type in TensorFlow and Keras (tensors, layers of many kinds) stays `Any`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

# What Keras and the backends raise where they cannot do something with a model: give its
# configuration, build it, or trace it.
REFUSALS = (ValueError, TypeError, NotImplementedError, AttributeError)


class Variable(Protocol):
    """A variable of Keras; `value` is TensorFlow's."""

    name: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    constraint: Any
    regularizer: Any
    value: Any

    def assign(self, value: Any) -> Any:
        """Sets the value."""

    def numpy(self) -> Any:
        """Returns the value as a NumPy array."""


class Optimizer(Protocol):
    """An optimizer of Keras."""

    name: str
    built: bool
    learning_rate: Any
    iterations: Any
    variables: list[Variable]
    apply: Any
    scale_loss: Any
    apply_gradients: Any
    get_config: Any  # also assigned, while a schedule is held

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Returns an optimizer with the arguments that `get_config()` gave."""

    def build(self, variables: Any) -> None:
        """Creates the optimizer's variables for those of a model."""


class Model(Protocol):
    """A model of Keras; its own class may be the user's."""

    name: str
    built: bool
    compiled: bool
    run_eagerly: bool
    jit_compile: Any
    stop_training: bool
    stop_evaluating: bool
    steps_per_execution: int
    optimizer: Any
    loss: Any
    metrics: list[Any]
    metrics_variables: list[Variable]
    layers: list[Any]
    inputs: Any
    input: Any
    input_shape: Any
    output: Any
    outputs: Any
    output_names: list[str]
    dtype_policy: Any
    history: Any
    variables: list[Variable]
    trainable_variables: list[Variable]
    non_trainable_variables: list[Variable]
    weights: list[Variable]
    trainable_weights: list[Variable]
    non_trainable_weights: list[Variable]
    train_function: Any
    test_function: Any
    predict_function: Any
    call: Any
    compute_loss: Any
    train_step: Any
    predict_step: Any
    make_train_function: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model on a batch."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Sets optimizer, loss and metrics."""

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Computes loss and metrics."""

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Creates the variables."""

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Writes a `.keras` file."""

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Writes the model for serving."""

    def get_weights(self) -> list[Any]:
        """Returns the variables' values."""

    def set_weights(self, weights: list[Any]) -> None:
        """Sets the variables' values."""

    def count_params(self) -> int:
        """Returns the number of weights."""

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config()` takes."""

    def get_compile_config(self) -> Mapping[str, Any] | None:
        """Returns what `compile_from_config()` takes."""

    def get_build_config(self) -> Mapping[str, Any] | None:
        """Returns the input shapes that the model was built with."""

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns the metrics' values by name."""

    def reset_metrics(self) -> None:
        """Resets the metrics."""

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates the metrics, and returns their values."""

    def make_predict_function(self) -> None:
        """Makes the function that `predict_on_batch()` calls, unless it is there."""

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the predictions of a batch."""

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Trains on a batch."""

    def stateless_call(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model with given values of its variables."""
