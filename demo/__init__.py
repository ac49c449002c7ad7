"""The main job, for the eye: 200 calls to a strict server, without headgate and with it (`./run
demo`).

Not part of the wheel. `rules` says what the server allows, `server` is that server, `calls` are the
calls of one process, `processes` starts and stops the others, `show` draws, and `__main__` tells
the story.
"""
