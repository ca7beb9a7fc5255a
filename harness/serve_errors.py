"""A request that is not answered, as OpenAI's routes say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {404: "not_found_error", 405: "not_found_error", 503: "overloaded_error", 500: "server_error"}


class Refusal(Exception):
    """What is wrong with a request, or with the server.

    Args:
        status: HTTP status.
        message: what is wrong, the value, what is allowed.
        param: key of the body that is meant.
        code: for programs.
        headers: sent along.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that is sent."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
