"""Frameworks, each in its real package, with a limiter and a clock that takes no real time."""
