"""Which values of a metric are better: the higher or the lower ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from gpukeras.core.errors import SpecError

Mode = Literal["min", "max"]

# Where there is no argument to say it by.
NAME_HINT = 'Let its name say it, such as "my_error" or "my_accuracy".'

# Words in the names of metrics that are better when higher, and when lower. "loss" in a name takes
# precedence, as a user calls a loss after the metric that it stands for.
MAXIMISED = {"acc", "accuracy", "auc", "precision", "recall", "f1", "fbeta", "r2", "iou", "dice"}
MAXIMISED |= {"similarity", "sensitivity", "specificity", "kappa", "mcc", "psnr", "ssim"}
MAXIMISED |= {"correlation", "concordance"}
MINIMISED = {"error", "mse", "mae", "mape", "msle", "rmse", "crossentropy", "divergence", "poisson"}
MINIMISED |= {"hinge", "logcosh", "cosh", "huber", "deviance", "nll", "brier", "perplexity"}
MINIMISED |= {"pinball", "kld"}
# Of several words, as Keras names them, and as others do.
MAXIMISED_PHRASES = ("io_u", "true_positives", "true_negatives")
MINIMISED_PHRASES = ("false_positives", "false_negatives", "cross_entropy")
PLACE = re.compile(r"\[[\d,]+\]$")  # of a number in a metric that is an array
MODES: Mapping[str, Mode] = {"up": "max", "down": "min"}


def choose_mode(
    metric: str, directions: Mapping[str, str] | None = None, *, arg: str, hint: str
) -> Mode:
    """Returns which is better for a metric: "max" or "min".

    Args:
        metric: Its name among the logs, such as "val_accuracy", or "val_out_accuracy" of an output.
        directions: "up" or "down" for metrics that say so themselves, by their names, see
            `keras_private.metric_directions()`.
        arg: The argument that asked for the metric.
        hint: How the user can say what is better.

    Raises:
        SpecError: if neither the metric nor its name says so, as Keras' own callbacks do.
    """
    mode = find_mode(metric, directions)
    if mode is None:
        raise refuse_mode(metric, arg=arg, hint=hint)
    return mode


def refuse_mode(metric: str, *, arg: str, hint: str) -> SpecError:
    """Returns the error for a metric of which it is not known what is better."""
    return SpecError(
        f'Whether higher or lower values of "{metric}" are better is not known.', hint=hint, arg=arg
    )


def find_mode(metric: str, directions: Mapping[str, str] | None = None) -> Mode | None:
    """Returns which is better for a metric, see `choose_mode()`; None if that is not known."""
    name = PLACE.sub("", metric.removeprefix("val_"))
    if name == "loss":
        return "min"
    directions = directions or {}
    own = [known for known in directions if name == known or name.endswith(f"_{known}")]
    if own:
        return MODES[directions[max(own, key=len)]]
    return _mode_by_words(name.lower())


def _mode_by_words(name: str) -> Mode | None:
    parts = set(re.split("[^a-z0-9]+", name))
    words = parts | {part.rstrip("0123456789") for part in parts}
    if "loss" in words:
        return "min"
    up = bool(words & MAXIMISED) or any(phrase in name for phrase in MAXIMISED_PHRASES)
    down = bool(words & MINIMISED) or any(phrase in name for phrase in MINIMISED_PHRASES)
    if up == down:
        return None
    return "max" if up else "min"
