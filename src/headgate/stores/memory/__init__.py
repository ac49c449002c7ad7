"""The memory store: the state of each name in this process, behind one lock."""
