import pytest

from gpukeras.models.tabular.options import Sizes, TabularSpec, choose_rates, settle


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"kind": "mlp"}, Sizes(256, 3, 0.1)),
        ({}, Sizes(512, 2, 0.1)),
        ({"kind": "resnet"}, Sizes(192, 2, 0.3)),
        ({"kind": "tabm"}, Sizes(512, 2, 0.1)),
        ({"kind": "tabm", "numeric_embeddings": "none"}, Sizes(512, 3, 0.1)),
        ({"kind": "ft_transformer"}, Sizes(192, 3, 0.1)),
        ({"kind": "ft_transformer", "blocks": 1}, Sizes(96, 1, 0.0)),
        ({"kind": "ft_transformer", "blocks": 9}, Sizes(384, 9, 0.25)),
        ({"kind": "dcn", "units": 5, "blocks": 4, "dropout": 0}, Sizes(5, 4, 0.0)),
        ({"kind": "tabm", "members": 1}, Sizes(512, 2, 0.1, 1)),
    ],
)
def test_sizes_are_the_papers_unless_given(options, sizes):
    assert settle(TabularSpec.from_dict(options)) == sizes


def test_rates_are_the_papers_unless_given():
    assert choose_rates(TabularSpec(kind="ft_transformer")) == (1e-4, 1e-5)
    assert choose_rates(TabularSpec(kind="mlp", learning_rate=1, weight_decay=0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("rows", "sizes", "rate"),
    [
        (9_999, Sizes(128, 2, 0.1, 8), 4e-3),
        (10_000, Sizes(512, 2, 0.1, 32), 2e-3),
        (None, Sizes(512, 2, 0.1, 32), 2e-3),
    ],
)
def test_tabm_of_few_rows_is_smaller(rows, sizes, rate):
    spec = TabularSpec(kind="tabm")
    assert settle(spec, rows) == sizes
    assert choose_rates(spec, rows) == (rate, 3e-4)
    assert settle(TabularSpec(kind="tabm", members=5, units=7), rows).members == 5
    assert choose_rates(TabularSpec(kind="mlp"), rows) == (1e-3, 1e-5)
