"""What a browser sends, and what it may have been tricked into sending. Pure: header values in, answers out.

The token is in a cookie that scripts cannot read and that the browser sends from this site only (HttpOnly,
SameSite=Strict): no session is kept, so that any master of a store takes it.
A request that changes something is taken from a page of this same host alone. A master without tokens has no
cookie to go by; without TLS it also refuses names that anybody could have made point at it (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from elastane_master.decisions.events import Rejection

_PLAIN_COOKIE = "elastane_token"
_TLS_COOKIE = "__Host-elastane_token"
_PRIVATE_SUFFIXES = (
    ".localhost",
    ".local",
    ".internal",
    ".svc",
    ".cluster.local",
    ".lan",
    ".home.arpa",
    ".test",
)
"""Names that no public name server answers for."""

TOKEN_CHARACTERS_MAX = 2048


def cookie_name(*, tls: bool) -> str:
    """With TLS a name which the browser takes from this very host over TLS alone."""
    return _TLS_COOKIE if tls else _PLAIN_COOKIE


def cookie_value(token: str) -> str:
    """A token as a cookie can hold it."""
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def token_of_cookie(value: str) -> str | None:
    """The token in a cookie; None for what `cookie_value` did not make."""
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def checked_token(text: str) -> str:
    """A token as somebody typed or pasted it. Raises Rejection."""
    token = text.strip()
    if not token or len(token) > TOKEN_CHARACTERS_MAX or not token.isascii() or not token.isprintable():
        raise Rejection("unauthenticated", "this is not a token", hint="paste the content of the token file")
    return token


def require_same_site(headers: Mapping[str, str], *, by_cookie: bool) -> None:
    """Raises Rejection for a request that another site's page may have made.

    by_cookie: the caller is known by a cookie, which a browser sends by itself: without the headers that
    browsers add to such a request, it is refused.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site not in ("same-origin", "none"):
        raise _foreign()
    origin = headers.get("Origin")
    if origin is None:
        if by_cookie and site is None:
            raise _foreign()
        return
    try:
        own = origin.startswith(("http://", "https://")) and urlsplit(origin).netloc == headers.get(
            "Host", ""
        )
    except ValueError:
        own = False
    if not own:
        raise _foreign()


def require_own_name(host: str, own_names: Collection[str]) -> None:
    """Raises Rejection unless the Host header is a name that others cannot make point here.

    An address, a name without a dot, one of the private domains, or one of `own_names`.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        name = ""
    if name and ("." not in name or name in own_names or name.endswith(_PRIVATE_SUFFIXES)):
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise Rejection(
            "permission_denied",
            f"a master without tokens does not answer to the name {name[:80]!r}",
            hint="open it by its address, or give the master a table of tokens (docs/security.md)",
        ) from None


def _foreign() -> Rejection:
    return Rejection(
        "permission_denied",
        "the request did not come from a page of this dashboard",
        hint="open the job's page here and press the button again",
    )
