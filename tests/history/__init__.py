"""Histories: the calls and answers of any run, simulated or real, replayed against the sequential
model in one pass.

A history holds every call that the store has run, in that order. It also holds every call and
answer of its clients, in the order of time. `python -m tests.history FILE` judges one that was kept
as lines of JSON.
"""
