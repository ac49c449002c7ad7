"""The tools for users' tests: the manual clock, the assertions, the fixtures."""
