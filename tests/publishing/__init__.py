"""What a release consists of, and what the hosting site reads; nothing of what the package does."""
