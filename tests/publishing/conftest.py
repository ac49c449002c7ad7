"""The distributions of a release, built once for all tests that look at them."""

from __future__ import annotations

import pytest

from tests.publishing.distributions import Distributions, build


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    return build(tmp_path_factory.mktemp("distributions"))
