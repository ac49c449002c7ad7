"""The calls to the script, and its replies."""
