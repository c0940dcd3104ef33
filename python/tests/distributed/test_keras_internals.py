import pytest

from gpukeras.backend import runtime
from gpukeras.core.errors import ClusterError
from gpukeras.distributed import keras_internals, session


@pytest.mark.parametrize("name", keras_internals.TRIED)
@pytest.mark.parametrize(("place", "by", "tried"), [(0, 0, True), (1, 0, True), (1, 1, False)])
def test_versions_that_were_not_tried_are_told(name, place, by, tried):
    major, minor = keras_internals.TRIED[name][place].split(".")
    version = f"{major}.{int(minor) + by}.7"
    told = keras_internals.tell_untried(name, version)
    assert (told == "") == tried
    assert tried or told.endswith(f" is {version}.")


@pytest.mark.parametrize(("name", "version"), [("Keras", "3.9.2"), ("TensorFlow", "2.9.0")])
def test_older_versions_are_told_by_number_not_by_letters(name, version):
    assert f"was tried on {name} " in keras_internals.tell_untried(name, version)


@pytest.mark.tf
def test_what_is_installed_was_tried():
    keras_internals.require_versions()


@pytest.mark.tf
def test_a_process_whose_tensorflow_has_started_joins_no_cluster():
    runtime.tensorflow().zeros(1)
    with pytest.raises(ClusterError, match="TensorFlow has started: a process joins a cluster be"):
        session.join_cluster({"workers": ["127.0.0.1:2001"], "index": 1})


@pytest.mark.tf
def test_a_callback_may_use_the_optimizer_between_the_steps_of_several_devices():
    keras = runtime.keras()
    weight, optimizer = keras.Variable([1.0, 2.0]), keras.optimizers.SGD(0.5)
    optimizer.build([weight])
    with keras_internals.hold_reduction(optimizer):
        assert optimizer.scale_loss(3.0) == 3.0
        optimizer.apply([runtime.tensorflow().constant([2.0, 4.0])], [weight])
    assert weight.numpy().tolist() == [0.0, 0.0]


@pytest.mark.tf
def test_outside_of_a_step_there_is_no_replica():
    assert keras_internals.replica() is None
    with runtime.tensorflow().distribute.OneDeviceStrategy("CPU:0").scope():
        assert keras_internals.replica() is None
