"""Redis or Valkey as a store: one script on the server, one connection for each event loop."""

from headgate.stores.redis.store import RedisStore, redis_store

__all__ = ["RedisStore", "redis_store"]
