"""What one event loop has in flight under one name."""
