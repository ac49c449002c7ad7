"""A logging handler that asks a limiter. Arguments: URL, name, on_store_error.

For each line of its input, the program enters a limiter. Then it says how many lines of headgate's
log the handler has let pass so far.
"""

import faulthandler
import logging
import sys

from headgate import Limiter, log_writer

alerts = 0


class Handler(logging.Handler):
    def __init__(self, limiter: Limiter) -> None:
        super().__init__()
        self._limiter = limiter

    def emit(self, record: logging.LogRecord) -> None:
        global alerts
        if self._limiter.try_acquire():
            alerts += 1


def main(url: str, name: str, mode: str) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    logging.getLogger().addHandler(
        Handler(Limiter(f"{name}-alerts", "100/second burst 100", store=url, on_store_error=mode))
    )
    limiter = Limiter(name, "1000/second burst 1000", store=url, on_store_error=mode)
    print("ready", flush=True)
    for _ in sys.stdin:
        with limiter:
            pass
        log_writer.flush()
        print(alerts, flush=True)


main(*sys.argv[1:])
