"""The page in a real Chromium: it shows a fleet of two processes, and its actions work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from headgate import Limiter
from headgate.web import app
from tests.faults.scene import eventually
from tests.index import refreshed
from tests.machine import scaled_now
from tests.processes import Running
from tests.servers import Server
from tests.web.browser import chromium, faults_of
from tests.web.fleet import busy_fleet
from tests.web.serving import readers, served

pytestmark = pytest.mark.proof("needs Chromium")

USER = {"username": "ops", "password": "secret"}
DESK, PHONE = {"width": 1000, "height": 640}, {"width": 390, "height": 780}
SOON = 2.0  # seconds of an idle machine after which the page shows a change


@pytest.fixture
async def url(own_server: Server) -> AsyncIterator[str]:
    """The page of a store, in this process."""
    page = app(own_server.user_url, auth=("ops", "secret"), actions=True)
    async with served(page) as url:
        yield f"{url}/"


@pytest.fixture
async def browser(url: str) -> AsyncIterator[Browser]:
    """It ends before the server, which would wait for its streams."""
    async with chromium() as browser:
        yield browser


class Window:
    """A window of the browser, and the complaints of its console."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    async def sees(self, selector: str, text: str) -> None:
        await expect(self.page.locator(selector)).to_have_text(
            text, timeout=scaled_now(1000 * SOON)
        )


async def opened(browser: Browser, url: str, **options: Any) -> Window:
    options = {"http_credentials": USER, "viewport": DESK, **options}
    context = await browser.new_context(**options)
    window = Window(await context.new_page())
    await window.page.goto(url)
    await window.sees("#live", "live")
    return window


def number(column: str) -> str:
    return f"#itself td[data-label='{column}']"


async def test_the_page_shows_what_two_processes_do_within_two_seconds(
    browser: Browser, url: str, own_server: Server, name: str
) -> None:
    fleet = [Running("web_fleet", own_server.user_url, name) for _ in range(2)]
    for process in fleet:
        assert await process.said() == "ready"
    window = await opened(browser, url)
    await window.page.get_by_role("link", name=name).first.click()
    await window.sees("#itself .amount >> nth=1", "0 of 2 permits")

    for process, held in zip(fleet, ("1 of 2 permits", "2 of 2 permits"), strict=True):
        process.tell("hold")
        assert await process.said() == "holding"
        await window.sees("#itself .amount >> nth=1", held)
    await window.sees("#holding", "2")
    hosts = window.page.locator("#holders tbody tr")
    await expect(hosts).to_have_count(2)
    assert all("web_fleet" in text for text in await hosts.all_inner_texts())

    fleet[1].tell("wait")
    assert await fleet[1].said() == "waiting"
    await window.sees(number("Waiting"), "1")
    await window.sees("#queued", "1")
    fleet[0].tell("release")
    assert await fleet[0].said() == "released"
    await window.sees(number("Waiting"), "")
    lines = window.page.locator("#fullness .plot polyline")
    await expect(lines).to_have_count(2)
    assert window.complaints == []
    for process in fleet:
        process.end()


async def test_an_action_works_after_its_confirmation_alone(
    browser: Browser, url: str, own_server: Server, name: str
) -> None:
    limiter = Limiter(name, "100/minute", store=own_server.user_url)
    assert await limiter.atry_acquire()
    window = await opened(browser, f"{url}#name={name}")
    page = window.page

    await page.fill("#seconds", "45")
    await page.click("#pause")
    await expect(page.locator("#question")).to_contain_text(
        f"Pause {name} with all its keys for 45 seconds"
    )
    await page.keyboard.press("Escape")
    assert (await limiter.astatus()).paused == 0
    await page.click("#pause")
    await page.click("#no")
    assert (await limiter.astatus()).paused == 0
    await page.click("#pause")
    await page.click("#yes")
    await window.sees("#outcome", "The limiter is paused.")
    assert 0 < (await limiter.astatus()).paused <= 45
    await expect(page.locator(number("Paused for"))).to_contain_text(
        "s", timeout=scaled_now(1000 * SOON)
    )

    await page.click("#resume")
    await page.click("#yes")
    await window.sees("#outcome", "The limiter is not paused.")
    await window.sees(number("Paused for"), "")

    await page.fill("#limits", "50/minute\n5 concurrent")
    await page.click("#set")
    await expect(page.locator("#question")).to_contain_text("Now:\n100 in any minute")
    await page.click("#yes")
    await window.sees("#itself .amount >> nth=1", "0 of 5 permits")
    await page.fill("#limits", "many")
    await page.click("#set")
    await page.click("#yes")
    await expect(page.locator("#outcome")).to_contain_text("'many'")
    [complaint] = window.complaints
    assert "400" in complaint  # the browser's own line about the refused request


async def test_an_action_that_was_not_confirmed_ends_with_its_view(
    browser: Browser, url: str, own_server: Server, name: str
) -> None:
    other = Limiter(f"{name}-other", "100/minute", store=own_server.user_url)
    for limiter in (other, Limiter(name, "100/minute", store=own_server.user_url)):
        assert await limiter.atry_acquire()
    window = await opened(browser, f"{url}#name={other.name}")
    page = window.page
    await window.sees("#title", other.name)
    await page.goto(f"{url}#name={name}")
    await window.sees("#title", name)

    await page.click("#pause")
    await page.go_back()
    await window.sees("#title", other.name)
    await expect(page.locator("#confirm")).not_to_be_visible()
    assert window.complaints == []


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\"'><svg onload=alert(1)>&amp;#x3c;",
    "javascript:alert(1)",
    "turned \u202e around\nand \u0000 hidden\u200b",
    "__proto__",
]


async def test_hostile_names_are_plain_text(browser: Browser, url: str, own_server: Server) -> None:
    for hostile in HOSTILE:
        limiter = Limiter(hostile, "100/minute", store=own_server.user_url)
        assert await limiter.atry_acquire()
    await refreshed(own_server.user_url)
    window = await opened(browser, url)
    dialogs: list[object] = []
    window.page.on("dialog", lambda dialog: dialogs.append(dialog))
    links = window.page.locator("#names a")
    await expect(links).to_have_count(len(HOSTILE))
    elements = await window.page.locator("*").count()
    shown = await links.all_inner_texts()
    assert "turned \\u{202e} around\\u{a}and \\u{0} hidden\\u{200b}" in shown
    assert set(HOSTILE) - set(shown) == {HOSTILE[4]}
    for index in range(len(HOSTILE)):
        await links.nth(index).click()
        await window.sees("#title", shown[index])
        await expect(window.page.locator("#unknown")).to_be_hidden()
        await window.page.keyboard.press("Escape")
        await expect(links).to_have_count(len(HOSTILE))
    assert await window.page.locator("#names *").count() < elements
    assert (dialogs, window.complaints) == ([], [])


async def test_the_page_can_be_used_by_keyboard(
    browser: Browser, url: str, own_server: Server
) -> None:
    for number in range(60):
        limiter = Limiter(f"service-{number:02}", "100/minute", store=own_server.user_url)
        assert await limiter.atry_acquire()
    await refreshed(own_server.user_url)
    window = await opened(browser, url)
    await window.sees("#count", "60 names")
    await window.page.keyboard.press("/")
    await window.page.keyboard.type("SERVICE-07")
    await window.sees("#count", "1 of 60 names")
    await window.page.keyboard.press("Tab")
    await window.page.keyboard.press("Enter")
    await window.sees("#title", "service-07")
    await window.page.keyboard.press("Escape")
    await window.sees("#at", "Page 1 of 2")
    await window.page.locator("#next").focus()
    await window.page.keyboard.press("Enter")
    await window.sees("#at", "Page 2 of 2")
    await expect(window.page.locator("#names tbody tr")).to_have_count(10)
    assert window.complaints == []


async def test_the_reader_of_the_store_stops_while_the_page_is_hidden(
    browser: Browser, url: str
) -> None:
    window = await opened(browser, url)
    requests: list[str] = []
    window.page.on("request", lambda request: requests.append(request.url))
    await window.page.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", { get: () => true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    await eventually(lambda: readers() == [])
    assert (requests, window.complaints) == ([], [])


async def test_ten_thousand_names_are_shown_within_two_seconds(
    browser: Browser, url: str, own_server: Server
) -> None:
    limiters = [
        Limiter(f"service-{number:05}", "100/minute", store=own_server.user_url)
        for number in range(10_000)
    ]
    for start in range(0, 10_000, 500):
        await asyncio.gather(*(each.atry_acquire() for each in limiters[start : start + 500]))
    await refreshed(own_server.user_url)
    began = monotonic()
    window = await opened(browser, url)
    await window.sees("#count", "10,000 names")
    assert monotonic() - began < scaled_now(SOON)
    await window.page.fill("#search", "service-0777")
    await window.sees("#count", "10 of 10,000 names")
    await expect(window.page.locator("#names tbody tr")).to_have_count(10)
    assert window.complaints == []


# Themes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "openai"], ids=["all names", "one name"])
@pytest.mark.parametrize(
    ("theme", "viewport"),
    [("light", DESK), ("dark", DESK), ("light", PHONE)],
    ids=["light", "dark", "phone"],
)
async def test_axe_finds_no_serious_fault_and_nothing_is_wider_than_the_window(
    browser: Browser, url: str, own_server: Server, theme: Any, viewport: Any, name: str
) -> None:
    async with busy_fleet(own_server.user_url):
        address = f"{url}#name={name}" if name else url
        window = await opened(browser, address, color_scheme=theme, viewport=viewport)
        await expect(window.page.locator("tbody tr .bar").first).to_be_visible()
        assert await faults_of(window.page) == []
        width = await window.page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"]
        if name:
            await window.page.click("#pause")
            assert await faults_of(window.page) == []
        assert window.complaints == []
