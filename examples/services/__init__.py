"""Services of this machine, for the examples to call: what they do without headgate, and nothing of
headgate.
"""
