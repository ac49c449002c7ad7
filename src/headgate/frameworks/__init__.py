"""Frameworks that have a place for a limiter: one module for each, imported when it is used.

    headgate.frameworks.langchain      a `BaseRateLimiter` for chat models
    headgate.frameworks.pydantic_ai    a concurrency limiter for models and agents
    headgate.frameworks.litellm        a callback that lets calls pass and settles their tokens
    headgate.frameworks.tenacity       a wait strategy that waits for as long as a refusal says
    headgate.frameworks.stamina        a hook that does the same

A framework's name is known in its own module alone, and importing `headgate.frameworks` imports none. The HTTP clients under them
are limited by `headgate.http`, which knows when a call begins and ends on the wire.
"""
