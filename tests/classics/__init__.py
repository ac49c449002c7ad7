"""The classic primitives, by their descriptions: what was written for them elsewhere runs here
unchanged.
"""
