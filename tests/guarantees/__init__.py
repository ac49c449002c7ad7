"""docs/guarantees.md: written from the tests, the mutants, the simulation and the peers, by a
command; and held to be true.
"""
