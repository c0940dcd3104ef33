"""Wraps every private attribute of Keras and TensorFlow that gpukeras uses.

Tested with Keras 3.15 on TensorFlow 2.21; most of it, when it was in other modules, also with Keras
3.10 and 3.12 on TensorFlow 2.19 and 2.20. Ruff's SLF001 forbids private attributes everywhere else,
so the tests of this module cover a new version of Keras.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpukeras.core.attributes import replaced

# Names for `vars()`; with setattr() Keras would track the value.
LEARNING_RATE, VARIABLE_KEY, APPLY = "_learning_rate", "_var_key", "_tf_apply"
COMPILED_LOSS, COMPILED_METRICS = "_compile_loss", "_compile_metrics"


# Models and layers -------------------------------------------------------------------------------


def list_layers(layer: Any, include_self: bool = True, recursive: bool = True) -> list[Any]:
    """Returns a layer's layers at any depth, or those just below it.

    Args:
        layer: The layer.
        include_self: Whether the layer itself is included.
        recursive: Whether layers at any depth are included.
    """
    return list(layer._flatten_layers(include_self=include_self, recursive=recursive))


def has_layers(layer: Any) -> bool:
    """Whether a layer holds other layers."""
    return bool(getattr(layer, "_layers", None))


def own_trainable(layer: Any) -> list[Any]:
    """Returns the trainable variables of a layer, without those of its inner layers."""
    return list(layer._trainable_variables)


def list_seed_generators(layer: Any) -> list[Any]:
    """Returns a layer's own random generators."""
    return list(layer._seed_generators)


def own_metrics(layer: Any) -> list[Any]:
    """Returns the metrics that a layer holds itself, besides those of `compile()`."""
    return list(layer._metrics)


def mask_of(tensor: Any) -> Any | None:
    """Returns the mask that Keras has attached to a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def takes_training(model: Any) -> bool:
    """Whether a model's `call()` has the argument `training`."""
    return bool(model._call_has_training_arg)


def build_symbolically(model: Any, batch: tuple[Any, ...]) -> None:
    """Builds a compiled model, its metrics and losses, as Keras' JAX trainer does."""
    model._symbolic_build(data_batch=batch)


def build_layers(model: Any, features: Any) -> None:
    """Creates the variables of a model that was not called yet, as Keras' JAX trainer does."""
    if all(layer.built for layer in list_layers(model)):
        return
    import keras
    from keras.src.backend import compute_output_spec

    symbols = keras.tree.map_structure(
        lambda each: keras.KerasTensor(each.shape, keras.backend.standardize_dtype(each.dtype)),
        features,
    )
    training = {"training": False} if takes_training(model) else {}
    compute_output_spec(model, symbols, **training)


def session_code_scope() -> Any:
    """Returns a context in which Keras makes layers of this session's code, such as lambdas.

    Keras' safe mode, which refuses that, is for files. Its public switch is for the whole session.
    """
    from keras.src.saving.serialization_lib import SafeModeScope

    return SafeModeScope(False)


def read_build_shapes(model: Any) -> dict[str, Any]:
    """Returns the input shapes that a model was built with, if Keras stores them."""
    return dict(getattr(model, "_build_shapes_dict", None) or {})


def forget_losses(model: Any) -> None:
    """Drops losses that layers have added: tensors of a graph that no longer exists."""
    model._clear_losses()


def initial_epoch(model: Any) -> int | None:
    """Returns the epoch at which BackupAndRestore makes `fit()` begin, or None."""
    return getattr(model, "_initial_epoch", None)  # a stack of models has none


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Sets the epoch that `initial_epoch()` returns."""
    model._initial_epoch = epoch


def epoch_logs(model: Any, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model's metrics, or the logs of its last step if that has others."""
    metrics = dict(model.get_metrics_result())
    return metrics if not logs or logs.keys() == metrics.keys() else dict(logs)


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs as callbacks get them: sorted by name, tensors of one number as floats."""
    from keras.src.utils import python_utils

    plain: dict[str, Any] = python_utils.pythonify_logs(logs)
    return plain


def strategy_of(model: Any) -> Any | None:
    """Returns TensorFlow's strategy in whose scope a model was made, or None."""
    return getattr(model, "_distribute_strategy", None)


def flatten_logs(model: Any, logs: Mapping[str, Any]) -> Any:
    """Returns what `evaluate()` returns without `return_dict`: a number, or a list of them."""
    return model._flatten_metrics_in_order(logs)


def row_orders(model: Any, rows: int) -> Callable[[], Any]:
    """Returns a function that draws the next epoch's order of rows as `fit()` of arrays does.

    On TensorFlow Keras shuffles row numbers in a tf.data pipeline. The operation's seed comes from
    the session's and from its place in the pipeline's graph, so the orders are those of `fit()` if
    the same pipeline makes them. Elsewhere it draws a permutation of NumPy's global generator, and
    one more before the first epoch, for a batch to build a model, losses and metrics from.

    Args:
        model: The model, not yet built if it is not.
        rows: Number of rows.

    Returns:
        A function without arguments that returns the numbers from 0 to `rows` - 1, in an order.
    """
    import keras
    import numpy as np
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    if keras.backend.backend() != "tensorflow":
        if not is_ready(model):
            np.random.permutation(rows)
        return lambda: np.random.permutation(rows)
    adapter = ArrayDataAdapter(np.arange(rows), batch_size=rows, shuffle=True)
    pipeline = adapter.get_tf_dataset()
    return lambda: np.asarray(next(iter(pipeline)))


def is_ready(model: Any) -> bool:
    """Whether the layers, losses and metrics of a compiled model are built."""
    parts = (*list_layers(model), model._compile_loss, model._compile_metrics)
    return all(part is None or part.built for part in parts)


# Graphs of layers --------------------------------------------------------------------------------


def calls_of(layer: Any) -> list[list[Any]]:
    """Returns the symbolic tensors of each call of a layer, or of an operation."""
    return [list(node.input_tensors) for node in layer._inbound_nodes]


def origin_of(tensor: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the operation that made a symbolic tensor, and the arguments of that call."""
    operation, place, _ = tensor._keras_history
    return operation, tuple(operation._inbound_nodes[place].arguments.args)


def functional_class() -> Any:
    """Returns the class that `keras.Model(inputs, outputs)` makes."""
    from keras.src.models.functional import Functional

    return Functional


def functional_of(model: Any) -> Any | None:
    """Returns the functional model behind a built sequential one; None for other models."""
    return getattr(model, "_functional", None)


def is_sequential_like(model: Any) -> bool:
    """Whether a model may have a functional one behind it."""
    return hasattr(model, "_functional")


def runs_through_graph(model: Any) -> bool:
    """Whether a model can be called by following its graph of layers."""
    return hasattr(model, "_run_through_graph")


def gives_dict(model: Any) -> bool:
    """Whether a model gives its outputs as a dict; a class that makes them in code may do so."""
    return isinstance(getattr(model, "_outputs_struct", {}), dict)


def has_nodes(model: Any) -> bool:
    """Whether a model records the calls of its layers."""
    return hasattr(model, "_nodes_by_depth")


def list_nodes(graph: Any) -> Iterator[Any]:
    """Yields the calls of a graph's layers, each after those that it depends on; inputs first."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        yield from graph._nodes_by_depth[depth]


def list_operations(graph: Any) -> list[Any]:
    """Returns the layers and operations of a graph, in order; none for other models."""
    return list(getattr(graph, "_operations", ()))


# Losses and metrics ------------------------------------------------------------------------------


def compiled_loss(model: Any) -> Any | None:
    """Returns the object that computes a compiled model's losses, or None."""
    return getattr(model, COMPILED_LOSS, None)


def compiled_metrics(model: Any) -> Any | None:
    """Returns the object that computes a compiled model's metrics, or None."""
    return getattr(model, COMPILED_METRICS, None)


def given_losses(compiled: Any | None) -> tuple[Any, Any]:
    """Returns losses and loss weights as they were passed to `compile()`."""
    if compiled is None:
        return None, None
    return compiled._user_loss, compiled._user_loss_weights


def given_metrics(compiled: Any | None) -> tuple[Any, Any]:
    """Returns metrics and weighted metrics as they were passed to `compile()`."""
    if compiled is None:
        return None, None
    return compiled._user_metrics, compiled._user_weighted_metrics


def metric_directions(model: Any) -> dict[str, str]:
    """Returns "up" or "down" for each metric of a model that says which values are better."""
    directions = {}
    for metric in model.metrics:
        # The metrics of compile() are one that has others.
        for part in getattr(metric, "metrics", [metric]):
            direction = getattr(part, "_direction", None)
            if direction in ("up", "down"):
                directions[part.name] = direction
    return directions


def compute_loss(model: Any, **arguments: Any) -> Any:
    """Returns a model's loss on a batch; the user may override `compute_loss()`."""
    return model._compute_loss(**arguments)


def passing_training(model: Any) -> AbstractContextManager[None]:
    """A context in which Keras tells `compute_loss()` whether it is of a training."""
    return replaced(model, _compute_loss_has_training_arg=True)


def loss_tracker(model: Any) -> Any:
    """Returns the metric that averages a model's loss over an epoch."""
    return model._loss_tracker


def wrapped_function(metric: Any) -> Any | None:
    """Returns the function whose values a metric averages, or None."""
    return getattr(metric, "_fn", None)


def list_losses(compiled: Any | None) -> list[Any]:
    """Returns the losses of a compiled model that was built."""
    return [each.loss for each in getattr(compiled, "_flat_losses", None) or ()]


def loss_options(loss: Any) -> Mapping[str, Any]:
    """Returns the arguments that a loss passes to its function."""
    return getattr(loss, "_fn_kwargs", {})


# Optimizers --------------------------------------------------------------------------------------


def step_count(optimizer: Any) -> Any:
    """Returns an optimizer's step counter, which includes steps that only accumulate gradients."""
    return optimizer._iterations


@contextmanager
def lend_variables(optimizer: Any, variables: Sequence[Any]) -> Iterator[None]:
    """A context in which an optimizer's variables include others, as the last ones."""
    own = optimizer._variables
    lent = {id(variable) for variable in variables}
    optimizer.__dict__["_variables"] = [*own, *variables]
    try:
        yield
    finally:
        made = [variable for variable in optimizer._variables if id(variable) not in lent]
        own.extend(variable for variable in made if all(variable is not old for old in list(own)))
        optimizer.__dict__["_variables"] = own


def learning_rate(optimizer: Any) -> Any:
    """Returns an optimizer's rate: a variable, a schedule or a function; None if it has none."""
    return getattr(optimizer, LEARNING_RATE, None)


def without_scaling(optimizer: Any) -> Any:
    """Returns the optimizer that updates weights: the inner one of a LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def scales_loss(optimizer: Any) -> bool:
    """Whether an optimizer is a LossScaleOptimizer, as `compile()` makes under mixed_float16."""
    return hasattr(optimizer, "inner_optimizer")


def inner_optimizers(optimizer: Any) -> Sequence[Any]:
    """Returns the optimizers of a MultiOptimizer; none for other optimizers."""
    return getattr(optimizer, "_inner_optimizers", [])


def is_left_out_of_decay(optimizer: Any, variable: Any) -> bool:
    """Whether a variable was excluded from an optimizer's weight decay, which no setting tells."""
    if not hasattr(optimizer, "_exclude_from_weight_decay"):
        return False
    # From Keras 3.16 on the other method wants an optimizer that is built.
    excluded = getattr(optimizer, "_is_excluded_from_weight_decay", None)
    return excluded(variable) if excluded else not optimizer._use_weight_decay(variable)


def copy_exclusions(optimizer: Any, other: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Excludes from an optimizer's weight decay what another one excludes.

    Args:
        optimizer: The other one.
        other: The optimizer, which is not built yet.
        pairs: Variables of the other one's model, and those that this one has for them.
    """
    if hasattr(optimizer, "_exclude_from_weight_decay"):
        pattern = optimizer._exclude_from_weight_decay_pattern
        chosen = [copy for own, copy in pairs if is_left_out_of_decay(optimizer, own)]
        other.exclude_from_weight_decay(chosen, pattern and [pattern.pattern])


def variable_key(optimizer: Any) -> Callable[[Any], Any]:
    """Returns the function that finds a variable's index in an optimizer."""
    return optimizer._var_key


def knows_others(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Whether an optimizer was built for variables, none of which is among these."""
    built = bool(optimizer._trainable_variables_indices)
    return built and not any(knows_variable(optimizer, variable) for variable in variables)


def knows_variable(optimizer: Any, variable: Any) -> bool:
    """Whether a built optimizer was built with a variable."""
    return find_slot(optimizer, variable) is not None


def find_slot(optimizer: Any, variable: Any) -> int | None:
    """Returns a variable's index in an optimizer; None where it was not built with it."""
    return optimizer._trainable_variables_indices.get(optimizer._var_key(variable))


def common_apply(optimizer: Any) -> Callable[..., Any]:
    """Returns the LossScaleOptimizer's way to apply gradients on backends without strategies."""
    return optimizer._common_apply


def tensorflow_functions() -> Any:
    """Returns Keras' functions on tensors of TensorFlow, whatever its backend."""
    from keras.src.backend import tensorflow

    return tensorflow


# TensorFlow --------------------------------------------------------------------------------------


def is_context_started(context: Any) -> bool:
    """Whether TensorFlow's context has opened its devices."""
    return context._context_handle is not None


def can_call_captured(function: Any) -> bool:
    """Whether a traced function accepts captured values other than its own."""
    return hasattr(getattr(function, "_inference_function", function), "call_preflattened")


def call_captured(function: Any, arguments: Sequence[Any], captured: Sequence[Any]) -> Any:
    """Calls a traced function with other captured values than its own.

    TensorFlow's `call_with_captures()` checks the type of each captured value again, which takes
    half of a short call's time: 0.24 ms instead of 0.12 with 21 of them.

    Args:
        function: A concrete function, or what `drop_captures()` returned.
        arguments: Its arguments.
        captured: The captured values: tensors or handles of the types that it captured.
    """
    inner = getattr(function, "_inference_function", function)
    types = inner.function_type
    return inner.call_preflattened([*types.unpack_inputs(types.bind(*arguments)), *captured])


def drop_captures(concrete: Any) -> Any:
    """Returns a concrete function without the values that it and its graphs captured."""
    function = concrete._inference_function
    within = [function]
    while within:
        each = within.pop()
        within += each._children
        each._cached_graph = None
    return function


def graph_of(graph: Any, name: str) -> Any:
    """Returns the graph of a function that a graph's operations call."""
    return graph._get_function(name).graph


@contextmanager
def numbered_from(start: int) -> Iterator[None]:
    """Numbers the functions that this thread traces from a start on, instead of by session.

    TensorFlow counts all that it has ever named in the session. The numbers are in the names of
    functions, and XLA finds a program on disk only under the same names.
    """
    ops: Any = sys.modules["tensorflow.python.framework.ops"]
    before, numbers, thread = ops.uid, itertools.count(start), threading.get_ident()
    ops.uid = lambda: next(numbers) if threading.get_ident() == thread else before()
    try:
        yield
    finally:
        ops.uid = before


def separate_collective_keys(strategy: Any, distance: int) -> None:
    """Shifts a strategy class's collective keys, so that the next group of devices has its own."""
    strategy._collective_key_base += distance


def disable_failure_detection(strategy: Any, context: Any) -> None:
    """Switches off how TensorFlow itself looks for lost workers, for strategies made afterwards.

    Its coordination service gives up a worker after 8 to 10 s without a heartbeat, and takes
    reports of errors from anyone. Without it a health check in Python, which gives up after 58 s,
    takes its place. TensorFlow's own tests switch off both in this way.

    Args:
        strategy: The class of strategies for several workers.
        context: TensorFlow's eager context, which has not started.
    """
    context.configure_coordination_service(service_type="")
    extended = sys.modules[strategy.__module__].CollectiveAllReduceExtended
    extended._enable_check_health = False


def uses_py_function(dataset: Any) -> bool:
    """Whether a tf.data pipeline calls `tf.py_function()`, at any depth."""
    return any(node.op == "EagerPyFunc" for node in pipeline_nodes(dataset))


def draws_at_random(dataset: Any) -> bool:
    """Whether a tf.data pipeline shuffles or draws numbers, so that each pass may differ."""
    shuffles = any("Shuffle" in type(step).__name__ for step in pipeline_steps(dataset))
    return shuffles or any("Random" in node.op for node in pipeline_nodes(dataset))


def pipeline_steps(dataset: Any) -> Iterator[Any]:
    """Yields a tf.data dataset and all those that it is made of."""
    yield dataset
    for inner in dataset._inputs():
        yield from pipeline_steps(inner)


def pipeline_nodes(dataset: Any) -> Iterator[Any]:
    """Yields the operations in a tf.data pipeline's functions, at any depth."""
    for step in pipeline_steps(dataset):
        for wrapped in step._functions():
            graph = wrapped.function.graph.as_graph_def()
            yield from graph.node
            for function in graph.library.function:
                yield from function.node_def


# JAX ---------------------------------------------------------------------------------------------


def jax_has_devices() -> bool:
    """Whether JAX has opened its devices."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def set_global_seed(seed: int) -> None:
    """Sets Keras' own seed, and drops the generator that was made from an earlier one."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator
    from keras.src.utils import rng_utils

    global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, seed)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


def global_seed() -> int | None:
    """Returns the seed of `keras.utils.set_random_seed()`, or None if it was never called."""
    from keras.src.utils import rng_utils

    seed = rng_utils.get_random_seed()
    return None if seed is None else int(seed)


def loss_and_updates(model: Any) -> Callable[..., Any]:
    """Returns the function of a batch's loss and the variables' values after it, on JAX."""
    function: Callable[..., Any] = model.compute_loss_and_updates
    return function


def update_metrics(model: Any, *arguments: Any) -> tuple[Any, Any]:
    """Returns a model's logs and its metrics' values after a batch, on JAX."""
    updated: tuple[Any, Any] = model._update_metrics_variables(*arguments)
    return updated


def mend_tensorflow_trace() -> None:
    """Gives TensorFlow beside JAX a function back.

    jaxlib 0.7 writes True over it where a trace begins and False where it ends; then every
    operation of TensorFlow 2.21 would end in a TypeError.
    """
    module: Any = sys.modules.get("tensorflow.python.profiler.trace")
    if module is not None:
        module.enabled = module._pywrap_traceme.traceme_enabled
