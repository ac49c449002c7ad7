"""The gate alone: no clock, no I/O, no task that sleeps.

Time is an argument, so a wrong result is a wrong number.
"""
