"""A fleet in one thread: the real shells and the real Lua, in a world whose time, network,
processes and server obey a seed.
"""
