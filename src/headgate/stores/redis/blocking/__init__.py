"""For threads that have no event loop."""
