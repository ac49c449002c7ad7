"""The tests of headgate.

`servers`, `virtual` and `processes` are what they stand on; the folders mirror the promises.
"""
