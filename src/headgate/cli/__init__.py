"""The command `headgate`: to see limiters on Redis, to change them, and to run commands under them.

Arguments are in parser.py, exit codes in exits.py. Each group of verbs has a module, which is
imported when one of its verbs runs. Like any program, the verbs use the public names of headgate.
"""
