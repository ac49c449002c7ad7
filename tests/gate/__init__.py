"""The gate alone: no clock, no I/O, nobody who sleeps.

Time is an argument, and whoever is wrong is wrong by a number.
"""
