"""The gate: pure decisions, each with its Lua twin beside it.

Here is no clock, no I/O, no asyncio and no lock.
"""
