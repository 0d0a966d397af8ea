"""What can go wrong between us and the API server.

::

    KubeError
     ├── ConfigError        no usable kubeconfig, token or certificate: a person has to act
     ├── ApiUnreachable     no answer: refused, reset, timed out, half-open; trying again may help
     ├── NotLeader          our own lease is over, so the write was not sent
     └── ApiError           the server answered with a Status that is not a success
"""

from typing import Any

import msgspec

HTTP_NOT_FOUND = 404
HTTP_CONFLICT = 409
HTTP_GONE = 410
HTTP_TOO_MANY = 429
HTTP_SERVER_ERROR = 500


class KubeError(Exception):
    """Base of everything that this package raises."""


class ConfigError(KubeError):
    """The configuration does not say how to reach a cluster."""


class ApiUnreachable(KubeError):
    """No answer came; whether the request was carried out is not known."""


class NotLeader(KubeError):
    """The write was refused here, before it was sent, because another process may lead now."""


class _Status(msgspec.Struct):
    reason: str = ""
    message: str = ""
    code: int = 0
    details: dict[str, Any] | None = None


_status = msgspec.json.Decoder(_Status)


class ApiError(KubeError):
    """The server's refusal, with the fields of its Status object.

    :ivar status_code: the HTTP status, e.g. 409.
    :ivar reason: the machine-readable word, e.g. ``AlreadyExists``.
    :ivar message: the sentence for people.
    :ivar details: name, kind, causes and such, as sent.
    :ivar retry_after: seconds that the server asked us to wait, or None.
    """

    def __init__(
        self,
        status_code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        *,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status_code} {reason}: {message}")
        self.status_code = status_code
        self.reason = reason
        self.message = message
        self.details = details or {}
        if retry_after is None:
            named = self.details.get("retryAfterSeconds")
            retry_after = float(named) if isinstance(named, int | float) and named > 0 else None
        self.retry_after = retry_after

    @classmethod
    def from_response(cls, status_code: int, body: bytes, *, retry_after: float | None = None) -> "ApiError":
        """Read a Status object; a proxy's HTML page becomes a message of bounded length."""
        try:
            status = _status.decode(body)
        except msgspec.DecodeError:
            text = body[:300].decode(errors="replace").strip()
            return cls(status_code, "Unknown", text or "no message", retry_after=retry_after)
        return cls(
            status_code or status.code,
            status.reason or "Unknown",
            status.message or "no message",
            status.details,
            retry_after=retry_after,
        )

    @property
    def is_not_found(self) -> bool:
        """The object, its namespace or its kind is not there."""
        return self.status_code == HTTP_NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """A precondition (resourceVersion, UID) or another field manager stands against it."""
        return self.status_code == HTTP_CONFLICT and self.reason != "AlreadyExists"

    @property
    def already_exists(self) -> bool:
        """An object of that name is there."""
        return self.status_code == HTTP_CONFLICT and self.reason == "AlreadyExists"

    @property
    def is_gone(self) -> bool:
        """The version that was asked for is too old: list again."""
        return self.status_code == HTTP_GONE or self.reason in {"Expired", "Gone"}

    @property
    def is_invalid(self) -> bool:
        """The object itself is wrong: sending it again cannot help."""
        return self.reason in {"Invalid", "BadRequest"}

    @property
    def is_forbidden(self) -> bool:
        """Our role does not allow it, a quota is used up, or the namespace is going away."""
        return self.reason == "Forbidden"

    @property
    def namespace_terminating(self) -> bool:
        """Nothing can be created there any more."""
        causes = self.details.get("causes") or ()
        return any(isinstance(c, dict) and c.get("reason") == "NamespaceTerminating" for c in causes)

    @property
    def is_transient(self) -> bool:
        """The server was not able to answer now; the same request may succeed later."""
        return self.status_code == HTTP_TOO_MANY or self.status_code >= HTTP_SERVER_ERROR
