"""The fixtures of the recipes: a service that counts its calls, and where the programs find it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate import Limiter
from tests.http.service import Service
from tests.servers import Server


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture
def places(service: Service, own_server: Server) -> dict[str, str]:
    """The variables that name the service and the Redis of a recipe.

    The names of its limiters are fixed, so each test has a Redis of its own.
    """
    return {"SERVICE_URL": service.url, "REDIS_URL": own_server.url}


@pytest.fixture
def limiter(own_server: Server) -> Limiter:
    """The limiter of the recipe, as another process sees it."""
    return Limiter.attach("service", store=own_server.url)
