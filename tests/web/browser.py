"""A real Chromium for the tests of the page, and axe-core, which judges its accessibility.

This module finds or installs both. It knows no page.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from tests import npm
from tests.servers import privilege

AXE = "4.14.1"
NAMES = ("chromium", "google-chrome", "chromium-browser")
ADVICE = (
    "The tests of the web page need Chromium and found none. Install it with `sudo apt-get install "
    "chromium` (Debian), `sudo dnf install chromium` (Fedora) or `brew install chromium` (macOS), "
    "and run the tests again."
)


class BrowserMissing(Exception):
    """There is no Chromium here, and it could not be installed."""


def find_chromium() -> str:
    """The path of Chromium. A missing one is installed as tests/servers.py does it."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _on_the_path()
        if found is None:
            _install()
            found = _on_the_path()
    if found is None:
        raise BrowserMissing(ADVICE)
    return found


def _on_the_path() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _install() -> None:
    root = privilege()
    if root is None or shutil.which("apt-get") is None:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        subprocess.run([*root, "apt-get", *words], env=quiet, capture_output=True, check=False)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox"]
        )
        yield browser
        await browser.close()


async def faults_of(page: Page) -> list[Any]:
    """The faults that axe-core calls serious or critical, each with its elements."""
    script = npm.installed("axe-core", AXE) / "axe-core/axe.min.js"
    await page.evaluate(script.read_text())
    found = await page.evaluate("axe.run()")
    assert len(found["passes"]) > 10
    return [
        (fault["id"], [node["html"] for node in fault["nodes"]])
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
