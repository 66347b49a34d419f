"""Cookies, and protection against requests that a browser was tricked into sending. Pure: only header values.

The token is kept in a cookie that scripts cannot read and that browsers send only from this site (HttpOnly,
SameSite=Strict). There is no session on the server, so every master of a store accepts the cookie.
A request that changes something is accepted only from a page of this same host. A master without tokens has
no cookie to rely on; without TLS it also refuses host names that anybody could point at it (DNS rebinding).
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
"""Domains that public name servers do not resolve."""

TOKEN_CHARACTERS_MAX = 2048
THEME_COOKIE = "elastane_theme"
THEME_SECONDS = 365 * 86_400
"""How long a browser remembers the colours that were chosen."""


def cookie_name(*, tls: bool) -> str:
    """Return the cookie's name; with TLS, its prefix makes browsers accept it from this host only."""
    return _TLS_COOKIE if tls else _PLAIN_COOKIE


def cookie_value(token: str) -> str:
    """Encode a token as a cookie's value."""
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def token_of_cookie(value: str) -> str | None:
    """Decode a cookie's value; inverse of `cookie_value`. None if it is invalid."""
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4), b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def checked_token(text: str) -> str:
    """Return a token that a user entered, without surrounding blanks. Raises Rejection if it is invalid."""
    token = text.strip()
    if not token or len(token) > TOKEN_CHARACTERS_MAX or not token.isascii() or not token.isprintable():
        raise Rejection("unauthenticated", "this is not a token", hint="paste the content of the token file")
    return token


def require_same_site(headers: Mapping[str, str], *, by_cookie: bool) -> None:
    """Raise Rejection for a request that a page of another site may have made.

    by_cookie: the caller is authenticated by a cookie, which browsers send by themselves; so the headers by
    which a browser names the requesting site are required.
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
    """Raise Rejection unless the Host header is a name that others cannot point at this master.

    That is an IP address, a name without a dot, a name in a private domain, or one of `own_names`.
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


def came_from(headers: Mapping[str, str]) -> str | None:
    """Return the page of this host from which a form was sent; None: it is not told."""
    try:
        page = urlsplit(headers.get("Referer", ""))
    except ValueError:
        return None
    if page.scheme not in ("http", "https") or page.netloc != headers.get("Host", ""):
        return None
    return page.geturl()


def _foreign() -> Rejection:
    return Rejection(
        "permission_denied",
        "the request did not come from a page of this dashboard",
        hint="open the job's page here and press the button again",
    )
