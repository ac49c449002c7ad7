"""Hides OpenTelemetry from the programs of tests: with this folder on the path, its import fails.

redis-py imports the whole SDK wherever it is installed, which takes a fifth of a program's start.
"""

raise ImportError("tests/programs/lean hides OpenTelemetry")
