"""Clients that send requests to a fleet while faults happen."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from bench.fleet.faults.asks import Ask, End, Outcome, judged
from bench.fleet.faults.connection import SLACK_S, Connection

_AGAIN_S = 0.05
_PATIENCE_S = 120.0


class Load:
    """Sends requests in turn from several threads while it is entered as a context.

    If a connection breaks because a router died, or by `cut_clients`, the client tries again within
    the deadline, as a load balancer would. After any other break, the request counts as lost.

    Args:
        clients: number of clients, each in a thread.
        deadline_s: of every request.
        pause_s: pause of a client between two requests.
        router_died: whether a router was dying or dead at any time between two times of
            `time.monotonic`.

    Attributes:
        outcomes: of all requests that have ended.
    """

    def __init__(
        self,
        port: int,
        asks: Sequence[Ask],
        clients: int,
        *,
        deadline_s: float = 60.0,
        pause_s: float = 0.0,
        router_died: Callable[[float, float], bool] = lambda _begin_s, _end_s: False,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._asks = asks
        self._deadline_s = deadline_s
        self._pause_s = pause_s
        self._router_died = router_died
        self._ended = threading.Condition()
        self._over = threading.Event()
        self._connections = [Connection(port) for _ in range(clients)]
        self._threads = [
            threading.Thread(target=self._send, args=each) for each in enumerate(self._connections)
        ]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        for connection in self._connections:
            connection.close()

    def cut_clients(self) -> None:
        """Break all connections of the clients; each sends its request again on a new one."""
        for each in self._connections:
            each.cut()

    def wait_more(self, answers: int) -> None:
        """Wait until `answers` more requests have ended.

        Raises:
            TimeoutError: fewer have ended within two minutes.
        """
        with self._ended:
            wanted = len(self.outcomes) + answers
            if not self._ended.wait_for(lambda: len(self.outcomes) >= wanted, _PATIENCE_S):
                raise TimeoutError(f"{wanted - len(self.outcomes)} requests have not ended")

    def ends(self) -> Counter[End]:
        return Counter(each.end for each in self.outcomes)

    def late(self) -> list[Outcome]:
        """Those that ended after their deadline."""
        return [each for each in self.outcomes if each.seconds > self._deadline_s + SLACK_S]

    def unwanted(self) -> list[Outcome]:
        """Those that are wrong or lost, or that came late."""
        wrong = [each for each in self.outcomes if each.end in (End.WRONG, End.LOST)]
        return wrong + self.late()

    def _send(self, number: int, connection: Connection) -> None:
        while not self._over.wait(self._pause_s):
            number = (number + 1) % len(self._asks)
            outcome = self._outcome(self._asks[number], connection)
            with self._ended:
                self.outcomes.append(outcome)
                self._ended.notify_all()

    def _outcome(self, ask: Ask, connection: Connection) -> Outcome:
        begin_s, again, why = time.monotonic(), 0, ""
        while (left_s := begin_s + self._deadline_s - time.monotonic()) > 0:
            sent_s = time.monotonic()
            try:
                status, content = connection.post(ask.path, ask.body, dict(ask.headers), left_s)
            except TimeoutError:
                why = "no answer by the deadline"
                connection.close()
                return Outcome(End.LOST, time.monotonic() - begin_s, again, why)
            except (OSError, http.client.HTTPException) as error:
                was_cut, now_s = connection.is_cut, time.monotonic()
                connection.close()
                why = f"{type(error).__name__}: {error}"
                if not was_cut and not self._router_died(sent_s, now_s):
                    return Outcome(End.LOST, now_s - begin_s, again, why)
                again += 1
                time.sleep(_AGAIN_S)
                continue
            return judged(ask, status, content, time.monotonic() - begin_s, again)
        return Outcome(End.CLEAR, time.monotonic() - begin_s, again, f"no router: {why}")
