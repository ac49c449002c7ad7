"""Connections, servers and reconnection."""
