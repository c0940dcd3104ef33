"""Counts FLOPs of single operations of JAX, for layers without a formula; see `op_flops`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gpukeras.profiler.cost.op_flops import names

# Operations that move, read or make numbers without arithmetic.
FREE = names(
    """
    broadcast_in_dim reshape transpose convert_element_type slice dynamic_slice concatenate pad
    dynamic_update_slice gather scatter squeeze expand_dims rev select_n stop_gradient copy
    device_put iota split tile bitcast_convert_type random_seed random_wrap random_unwrap
    optimization_barrier
    """
)
# Operations with one FLOP per number of the output.
EACH = names(
    """
    add add_any sub mul div rem max min pow integer_pow exp exp2 expm1 log log1p tanh logistic sin
    cos tan asin acos atan atan2 sinh cosh sqrt rsqrt cbrt neg abs sign floor ceil round erf erfc
    erf_inv clamp square cumsum cumprod cummax cummin nextafter
    """
)
# Operations with one FLOP per number of the first input.
REDUCED = names("reduce_sum reduce_max reduce_min reduce_prod")
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # parameters that hold what is called
LOOPS = ("scan", "while", "cond")


def inner_jaxpr(equation: Any) -> Any:
    """Returns what a call, such as of `jit`, runs once; None for any other operation."""
    if equation.primitive.name in LOOPS:
        return None
    for name in CALLS:
        inner = equation.params.get(name)
        if inner is not None:
            return getattr(inner, "jaxpr", inner)
    return None


def loop_jaxprs(equation: Any) -> list[Any]:
    """Returns what a loop or condition runs; [] for any other operation."""
    if equation.primitive.name not in LOOPS:
        return []
    params = equation.params
    bodies = [params[name] for name in ("jaxpr", "body_jaxpr", "cond_jaxpr") if name in params]
    return [getattr(body, "jaxpr", body) for body in [*bodies, *params.get("branches", ())]]


def count_equation(equation: Any) -> float | None:
    """Returns the FLOPs of an operation of a jaxpr; None if it is unknown."""
    name = equation.primitive.name
    floating = any(np.issubdtype(out.aval.dtype, np.inexact) for out in equation.outvars)
    bfloat = any(out.aval.dtype.name == "bfloat16" for out in equation.outvars)
    if name in FREE or (not (floating or bfloat) and name not in LOOPS):
        return 0
    if name in EACH:
        return _size(equation.outvars[0])
    if name in REDUCED:
        return _size(equation.invars[0])
    formula = _FORMULAS.get(name)
    return None if formula is None else formula(equation)


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def _dot(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return 2 * _size(equation.outvars[0]) * math.prod(shape[axis] for axis in contracted)


def _conv(equation: Any) -> float:
    """Counts, for each output number, the taps and channels of its filter."""
    filters = equation.params["dimension_numbers"].rhs_spec[0]
    kernel = equation.invars[1]
    each = _size(kernel) / kernel.aval.shape[filters]
    stretched = math.prod(equation.params["lhs_dilation"])  # a transposed convolution: zeros
    return 2 * _size(equation.outvars[0]) * each / stretched


def _window(equation: Any) -> float:
    return _size(equation.outvars[0]) * math.prod(equation.params["window_dimensions"])


_FORMULAS: dict[str, Callable[[Any], float]] = {
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "reduce_window_max": _window,
    "reduce_window_min": _window,
    "reduce_window_sum": _window,
}
