"""A web page that shows the limiters of a store: `app(store, auth=...)`, an ASGI application.

Nothing is mounted and nothing listens by itself. The page needs no other package.
"""

from headgate.web.application import app

__all__ = ["app"]
