"""The cost of headgate for the server: its CPU for each acquire, and whether a call takes longer
when many wait or hold.
"""
