"""The clients that people use, limited, against a service that counts: real clients, a real server, no mocks of either."""
