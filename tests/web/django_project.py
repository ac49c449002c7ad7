"""A Django project with the page beside it, as docs/web.md mounts it."""

from __future__ import annotations

from typing import Any


def with_page(path: str, page: Any) -> Any:
    """Django's ASGI application, and `page` below `path`."""
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpResponse
    from django.urls import path as route

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"], SECRET_KEY="of-a-test", ROOT_URLCONF=__name__, DEBUG=False
        )
    globals()["urlpatterns"] = [route("hello/", lambda request: HttpResponse("hello"))]
    django = get_asgi_application()

    async def site(scope: Any, receive: Any, send: Any) -> None:
        ours = scope["type"] == "http" and f"{scope['path']}/".startswith(f"{path}/")
        if ours:
            await page({**scope, "root_path": path}, receive, send)
        elif scope["type"] == "http":
            await django(scope, receive, send)

    return site
