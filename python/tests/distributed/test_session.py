"""`shard = "workers"` outside of a cluster; inside of one see `launcher/test_worker_process`."""

import pytest

from gpukeras import SpecError
from gpukeras.distributed.session import sharing_files


def test_it_needs_a_cluster():
    with (
        pytest.raises(SpecError, match='`shard` = "workers" is for the workers of a cluster'),
        sharing_files({"shard": "workers"}),
    ):
        pass


@pytest.mark.parametrize("options", [{}, {"shard": (2, 3)}, {"shard": [1, 1], "seed": 1}])
def test_other_shards_are_left_as_they_are(options):
    with sharing_files(options) as (given, shard):
        assert given == options
        assert shard is None
