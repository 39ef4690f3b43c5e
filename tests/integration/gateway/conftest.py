"""A fake door and a gateway before it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.fake_door import FakeDoor, serving
from support.running_gateway import RunningGateway, running_gateway


@pytest.fixture
async def door() -> AsyncIterator[FakeDoor]:
    async with serving(FakeDoor()) as fake:
        yield fake


@pytest.fixture
async def gateway(door: FakeDoor) -> AsyncIterator[RunningGateway]:
    async with running_gateway(f"127.0.0.1:{door.port}") as running:
        yield running
