"""Limited HTTP clients against a service that counts: real clients and a real server, no mocks."""
