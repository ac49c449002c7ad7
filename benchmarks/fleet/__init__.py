"""A fleet: many processes with many waiters each on one limiter; what must hold, and how near to
the ideal it comes.
"""
