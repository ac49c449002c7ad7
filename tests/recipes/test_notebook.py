"""The notebook recipe, in a real kernel of IPython."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.faults.scene import eventually
from tests.http.service import Service
from tests.processes import environment
from tests.recipes.programs import RECIPES

pytestmark = [
    pytest.mark.proof,
    pytest.mark.filterwarnings("default::DeprecationWarning"),  # of the client of the kernel
]


class Kernel:
    """A kernel that runs the cells of a notebook one by one."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def printed(self, number: int) -> str:
        """The output of the cell so far."""
        return "".join(output["text"] for output in self._client.nb.cells[number].outputs)

    async def run(self, number: int) -> str:
        """The result of the cell, by print or by its last value."""
        cell = self._client.nb.cells[number]
        await self._client.async_execute_cell(cell, number)
        return "".join(
            output["text"] if output.output_type == "stream" else output["data"]["text/plain"]
            for output in cell.outputs
        )

    def shown(self, number: int) -> str:
        """The HTML that a notebook shows for the last value of the cell."""
        (output,) = self._client.nb.cells[number].outputs
        html: str = output["data"]["text/html"]
        return html

    async def interrupt(self) -> None:
        await self._client.km.interrupt_kernel()


@pytest.fixture
async def kernel(service: Service) -> AsyncIterator[Kernel]:
    notebook = nbformat.read(RECIPES / "notebook.ipynb", as_version=4)
    client: Any = NotebookClient(notebook, timeout=None)
    variables = {**environment(lean=False), "SERVICE_URL": service.url}
    async with client.async_setup_kernel(env=variables):
        yield Kernel(client)


async def test_an_interrupt_of_a_cell_that_waits_gives_its_places_up_and_the_next_cell_goes_on(
    kernel: Kernel, service: Service
) -> None:
    assert await kernel.run(0) == ""
    assert (await kernel.run(1)).endswith("40")
    assert (await kernel.run(2)).startswith("Status(name='service', limits=(LimitStatus(")
    for text in (
        "40 of 100 requests",
        "0 of 5 permits",
        "0 waiting; a new caller could go at once",
    ):
        assert f">{text}<" in kernel.shown(2)
    waiting = asyncio.create_task(kernel.run(3))
    await eventually(lambda: service.calls == 100)
    await eventually(lambda: re.search(r"40 wait, [1-6]?\d s left", kernel.printed(3)))
    await kernel.interrupt()
    with pytest.raises(CellExecutionError, match="CancelledError"):
        await waiting
    assert await kernel.run(4) == "0"
    assert service.most <= 5
