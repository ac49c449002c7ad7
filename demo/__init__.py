"""The main job, for the eye: 200 calls to a strict server, without headgate and with it (`./run
demo`).

Not part of the wheel. `rules` has the server's limits, `server` is that server, `calls` are the
calls of one process, `processes` starts and stops the others. `show` draws, and `__main__` tells
the story.
"""
