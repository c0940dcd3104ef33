"""What counts as work in a trace, shown on recorded traces and on small ones made by hand."""

import gzip
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from record_traces import ENGINES

from gpukeras import runtime
from gpukeras.errors import DataError
from gpukeras.profiling.attribution import measure_cover, shares
from gpukeras.profiling.hlo import parse_program, read_programs
from gpukeras.profiling.host_lines import split_op
from gpukeras.profiling.xspace import choose_device, read_activity

pytestmark = pytest.mark.tf
DATA = Path(__file__).parent / "data"
US = 10**6  # picoseconds


def content_of(name):
    return gzip.decompress((DATA / f"{name}.xplane.pb.gz").read_bytes())


@pytest.fixture
def read(tmp_path):
    """Reads a trace given as its bytes, as a message, or by its name in data/."""

    def one(source, device=None):
        if isinstance(source, str):
            source = content_of(source)
        path = tmp_path / "a.xplane.pb"
        path.write_bytes(source if isinstance(source, bytes) else source.SerializeToString())
        return read_activity(path, device)

    return one


class Builder:
    """A trace made by hand; times in microseconds."""

    def __init__(self, errors=()):
        self.space = runtime.trace_message()
        self.space.errors.extend(errors)

    def plane(self, name):
        self.current = self.space.planes.add(name=name)
        return self

    def line(self, name, *events):
        line = self.current.lines.add(name=name)
        for event, begin, end, *stats in events:
            metadata = self._number(self.current.event_metadata, event)
            offset, length = round(begin * US), round((end - begin) * US)
            made = line.events.add(metadata_id=metadata, offset_ps=offset, duration_ps=length)
            for key, value in dict(*stats).items():
                number = self._number(self.current.stat_metadata, key)
                kind = "int64_value" if isinstance(value, int) else "str_value"
                made.stats.add(metadata_id=number, **{kind: value})
        return self

    @staticmethod
    def _number(table, name):
        known = {entry.name: number for number, entry in table.items()}
        if name not in known:
            table[len(table) + 1].name = name
        return known.get(name, len(table))


def on_host(*events, name="tf_Compute/1"):
    return Builder().plane("/host:CPU").line(name, *events).space


def told(activity, kind="kernel"):
    """Works of a kind as (name, begin, end) in microseconds."""
    chosen = [work for work in activity.works if work.kind == kind]
    return [(w.name, round(w.begin_s * 1e6, 3), round(w.end_s * 1e6, 3)) for w in chosen]


# Recorded traces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_on_a_cpu(read, engine):
    activity = read(f"cpu_{engine}")
    assert (activity.device, activity.devices) == ("CPU", ("CPU",))
    assert (activity.error, activity.bytes) == ("", None)
    assert [step.number for step in activity.steps] == [0, 1, 2]
    assert {work.kind for work in activity.works} == {"kernel", "host"}
    assert {work.lane for work in activity.works if work.kind == "host"} == {"main"}
    begins = [work.begin_s for work in activity.works]
    assert begins == sorted(begins)
    assert min(begins) >= 0


@pytest.mark.parametrize("engine", ENGINES)
def test_no_work_of_a_lane_counts_twice(read, engine):
    activity = read(f"cpu_{engine}")
    for lane in {work.lane for work in activity.works}:
        of_lane = [work for work in activity.works if work.lane == lane]
        assert {work.kind for work in of_lane} == {"host" if lane == "main" else "kernel"}
        for before, after in pairwise(of_lane):
            assert after.begin_s >= before.end_s - 1e-12, (before, after)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_is_explained_but_for_its_gaps(read, engine):
    found = shares(read(f"cpu_{engine}"))
    assert found.steps == 3
    assert found.kernels_s > 0.1 * found.wall_s
    assert found.host_s > 0
    assert found.transfers_s == 0
    assert found.idle_s < 0.05 * found.wall_s


@pytest.mark.parametrize("engine", ENGINES)
def test_an_op_runs_once_a_batch_and_carries_its_scope(read, engine):
    runs = [
        work
        for work in read(f"cpu_{engine}").works
        if work.scope.endswith("small_1/dense_1_2/MatMul/MatMul_1") and not work.part
    ]
    assert len(runs) == 6
    assert all("gradient_tape" in work.scope and "MatMul" in work.type for work in runs)


def test_containers_of_work_are_no_work(read):
    names = {w.name for e in ENGINES for w in read(f"cpu_{e}").works if w.kind == "kernel"}
    outside = ("ExecutorState", "Threadpool", "FunctionRun", "end: ", "Eager", "Thunk", "TFE_")
    assert not [name for name in names if name.startswith((*outside, "while.", "train"))]
    assert not [name for name in names if name.startswith("__inference")]


def test_eight_gpus_and_their_known_busy_share(read):
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


def test_the_busiest_gpu_is_read_unless_another_is_asked_for(read):
    assert read("v100x8").device == "GPU:6"
    copies_only = read("v100x8", "GPU:1")
    assert "no kernel of GPU:1" in copies_only.error
    assert {work.kind for work in copies_only.works} == {"transfer", "host"}
    idle = read("v100x8", "GPU:0")
    assert idle.error
    assert idle.span == (0, 0)


# XLA's programs ----------------------------------------------------------------------------------


def test_programs_are_read_as_tensorflow_reads_them():
    from tensorflow.compiler.xla.service import hlo_pb2

    space = runtime.trace_message()
    space.ParseFromString(content_of("cpu_compiled"))
    plane = next(plane for plane in space.planes if plane.name == "/host:metadata")
    for number, entry in plane.event_metadata.items():
        message = hlo_pb2.HloProto.FromString(entry.stats[0].bytes_value)
        inside = [i for c in message.hlo_module.computations for i in c.instructions]
        programs = read_programs(space.planes)
        program = programs[str(number)]
        assert programs[entry.name.rpartition("(")[0]] is program
        assert program.keys() == {one.name for one in inside}
        for one in inside:
            assert program[one.name].opcode == one.opcode
            if one.metadata.op_name and not one.metadata.op_name.startswith("XLA_"):
                assert program[one.name].scope == one.metadata.op_name
                assert program[one.name].type == one.metadata.op_type


def make_program(*instructions, computation=1):
    from tensorflow.compiler.xla.service import hlo_pb2

    message = hlo_pb2.HloProto()
    made = message.hlo_module.computations.add(id=computation)
    for number, (name, scope, operands) in enumerate(instructions):
        one = made.instructions.add(name=name, opcode="add", id=number, operand_ids=operands)
        one.metadata.op_name, one.metadata.op_type = scope, scope and "Add"
    return message


def test_what_xla_made_itself_counts_for_the_op_that_it_takes_from():
    message = make_program(
        ("one", "a/dense/MatMul", []), ("copy", "", [0]), ("two", "", [1]), ("alone", "", [])
    )
    program = parse_program(message.SerializeToString())
    assert [program[n].scope for n in ("one", "copy", "two")] == ["a/dense/MatMul"] * 3
    assert (program["alone"].scope, program["alone"].type) == ("", "")


def test_a_fusion_without_a_name_is_named_by_its_root():
    message = make_program(("fusion", "", [5]), ("other", "a/other/Mul", []))
    inner = message.hlo_module.computations.add(id=9)
    for number, scope in ((20, "a/dense/Mul"), (21, "a/dense/Relu")):
        inner.instructions.add(name=f"i{number}", id=number).metadata.op_name = scope
    message.hlo_module.computations[0].instructions[0].called_computation_ids.append(9)
    assert parse_program(message.SerializeToString())["fusion"].scope == "a/dense/Relu"


def test_a_damaged_program_is_an_error_or_a_program():
    whole = make_program(("one", "a/b", []), ("two", "", [0])).SerializeToString()
    assert parse_program(b"") == {}
    random, outcomes = np.random.default_rng(3), set()
    for _ in range(300):
        damaged = bytearray(whole[: random.integers(1, len(whole) + 1)])
        damaged[random.integers(len(damaged))] = random.integers(256)
        try:
            parse_program(bytes(damaged))
            outcomes.add("program")
        except (ValueError, IndexError):
            outcomes.add("error")
    assert outcomes == {"program", "error"}


# Which events are work ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "compiled", "expected"),
    [
        ("a/dense/MatMul:MatMul", False, ("a/dense/MatMul", "MatMul")),
        ("a/Relu:_MklNativeFusedMatMul", True, ("a/Relu", "_MklNativeFusedMatMul")),
        ("a/while:While", False, None),
        ("a/PartitionedCall:StatefulPartitionedCall", False, None),
        ("n/_3:_HostRecv", False, None),
        ("IteratorGetNext:IteratorGetNext", False, None),
        ("__inference_f_7:__inference_f_7", True, None),
        ("__inference_f_7:__inference_f_7", False, ("__inference_f_7", "__inference_f_7")),
        ("cluster_0:XlaLaunch", True, None),
        ("cluster_0:XlaLaunch", False, ("cluster_0", "XlaLaunch")),
        ("ExecutorState::Process", False, None),
        ("EagerLocalExecute: MatMul", False, None),
        ("end: add_fusion", True, None),
        ("void f<int>(float*)", False, None),
        ("", False, None),
    ],
)
def test_ops_are_told_by_the_names_of_events(name, compiled, expected):
    assert split_op(name, compiled) == expected


def test_an_op_within_an_op_is_one(read):
    activity = read(on_host(("a:Add", 0, 10), ("b:Mul", 2, 4), ("c:Sub", 10, 12)))
    assert told(activity) == [("a", 0, 10), ("c", 10, 12)]


def test_an_op_that_holds_others_is_not_counted_but_they_are(read):
    activity = read(on_host(("w:While", 0, 10), ("b:Mul", 2, 4), ("b:Mul", 6, 7)))
    assert told(activity) == [("b", 2, 4), ("b", 6, 7)]


def test_ops_that_run_eagerly(read):
    run = "KernelAndDeviceFunc::Run"
    events = [
        ("EagerLocalExecute: MatMul", 0, 10),
        (run, 3, 9),
        ("EagerLocalExecute: __inference_f_3", 20, 40),
        (run, 21, 39),
        ("EagerLocalExecute: IteratorGetNext", 50, 60),
        (run, 51, 59),
    ]
    activity = read(on_host(*events, name="python"))
    assert told(activity) == [("MatMul", 3, 9)]
    assert [work.type for work in activity.works if work.kind == "kernel"] == ["MatMul"]


def test_parts_of_an_instruction_that_other_threads_took_over(read):
    record, start, stop = (
        f"ThreadpoolListener::{n}" for n in ("Record", "StartRegion", "StopRegion")
    )
    given = {"hlo_op": "dot.1", "program_id": 3, "hlo_module": "m"}
    builder = Builder().plane("/host:CPU")
    builder.line(
        "main",
        ("while.2", 0, 60, {**given, "hlo_op": "while.2"}),
        ("dot.1", 1, 10, given),
        (record, 2, 2, {"_p": 7}),
        (record, 30, 30, {"_p": 9}),  # in the loop but in no instruction: whose it is, is not known
    )
    builder.line(
        "tf_Eigen/1",
        (start, 12, 12, {"_c": 7}),
        (record, 13, 13, {"_p": 8}),
        ("add.1", 15, 18, {**given, "hlo_op": "add.1"}),
        (stop, 20, 20),
        (start, 32, 32, {"_c": 9}),
        (stop, 34, 34),
    )
    builder.line("tf_Eigen/2", (start, 14, 14, {"_c": 8}), (stop, 16, 16))
    activity = read(builder.space)
    assert told(activity) == [
        ("dot.1", 1, 10),
        ("dot.1", 12, 15),
        ("dot.1", 14, 16),
        ("add.1", 15, 18),
        ("dot.1", 18, 20),
    ]
    assert [work.part for work in activity.works] == [False, True, True, False, True]


# The host ----------------------------------------------------------------------------------------


def test_what_the_calling_thread_does_in_its_steps(read):
    builder = Builder().plane("/host:CPU").line("tf_Compute/1", ("a:Add", 5, 6))
    builder.line(
        "R",  # the thread's name does not matter
        ("train", 0, 100, {"step_num": 4}),
        ("inner", 20, 30, {"step_num": 5}),
        ("EagerExecute", 2, 10),
        ("TFE_Py_Execute", 3, 9),
        ("train", 30_000, 60_000, {"step_num": 6}),
        ("EagerExecute", 30_000, 30_010),
    )
    activity = read(builder.space)
    assert [(s.number, s.begin_s, s.end_s) for s in activity.steps] == [
        (4, 0, 1e-4),
        (6, 0.03, 0.06),
    ]
    assert told(activity, "host") == [
        ("Python", 0, 2),
        ("EagerExecute", 2, 10),
        ("Python", 10, 20),
        ("inner", 20, 30),
        ("Python", 30, 100),
        ("EagerExecute", 30_000, 30_010),
    ]  # and the 30 ms without a call in the second step are waiting, not work


def test_waiting_for_the_next_batch_is_not_the_host_s_work(read):
    builder = Builder().plane("/host:CPU").line("python", ("EagerExecute", 0, 100))
    builder.line("tf_data_iterator_get_next/1", ("IteratorGetNextOp::DoCompute", 10, 60))
    builder.line("tf_data_private_threadpool/1", ("mul:Mul", 20, 30))
    activity = read(builder.space)
    assert told(activity, "host") == [("EagerExecute", 0, 10), ("EagerExecute", 60, 100)]
    assert [work.lane for work in activity.works if work.kind == "kernel"] == ["input 1"]


def test_a_gpu_s_host_launches(read):
    builder = Builder().plane("/host:CPU")
    builder.line("tf_gpu_private_0/1", ("ExecutorState::Process", 0, 50), ("a/b:MatMul", 5, 9))
    builder.plane("/device:GPU:0").line(
        "Stream #3(Compute)",
        ("gemm", 10, 30, {"tf_op": "m/dense/MatMul:MatMul"}),
        ("fusion_1", 30, 40, {"hlo_op": "fusion.1", "hlo_module": "m", "tf_op": "XlaModule"}),
        ("MemcpyH2D", 41, 44, {"memcpy_details": "kind:pageable size:64 dest:0"}),
        ("Memset", 45, 46, {"memset_details": "kind:Device num_bytes:8"}),
        ("MemcpyD2D", 46, 47, {"memcpy_details": "size:5"}),
    )
    activity = read(builder.space)
    assert told(activity) == [("gemm", 10, 30), ("fusion_1", 30, 40)]
    assert told(activity, "host") == [("ExecutorState::Process", 0, 50)]
    assert [name for name, *_ in told(activity, "transfer")] == ["MemcpyH2D", "Memset", "MemcpyD2D"]
    kernels = [work for work in activity.works if work.kind == "kernel"]
    assert [(k.scope, k.type) for k in kernels] == [("m/dense/MatMul", "MatMul"), ("", "")]
    assert activity.bytes == {"to_device": 64, "to_host": 0, "on_device": 5}
    assert {work.lane for work in activity.works} == {"GPU:0 stream 3", "launch 1"}


# Traces that tell nothing ------------------------------------------------------------------------

DENIED = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: you do not have permission"


def test_a_gpu_that_the_profiler_may_not_see_is_not_an_idle_gpu(read):
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


def test_the_cpu_is_read_where_it_is_asked_for(read):
    builder = Builder(errors=[DENIED]).plane("/host:CPU").line("tf_Compute/1", ("a:Add", 0, 1))
    activity = read(builder.space, "CPU")
    assert (activity.device, activity.error, told(activity)) == ("CPU", "", [("a", 0, 1)])


@pytest.mark.parametrize("events", [[], [("SomeNewName(MatMul)", 0, 5)]])
def test_a_trace_without_ops_says_so(read, events):
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
def test_a_trace_of_another_kind_is_refused(read, planes, device, message):
    builder = Builder()
    for name in planes:
        builder.plane(name).line("a line", ("a:Add", 0, 5))
    with pytest.raises(DataError, match=message) as caught:
        read(builder.space, device)
    assert caught.value.details["path"].endswith("a.xplane.pb")
    assert caught.value.hint


def test_the_host_of_another_device_is_read_where_it_is_asked_for(read):
    builder = Builder().plane("/host:CPU").line("tf_Compute/1", ("a:Add", 0, 5))
    assert told(read(builder.plane("/device:TPU:0").space, "CPU")) == [("a", 0, 5)]


@pytest.mark.parametrize("content", [b"", b"text", b"\xff" * 100, b"\x00" * 100])
def test_other_files_are_refused(read, content):
    with pytest.raises(DataError, match="not a .*profiler trace"):
        read(content)


@pytest.mark.parametrize("name", ["cpu_keras", "v100x8"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_trace_that_was_cut_off_is_refused(read, name, share):
    content = content_of(name)
    with pytest.raises(DataError, match="damaged"):
        read(content[: int(len(content) * share)])


def test_a_file_that_is_not_there_or_may_not_be_read(tmp_path):
    with pytest.raises(DataError, match=r"x\.xplane\.pb cannot be read: No such file"):
        read_activity(tmp_path / "x.xplane.pb")
    with pytest.raises(DataError, match="holds no profiler trace"):
        read_activity(tmp_path)
    if hasattr(os, "geteuid") and os.geteuid() != 0:  # root may read everything
        path = tmp_path / "y.xplane.pb"
        path.write_bytes(b"")
        path.chmod(0)
        with pytest.raises(DataError, match="Permission denied"):
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
    tf, keras = runtime.tensorflow(), runtime.keras()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse", run_eagerly=True)
    rows = tf.data.Dataset.from_tensor_slices((np.ones((32, 4), "f"), np.ones((32, 3), "f")))
    batches = iter(rows.map(lambda x, y: (x * 2, y)).batch(8))
    model.train_on_batch(*next(batches))
    with runtime.profile(str(tmp_path)):
        for number in range(2):
            with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                model.train_on_batch(*next(batches))
    activity = read_activity(tmp_path, "CPU")
    assert [step.number for step in activity.steps] == [0, 1]
    eager = [work for work in activity.works if work.kind == "kernel" and work.type == "MatMul"]
    assert len(eager) == 4  # forward, and the gradient of the kernel, in two steps
    found = shares(activity)
    assert 0 < found.kernels_s < found.host_s
    inside = [(s.begin_s, s.end_s) for s in activity.steps]
    assert found.wall_s == pytest.approx(measure_cover(inside))
