"""Frameworks that have a place for a limiter: one module for each, imported when it is used.

    headgate.frameworks.langchain      a `BaseRateLimiter` for chat models
    headgate.frameworks.pydantic_ai    a concurrency limiter for models and agents
    headgate.frameworks.litellm        a callback that limits calls and settles their tokens
    headgate.frameworks.tenacity       a wait strategy that waits as long as a refusal says
    headgate.frameworks.stamina        a hook that does the same

Only the module of a framework imports it, and `import headgate.frameworks` imports none. To limit
the HTTP client under a framework, use `headgate.http`: it knows when a call begins and ends.
"""
