"""Names of ops of TensorFlow and JAX are matched with layers."""

import pytest

from gpukeras.profiler.trace import op_scopes

LOOP = "jit(_loop)/while/body/"


@pytest.mark.parametrize(
    ("name", "layer", "backward", "shown"),
    [
        (LOOP + "jvp(dense)/dot_general", "model/dense", False, "dense/dot_general"),
        (LOOP + "jvp(dense_1)/add", "model/dense_1", False, "dense_1/add"),
        (
            "jit(step)/transpose(jvp(inner))/dense/jit(_var)/mul",
            "model/inner/dense",
            True,
            "gradient_tape/inner/dense/jit(_var)/mul",
        ),
        (LOOP + "transpose(jvp(compile_loss))/mse/neg", "model", True,
         "gradient_tape/compile_loss/mse/neg"),
        (LOOP + "adam/add", "", False, "adam/add"),
        ("jit(step)/reduce_sum", "", False, "reduce_sum"),
        ("copy.24", "", False, "copy.24"),
    ],
)  # fmt: skip
def test_a_name_of_jax_gives_its_layer(name, layer, backward, shown):
    roots = op_scopes.build_tree(["model/dense", "model/dense_1", "model/inner/dense"])
    scopes = [op_scopes.from_jax(f"{LOOP}jvp({one})/mul") for one in ("dense_1", "inner")]
    op_scopes.settle(roots, [op_scopes.from_jax(name), *scopes])
    scope = op_scopes.from_jax(name)
    assert op_scopes.find_layer(roots, scope) == layer
    assert op_scopes.is_backward(scope) is backward
    assert op_scopes.shorten(scope) == shown


@pytest.mark.parametrize(
    ("root", "layer"),
    [("net", "net/dense"), ("net_1", "net/dense"), ("network_1", ""), ("net_a", "")],
)
def test_another_trace_of_a_model_has_its_name_and_a_number(root, layer):
    roots = op_scopes.build_tree(["net/dense"])
    op_scopes.settle(roots, ["net/dense/MatMul"])
    assert op_scopes.find_layer(roots, f"{root}/dense/MatMul") == layer


def test_a_name_of_tensorflow_stays():
    assert (
        op_scopes.from_jax("while/body/_1/model/dense_1/MatMul")
        == "while/body/_1/model/dense_1/MatMul"
    )
