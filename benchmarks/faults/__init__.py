"""headgate and its peers under the same faults, on a real redis-server: the remaining permits, the
double effects, the overtaken callers.
"""
