"""How bookings move, measured: `python -m benchmarks.bookings`. The decision:
docs/decisions/reservations.md.

What lives here: way (a), everybody booked on arrival and shifts recorded, as a prototype
(shifts.py, shifts.lua); way (b), headgate itself; the same works for both, and the server's own
figures. What must not: anything that headgate uses.
"""
