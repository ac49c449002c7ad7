"""Frameworks, each in its real package: what they do with a limiter, in a time that takes none."""
