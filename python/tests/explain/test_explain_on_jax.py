"""What is told about a model does not depend on the backend."""

import explained_jax
import numpy as np
import pytest
from jax_runs import needs_jax, run_part

pytestmark = [pytest.mark.process, pytest.mark.tf, needs_jax]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["importance", "effects", "attributions"])
def test_jax_tells_what_tensorflow_tells(part):
    on_jax = run_part("explained_jax", part)
    for found, expected in zip(on_jax, explained_jax.tell(part), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
