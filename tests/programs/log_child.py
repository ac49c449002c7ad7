"""A parent and a child of multiprocessing that each log one line. Argument: the start method."""

import logging
import multiprocessing
import sys

from headgate import log_writer


def show_lines() -> None:
    logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)


def work() -> None:
    show_lines()
    log_writer.log(logging.WARNING, "in the child")


if __name__ == "__main__":
    show_lines()
    log_writer.log(logging.WARNING, "in the parent")
    log_writer.flush()
    sys.stdout.flush()
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    child.start()
    child.join()
