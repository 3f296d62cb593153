"""Every error that this package raises on purpose.

::

    PrefillExtError
    ├── ConfigError              a flag or a combination of flags that cannot work
    ├── UnsupportedSGLangError   the installed SGLang differs from what the patch table expects
    ├── PackingError             rows that cannot be packed (a bug of ours, never the user's)
    ├── RequestError             what the user asked for is wrong          -> HTTP 400
    │   └── TooManyItemsError    more items than the configured limit      -> HTTP 400
    ├── RequestAbortedError      the client left, or an operator aborted   -> HTTP 503
    ├── PackedForwardError       the forward of this request failed        -> HTTP 500
    ├── ServerBusyError          too much waits already                    -> HTTP 429
    ├── DeadlineExceededError    the request could not be served in time   -> HTTP 504
    ├── EngineUnavailableError   a front end reaches no engine             -> gRPC UNAVAILABLE
    ├── ClientError              a client of ours got no answer that it can use
    │   ├── ServerRefusedError       the server answered with an error that no repeat cures
    │   ├── ServerUnavailableError   no connection, or HTTP 503
    │   └── UnexpectedAnswerError    what answers there is not an SGLang server
    ├── ServerStartError         a local server did not start, or was not ready in time
    ├── ClusterError             no cluster of Ray, or one with too little room
    └── ModelSpecError           `make-model` was asked for something it cannot make

`RequestError` is also a `ValueError`, because that is what SGLang's HTTP and gRPC
handlers turn into a client error.
"""


class PrefillExtError(Exception):
    """Base of all errors of sglang-prefill-ext."""


class ConfigError(PrefillExtError):
    """A flag, or a combination of flags, cannot work; the message names the remedy."""


class UnsupportedSGLangError(PrefillExtError):
    """The installed SGLang differs from what the patch table expects."""


class PackingError(PrefillExtError):
    """Rows, plans or messages are inconsistent; always a defect of this package."""


class RequestError(PrefillExtError, ValueError):
    """The request is wrong; the message names the `field`, the value and the remedy."""

    field: str = ""


class TooManyItemsError(RequestError):
    """A request has more items than `--prefill-only-max-items`."""


class RequestAbortedError(PrefillExtError):
    """The request ended before its answer: the client left, or an operator aborted it."""


class PackedForwardError(PrefillExtError):
    """The packed forward of this request failed; other requests are not affected."""


class ServerBusyError(PrefillExtError):
    """Too much waits already; there will be room in about `retry_after_s` seconds, 0: unknown."""

    retry_after_s: float = 0.0


class DeadlineExceededError(PrefillExtError):
    """The request waited until it could not be served in the time that the client gave it."""


class EngineUnavailableError(PrefillExtError):
    """A front end in a process of its own reaches no engine that it can serve."""


class ClientError(PrefillExtError):
    """A client got no answer that it can use; the message names what was asked, and the remedy."""


class ServerRefusedError(ClientError):
    """The server refused a request or failed at it: HTTP `status`, and the server's `message`."""

    status: int = 0
    message: str = ""


class ServerUnavailableError(ClientError):
    """No connection, or HTTP 503; try again in about `retry_after_s` seconds, 0: unknown."""

    retry_after_s: float = 0.0


class UnexpectedAnswerError(ClientError):
    """Something answered with HTTP 200, but not as an SGLang server does."""


class ServerStartError(PrefillExtError):
    """A local server did not start; the message ends with the last lines of its log."""


class ClusterError(PrefillExtError):
    """A cluster of Ray cannot be reached, or has too little room for the engines."""


class ModelSpecError(PrefillExtError):
    """`make-model` was asked for an unknown preset or an unusable directory."""
