"""Real faults on real servers: between the clients and a server much goes wrong, and the promises
hold all the same (F12 to F55).

This folder has only scenarios and their tools: a network that misbehaves on demand, processes that
are killed, constants that are shorter. A test waits for an effect that it has caused, and never for
time to pass.
"""
