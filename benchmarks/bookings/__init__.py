"""How reservations move, measured: `python -m benchmarks.bookings`. The decision:
docs/decisions/reservations.md.

Way (a) reserves for every caller on arrival and records shifts; it is a prototype (shifts.py,
shifts.lua). Way (b) is headgate itself. Both do the same works, and the server's own figures count.
headgate uses nothing of this package.
"""
