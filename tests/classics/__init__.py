"""The classic primitives, by their descriptions: code that was written for them elsewhere runs here
unchanged.
"""
