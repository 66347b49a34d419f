"""Lets a master that is a test's own say which version of the protocol it speaks, as real ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from elastane_proto import versions

_SPOKEN = ((versions.METADATA_KEY, str(versions.PROTOCOL)),)


class TellsVersion(grpc.ServerInterceptor):
    """For `grpc.server(..., interceptors=[TellsVersion()])`."""

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        handler = continuation(details)
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            if getattr(handler, kind, None) is not None:
                return handler._replace(**{kind: _telling(getattr(handler, kind))})
        return handler


def _telling(behavior: Callable[..., Any]) -> Callable[..., Any]:
    def respond(request: Any, context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata(_SPOKEN)
        return behavior(request, context)

    return respond
