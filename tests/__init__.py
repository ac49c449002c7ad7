"""The tests of headgate.

`servers`, `virtual` and `processes` are their foundations; the folders mirror the promises.
"""
