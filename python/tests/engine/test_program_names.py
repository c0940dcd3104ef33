"""Programs have the same names in each session, whatever TensorFlow named before."""

from pathlib import Path

import pytest
from children import run_script

from gpukeras.engine.program_cache import repeatable_names

SCRIPT = """
from gpukeras.backend import runtime
tf = runtime.tensorflow()
for _ in range({before}):
    tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([3]))
from small_fits import make_dataset, make_model
from gpukeras.training import fit as training_fit
for optimizer in ("sgd", "adam"):
    spec = {{"epochs": 1, "engine": "compiled"}}
    training_fit.fit(make_model(optimizer=optimizer), make_dataset(), spec)
answer = 0
"""


@pytest.mark.tf
@pytest.mark.nightly  # two sessions that compile take a minute
def test_another_session_finds_its_programs_on_disk(tmp_path):
    support, kept = str(Path(__file__).parents[1] / "support"), []
    for before in (0, 3):
        script = f"import sys; sys.path.insert(0, {support!r})" + SCRIPT.format(before=before)
        run_script(script, GPUKERAS_XLA_CACHE=str(tmp_path), TF_XLA_FLAGS="")
        kept.append(sorted(file.name for file in tmp_path.glob("*/*")))
    assert len(kept[0]) == 2
    assert kept[0] == kept[1]


@pytest.mark.tf
def test_equal_programs_of_a_session_have_names_of_their_own(model):
    import tensorflow as tf

    names = set()
    for program in ("one", "one", "other"):
        with repeatable_names(model, program):
            function = tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))
            concrete = function.get_concrete_function(tf.TensorSpec([]))
        names.add(concrete.name)
        assert float(concrete(tf.constant(-2.0))) == 2.0
    assert len(names) == 3
