"""Somebody asks again and again while a test looks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def repeated(ask: Callable[[threading.Event], object]) -> Iterator[None]:
    """Call it again and again beside a block, with the event that says that the block is over. Raises as it."""
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            ask(over)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(go_on)
        try:
            yield
        finally:
            over.set()
            asking.result()
