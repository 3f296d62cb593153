"""Every error that this package raises on purpose."""

import math


class PrefillExtError(Exception):
    """Base of all errors of sglang-prefill-ext."""


class ConfigError(PrefillExtError):
    """A flag, or a combination of flags, cannot work; the message names the remedy."""


class UnsupportedSGLangError(PrefillExtError):
    """The installed SGLang differs from what the patch table expects."""


class PackingError(PrefillExtError):
    """Rows, plans or messages are inconsistent; always a defect of this package."""


class RequestError(PrefillExtError, ValueError):
    """The request is wrong (HTTP 400); the message names the `field`, the value and the remedy.

    It is a `ValueError`, because SGLang's HTTP and gRPC handlers report that as a client's error.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class WrongTypeError(RequestError, TypeError):
    """A prompt holds what is no token id, or no character; SGLang raises `TypeError`."""


class TooManyItemsError(RequestError):
    """A request has more items than `--prefill-only-max-items`."""


class RequestAbortedError(PrefillExtError):
    """The client left, or an operator aborted the request (HTTP 503)."""


class PackedForwardError(PrefillExtError):
    """The packed forward of this request failed (HTTP 500); other requests are not affected."""


class ServerBusyError(PrefillExtError):
    """Too much waits already (HTTP 429); retry after `retry_after_s` seconds, 0: unknown."""

    retry_after_s: float = 0.0

    def retry_header(self) -> dict[str, str]:
        """HTTP's header that says when: in whole seconds, at least 1."""
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


class DeadlineExceededError(PrefillExtError):
    """The request could not be served within the client's timeout (HTTP 504)."""


class EngineUnavailableError(PrefillExtError):
    """The engine has gone, or is shutting down (HTTP 503, gRPC UNAVAILABLE)."""


class ClientError(PrefillExtError):
    """A client got no usable answer; the message names the request and the remedy."""


class ServerRefusedError(ClientError):
    """The server refused a request, or failed: HTTP `status`, and the server's `message`."""

    status: int = 0
    message: str = ""


class ServerUnavailableError(ClientError):
    """No connection, or HTTP 503; try again in about `retry_after_s` seconds, 0: unknown."""

    retry_after_s: float = 0.0


class UnexpectedAnswerError(ClientError):
    """Something answered with HTTP 200, but not as an SGLang server does, or not for the labels."""


class ServerStartError(PrefillExtError):
    """A local server did not start; the message ends with the last lines of its log."""


class ClusterError(PrefillExtError):
    """A Ray cluster cannot be reached, or has too little room for the engines."""


class ModelSpecError(PrefillExtError):
    """`make-model` got an unknown preset or an unusable directory."""
