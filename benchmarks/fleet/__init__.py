"""A fleet: many processes with many waiters each on one limiter; its checks, and how near to the
ideal it comes.
"""
