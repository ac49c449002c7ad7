"""The parts of a release, and the files that the hosting site reads; nothing of the package's
behaviour.
"""
