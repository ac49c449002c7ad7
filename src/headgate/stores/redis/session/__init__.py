"""The session: one event loop's conversation with the store about one name, and its parts."""
