"""Real topologies: one server by TLS, a primary with Sentinels, a cluster of six nodes; and clients
of every kind.

Here live stories only: what must hold while servers fail over and slots move (F30, F37, F38, F40),
and how headgate is told where they are. The servers themselves: tests/servers.py, sentinels.py,
clusters.py.
"""
