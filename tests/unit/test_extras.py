"""What a module says when the package it is for is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

EXTRAS = {
    "headgate.http.aiohttp": ("aiohttp", "aiohttp"),
    "headgate.http.httpx": ("httpx", "httpx"),
    "headgate.http.httpx2": ("httpx2", "httpx2"),
    "headgate.http.requests": ("requests", "requests"),
    "headgate.http.openai": ("openai", "openai"),
    "headgate.http.anthropic": ("anthropic", "anthropic"),
    "headgate.frameworks.langchain": ("langchain_core", "langchain"),
    "headgate.frameworks.litellm": ("litellm", "litellm"),
    "headgate.frameworks.pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "headgate.frameworks.tenacity": ("tenacity", "tenacity"),
}


@pytest.mark.parametrize(("module", "package", "extra"), [(module, *its) for module, its in EXTRAS.items()])
def test_a_missing_package_names_the_extra_that_brings_it(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)

    with pytest.raises(ImportError, match=rf"'{package}'.*pip install 'headgate\[{extra}\]'") as caught:
        importlib.import_module(module)
    assert caught.value.name == package


def test_a_missing_parser_of_header_fields_names_the_extra_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "http_sf", None)
    monkeypatch.delitem(sys.modules, "headgate.http.httpx", raising=False)

    with pytest.raises(ImportError, match=r"'http_sf'.*pip install 'headgate\[httpx\]'"):
        importlib.import_module("headgate.http.httpx")
