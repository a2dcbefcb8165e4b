"""Keeping a number of requests outstanding on a connection."""

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
    """A loop that keeps up to `width` calls of `make` outstanding, until there are no more calls and no open answers.

    `make` returns a token and a call, or None for no call now. `came` receives the token, the answer, and the times of
    the request and the answer on the clock `seconds`. The first failed request ends the pump with its error.
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
        """Start the pump. The result fires at its end."""
        self._fill()
        return self._ended

    def stop(self) -> None:
        """End the pump without an error. Later answers are ignored."""
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
        except Exception:  # an errback for this would double the cost of each request
            self._failed(Failure())

    def _failed(self, failure: Failure) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended.errback(failure)
