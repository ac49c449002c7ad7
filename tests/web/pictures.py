"""`python -m tests.web.pictures [SECONDS]`: the pictures of docs/web.md, after so much traffic."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import Page

from headgate.web import app
from tests.servers import Server
from tests.web.browser import chromium
from tests.web.fleet import busy_fleet
from tests.web.serving import served

DOCS = Path(__file__).parents[2] / "docs"
USER = {"username": "ops", "password": "secret"}
DESK, PHONE = {"width": 1000, "height": 620}, {"width": 390, "height": 700}


async def draw(url: str, seconds: float) -> None:
    page = app(url, auth=("ops", "secret"), actions=True)
    async with busy_fleet(url), served(page) as address, chromium() as browser:

        async def opened(query: str, theme: Any, viewport: Any) -> Page:
            context = await browser.new_context(
                http_credentials=USER, viewport=viewport, color_scheme=theme
            )
            page = await context.new_page()
            await page.goto(f"{address}/{query}")
            await page.locator("tbody tr .bar").first.wait_for()
            return page

        dark = await opened("#name=openai", "dark", DESK)
        await asyncio.sleep(seconds)
        await dark.screenshot(path=DOCS / "web-dark.png")
        light = await opened("", "light", DESK)
        await light.screenshot(path=DOCS / "web-light.png")
        phone = await opened("#name=openai", "light", PHONE)
        await phone.click("#pause")
        await phone.screenshot(path=DOCS / "web-phone.png")


def main() -> None:
    server = Server().start()
    try:
        asyncio.run(draw(server.user_url, float(sys.argv[1]) if sys.argv[1:] else 240.0))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
