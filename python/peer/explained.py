"""What Keras' tests show that gpukeras does otherwise on purpose, and why."""

from __future__ import annotations

import math
import re

ROUNDING = "A training's validation and evaluate() differ by a rounding: by other programs."
UNEQUAL = re.compile(r"AssertionError: (\d+\.\d+) != (\d+\.\d+)$")
VALIDATION = "To callbacks all rows of a validation, evaluate() or predict() are one batch."
EMPTIED = "Variables keep their values in a training; Keras' trainer on JAX empties them meanwhile."
# Parts of the names of tests, and the reason.
EXPLAINED = {
    "test_fit_sparse": "Sparse rows reach the model as dense ones, so no update is sparse.",
    "test_fit_eval_flow_for_jax_model_weights": EMPTIED,
    "test_callbacks_can_update_state_at_batch_boundary": VALIDATION,
    "test_validation_data_infinite_generator": VALIDATION,
    "test_steps_per_execution_steps_count_without_training": VALIDATION,
    "test_steps_per_execution_steps_per_epoch_match_multi_epoch": (
        "An epoch has `steps_per_epoch` steps; Keras rounds them up to whole calls."
    ),
    "test_stop_training_csv": (
        "A loss that is no number ends the training at once: that epoch is not validated any more."
    ),
    "test_warning_for_mismatched_inputs_structure": (
        "An unnamed list goes to inputs with names in the model's order, without Keras' warning."
    ),
}


def explain(test: str, error: str) -> str:
    """Why a test that Keras passes does not pass here, or ""."""
    if is_rounding(error):
        return ROUNDING
    return next((why for part, why in EXPLAINED.items() if part in test), "")


def is_rounding(error: str) -> bool:
    """Whether two numbers were to be the same, and are neighbours in float32."""
    found = UNEQUAL.search(error)
    return found is not None and math.isclose(*map(float, found.groups()), rel_tol=2**-23)
