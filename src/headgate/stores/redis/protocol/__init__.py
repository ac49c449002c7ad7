"""Calls to the script and its replies."""
