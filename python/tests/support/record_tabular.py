"""Records weights and outputs of the papers' own code, for tests of networks for tables.

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch==2.13.0 rtdl_revisiting_models==0.0.2 \
        rtdl_num_embeddings==0.0.12 tabm==0.0.3
    /tmp/reference/bin/python python/tests/support/record_tabular.py

It writes `data/tabular.npz` beside this file. All weights are random, those too that begin with
zeros or ones, and the statistics of batch normalisation.
"""

from pathlib import Path

import numpy as np
import rtdl_num_embeddings
import rtdl_revisiting_models
import tabm
import torch

ROWS, LEVELS, OUTPUTS, BINS, MEMBERS = 24, 4, 2, 5, 3


def draw_table():
    """Numbers with mean 0 and deviation 1 (one of them with four values), and codes of factors."""
    rng = np.random.default_rng(1)
    numbers = np.stack(
        [rng.normal(size=ROWS), rng.gamma(1, size=ROWS), rng.integers(0, 4, ROWS)], 1
    )
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    codes = np.stack([np.arange(ROWS) % 3, rng.permutation(np.arange(ROWS) % LEVELS)], axis=1)
    return numbers, codes


def scatter(module, seed):
    """Gives all weights and statistics other values."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if "impl" in name or not value.is_floating_point():
                continue
            value.copy_(torch.rand_like(value) + 0.5 if "running_var" in name else value)
            if "running_var" not in name:
                value.copy_(0.5 * torch.randn_like(value) + (0.5 if value.ndim == 1 else 0.0))
    return module.eval()


def main():
    numbers, codes = draw_table()
    x, c = torch.tensor(numbers, dtype=torch.float32), torch.tensor(codes)
    edges = rtdl_num_embeddings.compute_bins(x, n_bins=BINS)
    found = {"numbers": numbers, "codes": codes}
    for place, each in enumerate(edges):
        found[f"edges/{place}"] = each.numpy()

    def record(name, module, *given):
        scatter(module, len(found))
        for key, value in module.state_dict().items():
            if "impl" not in key and "num_batches" not in key:
                found[f"{name}/{key}"] = value.numpy()
        with torch.no_grad():
            found[f"{name}/output"] = module(*given).numpy()

    flat = torch.cat([x, torch.nn.functional.one_hot(c, LEVELS).flatten(1)], dim=1)
    resnet = rtdl_revisiting_models.ResNet(
        d_in=flat.shape[1], d_out=OUTPUTS, n_blocks=2, d_block=6, d_hidden=None,
        d_hidden_multiplier=2.0, dropout1=0.3, dropout2=0.0,
    )  # fmt: skip
    record("resnet", resnet, flat)
    transformer = rtdl_revisiting_models.FTTransformer(
        n_cont_features=3, cat_cardinalities=[LEVELS, LEVELS], d_out=OUTPUTS, n_blocks=2, d_block=6,
        attention_n_heads=2, attention_dropout=0.2, ffn_d_hidden=None,
        ffn_d_hidden_multiplier=4 / 3, ffn_dropout=0.1, residual_dropout=0.0,
    )  # fmt: skip
    record("ft_transformer", transformer, x, c)
    sizes = {"n_blocks": 2, "d_block": 6, "k": MEMBERS, "cat_cardinalities": [LEVELS, LEVELS]}
    record("tabm", tabm.TabM.make(n_num_features=3, d_out=OUTPUTS, **sizes), x, c)
    embedded = rtdl_num_embeddings.PiecewiseLinearEmbeddings(
        edges, 16, activation=False, version="B"
    )
    given = {"n_num_features": 3, "d_out": OUTPUTS, "num_embeddings": embedded, **sizes}
    record("tabm_embedded", tabm.TabM.make(**given), x, c)
    record("periodic", rtdl_num_embeddings.PeriodicEmbeddings(3, 24, lite=False), x)
    target = Path(__file__).parent / "data" / "tabular.npz"
    packed = {
        name: value.astype(np.float32) if value.dtype == np.float32 else value
        for name, value in found.items()
    }
    np.savez_compressed(target, **packed)
    print(target, target.stat().st_size, *sorted(packed), sep="\n")


if __name__ == "__main__":
    main()
