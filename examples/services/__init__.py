"""Services of this machine, for the examples to call: their behaviour without headgate, and nothing
of headgate.
"""
