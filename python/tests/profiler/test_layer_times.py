"""Whose time it was: name scopes, layers, ops, kernels."""

import pytest
from lazy_modules import tf
from record_traces import ENGINES, make_small_model
from xspaces import read

from gpukeras.profiler.attribution import shares
from gpukeras.profiler.layer_times import (
    ModelLayer,
    Rows,
    attribute_layers,
    choose_row,
    read_layers,
    top_kernels,
    top_ops,
)
from gpukeras.profiler.trace import op_scopes
from gpukeras.profiler.trace.activity import Activity, Step, Work

# Scopes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "seen", "expected"),
    [
        (["dense"], {"dense_1"}, {"dense_1": "dense"}),
        (
            ["dense", "dense_1", "dense_2"],
            {"dense_1", "dense_1_2", "dense_2_1"},
            {"dense_1": "dense", "dense_1_2": "dense_1", "dense_2_1": "dense_2"},
        ),
        # The first of them has no ops of its own in this trace: the others keep theirs.
        (["dense", "dense_1"], {"dense_1_2"}, {"dense_1_2": "dense_1"}),
        # Entered once a call, as other versions do.
        (["dense", "dense_1"], {"dense", "dense_1"}, {"dense": "dense", "dense_1": "dense_1"}),
        # A shared layer's second call.
        (["shared"], {"shared_1", "shared_3"}, {"shared_1": "shared", "shared_3": "shared"}),
        (["dense"], {"Cast", "while", "denser_1"}, {}),
        ([], {"a"}, {}),
    ],
)
def test_scopes_are_told_apart_by_playing_tensorflow_s_numbering(layers, seen, expected):
    assert op_scopes.assign_scopes(layers, seen) == expected


@pytest.mark.tf
def test_the_numbering_is_tensorflow_s_own():
    layers = ["dense", "dense_1", "Dense", "conv", "dense_2", "conv_1"]
    expected = {}
    with tf.Graph().as_default():
        for layer in layers:
            for _ in range(2):
                with tf.name_scope(layer) as scope:
                    last = scope.rstrip("/")
            expected[last] = layer
    assert op_scopes.assign_scopes(layers, set(expected)) == expected


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("m_1/dense_1/MatMul", "m/dense"),
        ("m_1/inner_1/dense_1/MatMul", "m/inner/dense"),
        ("gradient_tape/m_1/inner_1/dense_1/MatMul/MatMul_1", "m/inner/dense"),
        ("while/body/_1/while/m_1/dense_1/Relu", "m/dense"),
        ("replica_4/m_1/dense_1/Relu", "m/dense"),
        ("m_1/inner_1/Reshape", "m/inner"),
        ("m_1/Cast", "m"),
        ("adam/Sub", ""),
        ("dense_1/MatMul", ""),
        ("m_1", ""),
        ("", ""),
    ],
)
def test_an_op_belongs_to_the_innermost_layer_that_it_stands_in(scope, path):
    roots = op_scopes.build_tree(["m/dense", "m/inner/dense"])
    op_scopes.settle(roots, ["m_1/dense_1/MatMul", "m_1/inner_1/dense_1/MatMul"])
    assert op_scopes.find_layer(roots, scope) == path


@pytest.mark.parametrize(
    ("scope", "short"),
    [
        ("small/dense/MatMul", "small/dense/MatMul"),
        ("while/body/_1/while/small/dense/MatMul", "small/dense/MatMul"),
        ("while/body/_1/gradient_tape/while/a/b/MatMul", "gradient_tape/a/b/MatMul"),
        ("while/a/b/Relu", "a/b/Relu"),
        ("StatefulPartitionedCall/a/Cast", "a/Cast"),
        ("a/lstm/while/body/_7/a/lstm/while/cell/MatMul", "a/lstm/while/cell/MatMul"),
        ("", ""),
    ],
)
def test_names_are_shown_without_the_loops_around_them(scope, short):
    assert op_scopes.shorten(scope) == short


def test_types_are_shown_without_their_implementation():
    kinds = ["_MklNativeFusedMatMul", "_MklMatMul", "_FusedMatMul", "MatMul", ""]
    expected = ["FusedMatMul", "MatMul", "FusedMatMul", "MatMul", ""]
    assert [op_scopes.shorten_type(kind) for kind in kinds] == expected


@pytest.mark.parametrize(
    ("scope", "kind", "row"),
    [
        ("net/act_1/Relu", "_MklNativeFusedMatMul", "dense"),
        ("net/act_1/Relu", "Relu", "act"),
        ("net/norm_1/batchnorm/add_1", "_FusedConv2D", "norm"),  # no product is so near
        ("net/last_1/Relu", "_MklFusedConv2D", "conv"),
        ("net/dense_1/BiasAdd", "_FusedMatMul", "dense"),
        ("adam/a", "_FusedMatMul", "optimizer"),
    ],
)
def test_a_fused_product_is_the_layers_that_multiplies(scope, kind, row):
    kinds = {"norm": "BatchNormalization", "dense": "Dense", "act": "Activation"}
    kinds |= {"conv": "Conv2D", "scale": "BatchNormalization", "last": "ReLU"}
    layers = [ModelLayer(name, kind, f"net/{name}") for name, kind in kinds.items()]
    scopes = {f"net/{name}_1/x" for name in kinds} | {scope}
    rows = Rows([*layers, ModelLayer("optimizer", "Adam", "adam")], scopes)
    work = Work("lane", "x", "kernel", scope, 0.0, 1.0, type=kind)
    assert rows.find(work) == (row, False)


def test_gradients_are_told_by_their_scope():
    assert op_scopes.is_backward("while/body/_1/gradient_tape/while/a/b/MatMul")
    assert not op_scopes.is_backward("while/body/_1/while/a/b/MatMul")


@pytest.mark.parametrize(
    ("scope", "kind", "optimizer", "row"),
    [
        ("adam/Sub_3", "Sub", "adam", "optimizer"),
        ("while/body/_1/while/adam_1/Sub", "Sub", "adam", "optimizer"),
        ("my_rule/Sub", "Sub", "my_rule", "optimizer"),
        ("sgd/Sub", "Sub", "", "optimizer"),
        ("sgd/Sub", "Sub", "adam", "other"),
        ("clip_by_global_norm/Mul", "Mul", "adam", "optimizer"),
        ("compile_loss/mse/Mean", "Mean", "adam", "loss and metrics"),
        ("gradient_tape/compile_loss/mse/Mul", "Mul", "adam", "loss and metrics"),
        ("while/body/_1/while/Slice_1", "Slice", "adam", "input"),
        ("", "StridedSlice", "adam", "input"),
        ("gradient_tape/x/StridedSlice", "StridedSlice", "adam", "other"),
        ("AddN_1", "AddN", "adam", "other"),
        ("", "", "adam", "other"),
    ],
)
def test_what_is_no_layer_has_rows_of_its_own(scope, kind, optimizer, row):
    assert choose_row(scope, kind, optimizer) == row


# Real traces -------------------------------------------------------------------------------------

LAYERS = ["dense", "dense_1", "nested/dense", "nested/dense_1", "dropout", "dense_shared", "out"]


@pytest.fixture(scope="module")
def small_layers():
    return read_layers(make_small_model())


@pytest.mark.tf
def test_the_layers_of_a_model_those_of_nested_models_in_their_place(small_layers):
    assert [layer.name for layer in small_layers] == [*LAYERS, "optimizer"]
    assert small_layers[2] == ModelLayer("nested/dense", "Dense", "small/nested/dense")
    assert small_layers[-1] == ModelLayer("optimizer", "Adam", "adam")


@pytest.fixture(params=ENGINES)
def activity(request):
    """A recorded training of each engine."""
    return read(f"cpu_{request.param}")


@pytest.mark.tf
def test_every_layer_of_a_real_training_has_its_time(activity, small_layers):
    rows = {row.layer: row for row in attribute_layers(activity, small_layers)}
    assert list(rows)[: len(LAYERS)] == LAYERS
    for name in LAYERS:
        assert rows[name].forward_s > 0, name
        assert rows[name].backward_s > 0, name
    assert rows["optimizer"].kind == "Adam"
    assert rows["optimizer"].total_s > 0
    assert rows["loss and metrics"].total_s > 0
    assert rows["other"].share < 0.15


@pytest.mark.tf
def test_the_rows_sum_to_the_kernels_time(activity, small_layers):
    for layers in (small_layers, []):
        rows = attribute_layers(activity, layers)
        assert sum(row.total_s for row in rows) == pytest.approx(shares(activity).kernels_s)
        assert sum(row.share for row in rows) == pytest.approx(1)
        assert all(r.total_s == pytest.approx(r.forward_s + r.backward_s) for r in rows)


@pytest.mark.tf
def test_each_op_is_counted_once_a_batch(activity, small_layers):
    ops = {op.name: op for op in top_ops(activity, 1000, small_layers)}
    gradient = ops["gradient_tape/small_1/dense_1_2/MatMul/MatMul_1"]
    assert (gradient.count, gradient.type, gradient.layer) == (6, "MatMul", "dense_1")
    assert sum(op.share for op in ops.values()) == pytest.approx(1)
    totals = [op.total_s for op in ops.values()]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.tf
def test_the_top_kernels_of_the_eight_gpus_by_name():
    activity = read("v100x8", "GPU:4")
    kernels = top_kernels(activity, 3)
    assert kernels[0].name.startswith("void tensorflow::functor::FillPhiloxRandomKernelLaunch<")
    assert [kernel.count for kernel in kernels] == [97, 294, 97]
    assert kernels[0].total_s == pytest.approx(3.95e-3, abs=5e-5)
    assert all("Eigen::internal::EigenMetaKernel<" in kernel.name for kernel in kernels[1:])
    op = top_ops(activity, 1)[0]
    assert op.name == "replica_4/bert_span_labeler/bert_encoder_1/word_embeddings/GatherV2/Cast"
    assert (op.type, op.count, op.layer) == ("Cast", 1, "")
    assert op.total_s == pytest.approx(246.8e-6, abs=1e-6)


@pytest.mark.tf
def test_the_layers_of_another_model_are_found_by_their_scopes():
    bert = "bert_span_labeler/bert_encoder_1"
    layers = [ModelLayer(n, "", f"{bert}/{n}") for n in ("word_embeddings", "transformer")]
    rows = {row.layer: row for row in attribute_layers(read("v100x8", "GPU:4"), layers)}
    assert rows["transformer"].share > 0.9
    assert rows["word_embeddings"].total_s > 0.0002
    assert sum(row.share for row in rows.values()) == pytest.approx(1)


def test_a_cpu_has_ops_not_kernels_and_nothing_has_neither():
    work = Work("CPU 1", "a", "kernel", "", 0, 1)
    busy = Activity((work,), (Step(0, 0, 2),), "CPU", ("CPU",))
    nothing = Activity((), (), "GPU:0", (), error="nothing was seen")
    assert top_kernels(busy) == top_kernels(nothing) == top_ops(nothing) == []
    assert attribute_layers(nothing, []) == []
    row = attribute_layers(nothing, [ModelLayer("dense", "Dense", "m/dense")])[0]
    assert (row.layer, row.total_s, row.share) == ("dense", 0, 0)
