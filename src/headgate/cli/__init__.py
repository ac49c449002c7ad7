"""The command `headgate`: to see limiters on Redis, to change them, and to run commands under them.

Arguments are in parser.py, exit codes in exits.py. Each group of verbs has a module, which is
imported when one of its verbs runs. The verbs act by a `Limiter`, as any program does. They ask
internals.py and the store only for views and acts that a `Limiter` does not offer.
"""
