import pytest
from small_fits import make_model

from gpukeras.backend import runtime
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.distributed.strategy import Strategy

pytestmark = pytest.mark.tf


def test_several_devices_tell_of_a_loss_that_is_no_mean_over_rows():
    losses = runtime.keras().losses
    several = Strategy(shares=BatchSharding(2, 0, ("CPU:0", "CPU:1")))
    model = make_model()
    for reduction in ("sum", "sum_over_batch_size"):
        model.compile("sgd", losses.MeanSquaredError(reduction=reduction))
        assert several.explain(model) == ()
    model.compile("sgd", losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    assert (
        "differ from the loss on one device: the loss `mean_squared_error` (red"
        in several.explain(model)[0]
    )
    assert Strategy().explain(model) == ()


def test_several_devices_tell_of_metrics_that_may_be_no_sums():
    class Largest(runtime.keras().metrics.Metric):
        """The largest error: its state is no sum over rows."""

    several = Strategy(shares=BatchSharding(2, 0, ("CPU:0", "CPU:1")))
    model = make_model()
    model.compile("sgd", "mse", metrics=["mae", "accuracy"])
    assert several.explain_sums(model) == []
    model.compile("sgd", "mse", metrics=["mae", Largest(name="largest")])
    assert several.explain_sums(model) == []  # it sees whole batches

    class OwnStep(runtime.keras().Model):
        def train_step(self, data):
            return super().train_step(data)

    own = OwnStep(model.inputs, model.outputs)
    own.compile("sgd", "mse", metrics=["mae", Largest(name="largest")])
    (note,) = several.explain(own)
    assert "Metrics are added up over the devices" in note
    assert "`largest` is not known to be one of rows" in note
    assert Strategy().explain_sums(model) == []
