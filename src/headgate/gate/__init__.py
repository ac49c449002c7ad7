"""The gate: pure decisions without clock, I/O and locks. Each has its Lua twin beside it."""
