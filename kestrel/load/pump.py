"""Keeps so many requests under way on a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kestrel.client.call import Call
from kestrel.client.pipeline import Pipeline

Token = TypeVar("Token")
T = TypeVar("T")


class Pump(Generic[Token, T]):
    """Asks what `make` makes, `width` of them at a time, until it has no more for now and all are answered.

    `make` returns a call and what it is known by, or None. `came` is told that, the answer, when the request was made
    and when the answer was there, on the clock `seconds`. The first request that fails ends it, with its error.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        width: int,
        make: Callable[[], tuple[Token, Call[T]] | None],
        came: Callable[[Token, T, float, float], None],
        seconds: Callable[[], float],
    ) -> None:
        self._pipeline = pipeline
        self._width = width
        self._make = make
        self._came = came
        self._seconds = seconds
        self._outstanding = 0
        self._is_filling = False
        self._is_over = False
        self._ended: Deferred[None] = Deferred()

    def run(self) -> Deferred[None]:
        """Begin; fires at the end."""
        self._fill()
        return self._ended

    def stop(self) -> None:
        """End now, and well; what is under way is of no interest."""
        if not self._is_over:
            self._is_over = True
            self._ended.callback(None)

    def _fill(self) -> None:
        if self._is_filling:
            return
        self._is_filling = True
        while not self._is_over and self._outstanding < self._width and (made := self._make()) is not None:
            token, call = made
            self._outstanding += 1
            args = (token, self._seconds())
            self._pipeline.ask(call).addCallbacks(self._answered, self._failed, callbackArgs=args)
        self._is_filling = False
        if not self._outstanding:
            self.stop()

    def _answered(self, value: T, token: Token, began_s: float) -> None:
        self._outstanding -= 1
        if self._is_over:
            return
        try:
            self._came(token, value, began_s, self._seconds())
            self._fill()
        except Exception:  # an errback of its own would cost each request as much as its callback
            self._failed(Failure())

    def _failed(self, failure: Failure) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended.errback(failure)
