"""Django: views in many threads share the limits of one service.

Run it: `python examples/recipes/django_site.py runserver`
"""

import os
import sys
from collections.abc import Callable
from math import ceil

import httpx
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from headgate import Concurrency, Limiter, MaxSleepExceededError, StoreError
from headgate.http.httpx import limit

SERVICE = os.environ.get("SERVICE_URL", "http://localhost:8080")
REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")

limiter = Limiter("service", "100/minute", Concurrency(3), store=REDIS, max_sleep=2, retry_for=1)
client = limit(httpx.Client(base_url=SERVICE, timeout=30), limiter)  # for all threads


def item(request: HttpRequest, name: str) -> HttpResponse:
    answer = client.get(f"/{name}")
    return JsonResponse({"item": answer.text}, status=answer.status_code)


class ShedLoad:
    """Middleware: a view that gets no turn answers 503, with Retry-After."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if isinstance(error, MaxSleepExceededError):
            return busy(error.retry_after or 1)  # None: only a release can say
        if isinstance(error, StoreError):
            return busy(5)
        return None


def busy(seconds: float) -> HttpResponse:
    headers = {"Retry-After": str(ceil(seconds))}
    return JsonResponse({"detail": "busy, try again later"}, status=503, headers=headers)


urlpatterns = [path("items/<str:name>", item)]
settings.configure(
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    MIDDLEWARE=[f"{__name__}.ShedLoad"],
    ROOT_URLCONF=__name__,
)
application = get_wsgi_application()  # for gunicorn and other servers

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
