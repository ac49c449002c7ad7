"""Bad input gets a clear error before any I/O: by calls of the public surface, with values that
users really pass.
"""
