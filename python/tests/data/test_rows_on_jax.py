"""TensorFlow reads files and writes TensorBoard's for JAX, see `jax_tools`."""

import numpy as np
import pytest
import tabled
from jax_runs import needs_jax, run_part
from nightly import few

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.tf, needs_jax]


def test_images_are_decoded_resized_and_trained_on():
    found = run_part("jax_tools", "images")
    assert found.pop("gpus") == 0  # their memory is JAX's
    for means, labels, spread, epochs in found.values():
        assert means == pytest.approx([60.0] * 4 + [180.0] * 4)
        assert labels == [0] * 4 + [1] * 4
        assert spread == 0.0
        assert epochs == 2


@pytest.mark.nightly
def test_a_table_of_images_trains_with_masks_and_columns(tmp_path):
    found, expected = run_part("jax_tools", "table"), tabled.train(tmp_path)
    both = found["masks"], expected["masks"]
    apart = [np.not_equal(*masks).mean() for masks in zip(*both, strict=True)]
    assert np.max(apart) < 0.01  # a place that is rounded otherwise
    assert found["compiled"] == pytest.approx(found["keras"], rel=1e-4)


def test_texts_become_features():
    assert run_part("jax_tools", "texts") == 1.0


@pytest.mark.nightly
def test_tfrecord_files_are_read_and_trained_on():
    found = run_part("jax_tools", "records")
    assert found["labels"] == [0, 1] * 12
    assert all(loss > 0 for loss in found["losses"])


def test_tensorboard_files_hold_the_history():
    found = run_part("jax_tools", "board")
    assert found["files"] == pytest.approx(found["history"], rel=1e-6)
    assert found["histograms"] == 4


@pytest.mark.parametrize(
    "name", few(["batches", "rows", "steps", "named", "kept"], "steps", "named")
)
def test_tf_data_pipelines_train_as_the_same_rows_in_memory_do(name):
    part = "pipelines" if name in ("steps", "named") else "pipelines_more"
    apart = run_part("jax_tools", part)[name]
    assert apart < (0.05 if name == "steps" else 1e-5)  # other epochs: 224 rows of 200


def test_a_pipeline_that_fails_is_named():
    kind, message = run_part("jax_tools", "broken_pipeline")
    assert kind == "DataError"
    assert message.startswith("The tf.data dataset failed in epoch 1")
