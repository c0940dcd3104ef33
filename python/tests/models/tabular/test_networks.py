"""Networks for tables give what the papers' own code gives for the same weights."""

import numpy as np
import pytest
from lazy_modules import keras
from tables import RECORDED

from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.models.tabular import builder, statistics

pytestmark = pytest.mark.tf

LEVELS = (3, 4)
PLAIN = {"numeric_embeddings": "none"}


@pytest.fixture(scope="module")
def recorded():
    with np.load(RECORDED) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(autouse=True)
def recorded_scale(monkeypatch):
    """The recorded numbers are scaled already, by mean and deviation."""

    def describe(values, bins):
        edges = tuple(statistics.bin_edges(column, bins) for column in values.T)
        return statistics.NumberFacts((0.0,) * len(edges), (1.0,) * len(edges), edges)

    monkeypatch.setattr(statistics, "describe_numbers", describe)
    monkeypatch.setattr(builder, "CLIP", None)


@pytest.fixture(scope="module")
def data(recorded):
    """The recorded table; its first factor is one-hot, its second a column of codes."""
    columns = [
        {"name": f"x{place}", "kind": "numeric", "values": values, "levels": []}
        for place, values in enumerate(recorded["numbers"].T)
    ] + [
        {
            "name": f"f{place}",
            "kind": "factor",
            "values": codes.astype(np.int32) + 1,
            "levels": list("abcd")[: LEVELS[place]],
        }
        for place, codes in enumerate(recorded["codes"].T)
    ]
    labels = {"kind": "matrix", "values": np.zeros((len(recorded["codes"]), 2)), "levels": []}
    features = {"kind": "columns", "columns": columns}
    return data_dataset.build_dataset(features, {"encode": {"f1": "codes"}}, labels)


def part(recorded, name):
    return {
        key[len(name) + 1 :]: value for key, value in recorded.items() if key.startswith(f"{name}/")
    }


def layers_of(model, *kinds):
    return [layer for layer in model.layers if type(layer).__name__ in kinds]


def embed(model, tables):
    """Sets the embeddings: a factor has as many rows as levels, and one of zeros."""
    (layer,) = layers_of(model, "Embedding")
    zeros = np.zeros((1, tables[0].shape[1]))
    each = [rows for table, levels in zip(tables, LEVELS, strict=True)
            for rows in (table[:levels], zeros)]  # fmt: skip
    layer.set_weights([np.vstack(each)])


def set_linear(layer, known, name):
    """Sets a dense layer to a linear layer of PyTorch, which has its kernel transposed."""
    layer.set_weights([known[f"{name}.weight"].T, known[f"{name}.bias"]])


def set_norm(layer, known, name, statistics=False):
    keys = ("weight", "bias", *(("running_mean", "running_var") if statistics else ()))
    layer.set_weights([known[f"{name}.{key}"] for key in keys])


def output_of(model, data, training=False):
    return np.asarray(model(data.arrays[0], training=training))


def test_resnet(recorded, data):
    known = part(recorded, "resnet")
    model = builder.build_tabular(data, {"kind": "resnet", "units": 6, "embeddings": 4, **PLAIN})
    embed(model, [np.eye(4)] * 2)
    dense = layers_of(model, "Dense")
    names = ["input_projection", "blocks.0.linear1", "blocks.0.linear2"]
    names += ["blocks.1.linear1", "blocks.1.linear2", "output.linear"]
    for layer, name in zip(dense, names, strict=True):
        set_linear(layer, known, name)
    norms = ["blocks.0.normalization", "blocks.1.normalization", "output.normalization"]
    for layer, name in zip(layers_of(model, "BatchNormalization"), norms, strict=True):
        set_norm(layer, known, name, statistics=True)
    np.testing.assert_allclose(output_of(model, data), known["output"], rtol=3e-6, atol=3e-6)


def set_attention(layer, known, name, heads=2):
    for own, theirs in (("query", "W_q"), ("key", "W_k"), ("value", "W_v")):
        size = len(known[f"{name}.{theirs}.bias"])
        kernel = known[f"{name}.{theirs}.weight"].T.reshape(size, heads, -1)
        bias = known[f"{name}.{theirs}.bias"].reshape(heads, -1)
        getattr(layer, f"{own}_dense").set_weights([kernel, bias])
    kernel = known[f"{name}.W_out.weight"].T.reshape(heads, size // heads, size)
    layer.output_dense.set_weights([kernel, known[f"{name}.W_out.bias"]])


def test_transformer(recorded, data):
    known = part(recorded, "ft_transformer")
    options = {"kind": "ft_transformer", "units": 6, "blocks": 2, "heads": 2, **PLAIN}
    model = builder.build_tabular(data, options)
    own = known["cat_embeddings.bias"]  # one for all levels of a factor: a part of the table
    embed(
        model, [known[f"cat_embeddings.embeddings.{place}.weight"] + own[place] for place in (0, 1)]
    )
    (tokens,), (first,) = layers_of(model, "NumberTokens"), layers_of(model, "ClassToken")
    tokens.set_weights([known["cont_embeddings.weight"], known["cont_embeddings.bias"]])
    first.set_weights([known["cls_embedding.weight"].reshape(1, 1, -1)])
    norms, blocks = layers_of(model, "LayerNormalization"), "backbone.blocks"
    names = [f"{blocks}.0.ffn_normalization", f"{blocks}.1.attention_normalization"]
    names += [f"{blocks}.1.ffn_normalization", "backbone.output.normalization"]
    for layer, name in zip(norms, names, strict=True):
        set_norm(layer, known, name)
    dense = iter(layers_of(model, "Dense"))
    for block, attention in enumerate(layers_of(model, "MultiHeadAttention")):
        name = f"{blocks}.{block}"
        set_attention(attention, known, f"{name}.attention")
        halves = zip(
            np.split(known[f"{name}.ffn.linear1.weight"], 2),
            np.split(known[f"{name}.ffn.linear1.bias"], 2),
            strict=True,
        )
        for kernel, bias in halves:
            next(dense).set_weights([kernel.T, bias])
        set_linear(next(dense), known, f"{name}.ffn.linear2")
    set_linear(next(dense), known, "backbone.output.linear")
    np.testing.assert_allclose(output_of(model, data), known["output"], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("name", ["tabm", "tabm_embedded"])
def test_tabm(recorded, data, name):
    known = part(recorded, name)
    numeric = "piecewise_linear" if name == "tabm_embedded" else "none"
    options = {"kind": "tabm", "units": 6, "blocks": 2, "members": 3, "embeddings": 4, "bins": 5}
    model = builder.build_tabular(data, {**options, "dropout": 0, "numeric_embeddings": numeric})
    embed(model, [np.eye(4)] * 2)
    if name == "tabm_embedded":
        (encoding,) = layers_of(model, "PiecewiseLinearEncoding")
        for place, edges in enumerate(encoding.edges):
            np.testing.assert_allclose(edges, recorded[f"edges/{place}"], rtol=1e-6)
        (tokens,) = layers_of(model, "NumberTokens")
        names = ("num_module.linear0.weight", "num_module.linear0.bias")
        tokens.set_weights([known[key] for key in names])
    *bent, heads = layers_of(model, "EinsumDense")
    for layer in bent:
        layer.set_weights([known["num_module.linear.weight"]])
    for block, layer in enumerate(layers_of(model, "BatchEnsemble")):
        own = {
            key: known[f"backbone.blocks.{block}.0.{key}"] for key in ("weight", "r", "s", "bias")
        }
        layer.set_weights([own["weight"].T, own["r"], own["s"], own["bias"]])
    heads.set_weights([known["output.weight"], known["output.bias"]])
    members = output_of(model, data, training=True)
    np.testing.assert_allclose(members, known["output"], rtol=3e-6, atol=3e-6)
    mean = known["output"].mean(axis=1)
    np.testing.assert_allclose(output_of(model, data), mean, rtol=3e-6, atol=3e-6)


def test_periodic_embeddings(recorded, data):
    known = part(recorded, "periodic")
    model = builder.build_tabular(data, {"kind": "mlp", "numeric_embeddings": "periodic"})
    (encoding,), (matrices,) = layers_of(model, "PeriodicEncoding"), layers_of(model, "EinsumDense")
    encoding.set_weights([known["periodic.weight"]])
    matrices.set_weights([known["linear.weight"], known["linear.bias"]])
    inner = keras.Model(model.inputs[0], matrices.output)
    np.testing.assert_allclose(output_of(inner, data), known["output"], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("rank", [None, 2])
def test_cross_layers_are_the_papers_formula(data, rank):
    """Equations 1 and 3 of arXiv:2008.13535 in NumPy: it has no code for PyTorch on PyPI."""
    given = {"kind": "dcn", "units": 4, "blocks": 2, "embeddings": 2, "rank": rank, "dropout": 0}
    given.update(PLAIN)
    model = builder.build_tabular(data, given)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(0, 0.5, weight.shape) for weight in model.get_weights()])
    start = layers_of(model, "Concatenate")[0].output
    crossed = layers_of(model, "Add")[-1].output
    first, found = (
        output_of(keras.Model(model.inputs[0], tensor), data).astype(np.float64)
        for tensor in (start, crossed)
    )
    weights = iter([layer.get_weights() for layer in layers_of(model, "Dense")])
    x = first
    for _ in range(2):
        inner = x if rank is None else x @ next(weights)[0]
        kernel, bias = next(weights)
        x = first * (inner @ kernel + bias) + x
    np.testing.assert_allclose(found, x, rtol=3e-6, atol=3e-6)
