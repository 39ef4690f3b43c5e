"""A fake door, and a proxy before it whose connections can be cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.cut_proxy import CuttableProxy
from support.fake_door import FakeDoor, serving


@pytest.fixture
async def door() -> AsyncIterator[FakeDoor]:
    async with serving(FakeDoor()) as fake:
        yield fake


@pytest.fixture
async def proxy(door: FakeDoor) -> AsyncIterator[CuttableProxy]:
    made = CuttableProxy(door.port)
    await made.up()
    yield made
    await made.down()
