"""The error of a module whose package is not installed."""

from __future__ import annotations

from tests.processes import finished

EXTRAS = {  # each module, the package that is missing, the extra that brings it
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
    "headgate.telemetry.opentelemetry": ("opentelemetry", "otel"),
    "headgate.telemetry.prometheus": ("prometheus_client", "prometheus"),
}
IMPORT = """
import importlib, sys

for word in sys.argv[1:]:
    module, package = word.split("=")
    sys.modules[package] = None
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(error)
    del sys.modules[package]
"""


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    asked = [f"{module}={package}" for module, (package, _) in EXTRAS.items()]

    assert finished(IMPORT, *asked).splitlines() == [
        f"headgate's {extra} support needs the package '{package}', which is not installed: "
        f"pip install 'headgate[{extra}]' brings it."
        for package, extra in EXTRAS.values()
    ]


def test_a_missing_parser_of_header_fields_names_the_extra_of_the_client() -> None:
    """It is a package of headgate's own choice: a client without the extra does not bring it."""
    for name in ("requests", "openai"):
        said = finished(IMPORT, f"headgate.http.{name}=http_sf")
        assert "'http_sf'" in said
        assert f"pip install 'headgate[{name}]'" in said
