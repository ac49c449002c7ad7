"""headgate and its peers, side by side on the same work in one run: `python -m benchmarks`.

Here are the works (rows, shapes), the contestants (peers), the clock and the table. Here is no
figure from an earlier run. A special case for one contestant stands only in its own module under
peers/.
"""
