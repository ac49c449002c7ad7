"""Real faults on real servers: what goes wrong between clients and a server, and what must hold all
the same (F12 to F55).

Here live stories only, and what they need to be told: a network that misbehaves on demand,
processes that are killed, constants that are shorter. A story waits for what it has caused, never
for time to pass.
"""
