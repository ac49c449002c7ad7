"""headgate and its peers, side by side on the same work in one run: `python -m benchmarks`.

What lives here: the works (rows, shapes), the contestants (peers), the clock and the table. What
must not: a figure from an earlier run, or a special case for one contestant anywhere but in its own
module under peers/.
"""
