"""Every client, limited, against a service that enforces its rules and counts: `python -m
benchmarks.services`.

Here are a fleet of processes, the clients as users write them, and the best time that the rules
allow. The service is that of the examples; it knows nothing of headgate.
"""
