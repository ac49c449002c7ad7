"""Real topologies: one server by TLS, a primary with Sentinels, a cluster of six nodes; and clients
of every kind.

This folder has only scenarios: the promises that hold while servers fail over and slots move (F30,
F37, F38, F40), and the ways to say where the servers are. The servers themselves: tests/servers.py,
sentinels.py, clusters.py.
"""
