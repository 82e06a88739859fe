"""Compile time, told apart from run time."""

import time

import jax.monitoring

_COMPILING = ("/jax/core/compile/",)
_spent = [0.0]


def _listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    del kwargs
    if event.startswith(_COMPILING):
        _spent[0] += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


class CompileClock:
    """A stopwatch that knows how much of the time went into compiling."""

    def __init__(self):
        self._begun = time.perf_counter()
        self._spent = _spent[0]

    def compiling(self) -> float:
        """Seconds spent compiling since the start."""
        return _spent[0] - self._spent

    def running(self) -> float:
        """Seconds since the start, without compiling."""
        return time.perf_counter() - self._begun - self.compiling()
