"""Histories: what was asked and answered in any run, simulated or real, replayed against the
sequential model in one pass.

A history holds every call that the store has run, in that order, and what its clients have seen of
them and when. `python -m tests.history FILE` judges one that was kept as lines of JSON.
"""
