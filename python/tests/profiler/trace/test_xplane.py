"""What counts as work in a recorded trace, and traces that tell nothing."""

from itertools import pairwise

import numpy as np
import pytest
from lazy_modules import keras, tf
from permissions import obeying_permissions
from record_traces import ENGINES
from xspaces import Builder, content_of, on_host, read, told

from gpukeras.backend import tracing
from gpukeras.core.errors import DataError
from gpukeras.profiler.attribution import shares
from gpukeras.profiler.trace.events import measure_union
from gpukeras.profiler.trace.xplane import choose_device, read_activity

pytestmark = pytest.mark.tf


# Recorded traces ---------------------------------------------------------------------------------


@pytest.fixture(params=ENGINES)
def activity(request):
    """A recorded training of each engine."""
    return read(f"cpu_{request.param}")


def test_a_training_on_a_cpu(activity):
    assert (activity.device, activity.devices) == ("CPU", ("CPU",))
    assert (activity.error, activity.bytes) == ("", None)
    assert [step.number for step in activity.steps] == [0, 1, 2]
    assert {work.kind for work in activity.works} == {"kernel", "host"}
    assert {work.lane for work in activity.works if work.kind == "host"} == {"main"}
    begins = [work.begin_s for work in activity.works]
    assert begins == sorted(begins)
    assert min(begins) >= 0


def test_no_work_of_a_lane_counts_twice(activity):
    for lane in {work.lane for work in activity.works}:
        of_lane = [work for work in activity.works if work.lane == lane]
        assert {work.kind for work in of_lane} == {"host" if lane == "main" else "kernel"}
        for before, after in pairwise(of_lane):
            assert after.begin_s >= before.end_s - 1e-12, (before, after)


def test_a_step_is_explained_but_for_its_gaps(activity):
    found = shares(activity)
    assert found.steps == 3
    assert found.kernels_s > 0.1 * found.wall_s
    assert found.host_s > 0
    assert found.transfers_s == 0
    assert found.idle_s < 0.05 * found.wall_s


def test_an_op_runs_once_a_batch_and_carries_its_scope(activity):
    runs = [
        work
        for work in activity.works
        if work.scope.endswith("small_1/dense_1_2/MatMul/MatMul_1") and not work.part
    ]
    assert len(runs) == 6
    assert all("gradient_tape" in work.scope and "MatMul" in work.type for work in runs)


def test_containers_of_work_are_no_work():
    names = {w.name for e in ENGINES for w in read(f"cpu_{e}").works if w.kind == "kernel"}
    outside = ("ExecutorState", "Threadpool", "FunctionRun", "end: ", "Eager", "Thunk", "TFE_")
    assert not [name for name in names if name.startswith((*outside, "while.", "train"))]
    assert not [name for name in names if name.startswith("__inference")]


def test_eight_gpus_and_their_known_busy_share():
    activity = read("v100x8", "GPU:4")
    assert (activity.device, activity.devices) == ("GPU:4", ("GPU:6", "GPU:4", "GPU:1"))
    assert activity.error == ""
    found = shares(activity)
    assert found.wall_s == pytest.approx(0.1193, abs=5e-5)
    assert (found.kernels_s + found.transfers_s) / found.wall_s == pytest.approx(0.126, abs=5e-4)
    kernels = [work for work in activity.works if work.kind == "kernel"]
    assert len(kernels) == 665
    assert all(work.scope and work.type for work in kernels)
    assert {work.lane for work in kernels} == {"GPU:4 stream 134"}
    assert activity.bytes == {"to_device": 37447, "to_host": 36944, "on_device": 0}
    transfers = [work for work in activity.works if work.kind == "transfer"]
    assert sum(work.bytes for work in transfers) == 37447 + 36944


def test_the_busiest_gpu_is_read_unless_another_is_asked_for():
    assert read("v100x8").device == "GPU:6"
    copies_only = read("v100x8", "GPU:1")
    assert "no kernel of GPU:1" in copies_only.error
    assert {work.kind for work in copies_only.works} == {"transfer", "host"}
    idle = read("v100x8", "GPU:0")
    assert idle.error
    assert idle.span == (0, 0)


# Traces that tell nothing ------------------------------------------------------------------------

DENIED = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: you do not have permission"


def test_a_gpu_that_the_profiler_may_not_see_is_not_an_idle_gpu():
    for planes in (["/host:CPU", "/device:GPU:0"], ["/host:CPU"]):
        builder = Builder(errors=[DENIED])
        for name in planes:
            builder.plane(name)
        builder.space.planes[0].lines.add(name="python")
        activity = read(builder.space)
        assert activity.device == "GPU:0"
        assert activity.devices == ()
        assert "INSUFFICIENT_PRIVILEGES" in activity.error
        assert activity.notes == (DENIED,)


def test_the_cpu_is_read_where_it_is_asked_for():
    builder = Builder(errors=[DENIED]).plane("/host:CPU").line("tf_Compute/1", ("a:Add", 0, 1))
    activity = read(builder.space, "CPU")
    assert (activity.device, activity.error, told(activity)) == ("CPU", "", [("a", 0, 1)])


@pytest.mark.parametrize("events", [[], [("SomeNewName(MatMul)", 0, 5)]])
def test_a_trace_without_ops_says_so(events):
    activity = read(on_host(*events))
    assert "holds no op" in activity.error
    assert not [work for work in activity.works if work.kind == "kernel"]


@pytest.mark.parametrize(
    ("planes", "device", "message"),
    [
        (["something"], None, "neither the host nor a GPU"),
        (["/host:metadata", "Task Environment"], "CPU", "neither the host nor a GPU"),
        (["/host:CPU", "/device:TPU:0"], None, "a trace of TPU:0; only GPUs and CPUs"),
        (["/host:CPU", "/device:TPU:0"], "GPU:0", "a trace of TPU:0"),
    ],
)
def test_a_trace_of_another_kind_is_refused(planes, device, message):
    builder = Builder()
    for name in planes:
        builder.plane(name).line("a line", ("a:Add", 0, 5))
    with pytest.raises(DataError, match=message) as caught:
        read(builder.space, device)
    assert caught.value.details["path"].endswith("a.xplane.pb")
    assert caught.value.hint


def test_the_host_of_another_device_is_read_where_it_is_asked_for():
    builder = Builder().plane("/host:CPU").line("tf_Compute/1", ("a:Add", 0, 5))
    assert told(read(builder.plane("/device:TPU:0").space, "CPU")) == [("a", 0, 5)]


@pytest.mark.parametrize("content", [b"", b"text", b"\xff" * 100, b"\x00" * 100])
def test_other_files_are_refused(content):
    with pytest.raises(DataError, match="not a .*profiler trace"):
        read(content)


@pytest.mark.parametrize("name", ["cpu_keras", "v100x8"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_trace_that_was_cut_off_is_refused(name, share):
    content = content_of(name)
    with pytest.raises(DataError, match="damaged"):
        read(content[: int(len(content) * share)])


def test_a_file_that_is_not_there_or_may_not_be_read(tmp_path):
    with pytest.raises(DataError, match=r"x\.xplane\.pb cannot be read: No such file"):
        read_activity(tmp_path / "x.xplane.pb")
    with pytest.raises(DataError, match="holds no profiler trace"):
        read_activity(tmp_path)
    path = tmp_path / "y.xplane.pb"
    path.write_bytes(b"")
    path.chmod(0)
    with obeying_permissions(), pytest.raises(DataError, match="Permission denied"):
        read_activity(path)


def test_damaged_bytes_give_an_activity_or_an_error_of_its_own(tmp_path):
    builder = Builder().plane("/host:metadata").line("x", ("p(3)", 0, 0)).plane("/host:CPU")
    stats = {"hlo_op": "dot.1", "program_id": 3}
    builder.line("python", ("train", 0, 9, {"step_num": 1}), ("EagerExecute", 1, 5))
    builder.line(
        "pool", ("dot.1", 2, 3, stats), ("ThreadpoolListener::Record", 2.5, 2.5, {"_p": 1})
    )
    builder.plane("/device:GPU:0").line("Stream #1", ("k", 1, 2, {"tf_op": "a/b:Mul"}))
    whole, path = builder.space.SerializeToString(), tmp_path / "x.xplane.pb"
    random, outcomes = np.random.default_rng(1), set()
    for _ in range(500):
        damaged = bytearray(whole[: random.integers(len(whole) // 2, len(whole) + 1)])
        for _ in range(random.integers(3)):
            damaged[random.integers(len(damaged))] = random.integers(256)
        path.write_bytes(damaged)
        for device in (None, "CPU"):
            try:
                found = shares(read_activity(path, device))
                assert found.kernels_s <= found.wall_s + 1e-6
                outcomes.add("activity")
            except DataError:
                outcomes.add("error")
    assert outcomes == {"activity", "error"}


@pytest.mark.parametrize(
    ("busy", "gpus", "messages", "device"),
    [
        ([], [], [], "CPU"),
        (["GPU:6", "GPU:4"], ["GPU:0", "GPU:4", "GPU:6"], [], "GPU:6"),
        ([], ["GPU:1", "GPU:0"], [], "GPU:0"),
        ([], [], ["CUPTI error"], "GPU:0"),
        ([], [], ["something else"], "CPU"),
    ],
)
def test_a_gpu_is_never_passed_over_for_the_cpu(busy, gpus, messages, device):
    assert choose_device(busy, gpus, messages) == device


# Live --------------------------------------------------------------------------------------------


def test_a_model_that_runs_eagerly_from_tf_data(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse", run_eagerly=True)
    rows = tf.data.Dataset.from_tensor_slices((np.ones((32, 4), "f"), np.ones((32, 3), "f")))
    batches = iter(rows.map(lambda x, y: (x * 2, y)).batch(8))
    model.train_on_batch(*next(batches))
    with tracing.profile(str(tmp_path)):
        for number in range(2):
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                model.train_on_batch(*next(batches))
    activity = read_activity(tmp_path, "CPU")
    assert [step.number for step in activity.steps] == [0, 1]
    eager = [work for work in activity.works if work.kind == "kernel" and work.type == "MatMul"]
    assert len(eager) == 4  # forward, and the gradient of the kernel, in two steps
    assert {work.kind for work in activity.works} == {"kernel", "host"}
    found = shares(activity)
    assert found.kernels_s > 0
    assert found.host_s > 0
    inside = [(s.begin_s, s.end_s) for s in activity.steps]
    assert found.wall_s == pytest.approx(measure_union(inside))
