"""headgate and its peers under the same faults, on a real redis-server: what is left, what was done
twice, who was overtaken.
"""
