"""Small models and datasets that several test files use."""

import pytest
from hypothesis import settings
from small_fits import make_dataset, make_model

# The same cases on every machine and every run; `--hypothesis-profile=default` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def dataset():
    return make_dataset()


@pytest.fixture
def model():
    return make_model()
