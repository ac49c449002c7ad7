"""Fork while another thread imports a module of headgate, and import it in the child, too."""

import os
import signal
import threading
from importlib.machinery import SourceFileLoader

import headgate

begun, goes_on = threading.Event(), threading.Event()
load = SourceFileLoader.exec_module


def slowly(self, module):
    if module.__name__ == "headgate.classics":
        begun.set()
        goes_on.wait()
    load(self, module)


SourceFileLoader.exec_module = slowly
os.register_at_fork(before=goes_on.set)
thread = threading.Thread(target=lambda: headgate.TokenBucket)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    assert headgate.TokenBucket
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
