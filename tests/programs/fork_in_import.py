"""Fork while another thread imports a module for headgate, and import it in the child, too.

The arguments: the module, and an expression that imports it.
"""

import os
import signal
import sys
import threading
from importlib.machinery import SourceFileLoader

import headgate

name, use = sys.argv[1:]
begun, goes_on = threading.Event(), threading.Event()
load = SourceFileLoader.exec_module


def slowly(self, module):
    if module.__name__ == name:
        begun.set()
        goes_on.wait()
    load(self, module)


SourceFileLoader.exec_module = slowly
os.register_at_fork(before=goes_on.set)
thread = threading.Thread(target=eval, args=(use, {"headgate": headgate}))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    assert eval(use)
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
