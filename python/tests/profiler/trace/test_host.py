"""Which events of the host are work, and of what."""

import pytest
from xspaces import Builder, on_host, read, told

from gpukeras.profiler.trace.host import split_op

pytestmark = pytest.mark.tf


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


def test_an_op_within_an_op_is_one():
    activity = read(on_host(("a:Add", 0, 10), ("b:Mul", 2, 4), ("c:Sub", 10, 12)))
    assert told(activity) == [("a", 0, 10), ("c", 10, 12)]


def test_an_op_that_holds_others_is_not_counted_but_they_are():
    activity = read(on_host(("w:While", 0, 10), ("b:Mul", 2, 4), ("b:Mul", 6, 7)))
    assert told(activity) == [("b", 2, 4), ("b", 6, 7)]


def test_ops_that_run_eagerly():
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


def test_parts_of_an_instruction_that_other_threads_took_over():
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


def test_what_the_calling_thread_does_in_its_steps():
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


def test_waiting_for_the_next_batch_is_not_the_host_s_work():
    builder = Builder().plane("/host:CPU").line("python", ("EagerExecute", 0, 100))
    builder.line("tf_data_iterator_get_next/1", ("IteratorGetNextOp::DoCompute", 10, 60))
    builder.line("tf_data_private_threadpool/1", ("mul:Mul", 20, 30))
    activity = read(builder.space)
    assert told(activity, "host") == [("EagerExecute", 0, 10), ("EagerExecute", 60, 100)]
    assert [work.lane for work in activity.works if work.kind == "kernel"] == ["input 1"]


def test_a_gpu_s_host_launches():
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
