"""Forms that browsers send, and the answers to them: what all handlers of the dashboard share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web

from elastane_master.decisions.events import Rejection

FORM_BYTES_MAX: Final = 16 * 1024
FORM_SECONDS: Final = 10.0
"""Limits for the size of a form and the time it takes to arrive."""


async def fields_of(request: web.Request) -> Mapping[str, str]:
    """Read the fields of a form. Raises Rejection."""
    if request.content_type != "application/x-www-form-urlencoded":
        if not request.body_exists:
            return {}
        raise Rejection("invalid_argument", f"expected a form, not {request.content_type[:80]}")
    if (request.content_length or 0) > FORM_BYTES_MAX:
        raise Rejection("limit_exceeded", f"a form of {request.content_length} bytes")
    try:
        async with asyncio.timeout(FORM_SECONDS):
            posted = await request.post()
    except TimeoutError:
        raise Rejection("limit_exceeded", f"the form did not arrive within {FORM_SECONDS:g} s") from None
    except web.HTTPRequestEntityTooLarge as error:
        raise Rejection("limit_exceeded", "the form is too large") from error
    except (ValueError, LookupError) as error:
        raise Rejection("invalid_argument", "the form cannot be read") from error
    except (ConnectionError, web.RequestPayloadError) as error:  # not our fault: any client may disconnect
        raise Rejection("invalid_argument", "the form is incomplete") from error
    return {name: value for name, value in posted.items() if isinstance(value, str)}


def see_other(place: str) -> web.Response:
    """Redirect to another page, which is then asked for without the form."""
    return web.Response(status=303, headers={hdrs.LOCATION: place})


def html(page: str, status: int = 200) -> web.Response:
    """Answer with a page."""
    return web.Response(text=page, content_type="text/html", status=status)


def sentence(error: Rejection) -> str:
    """Return the text of a refusal as a sentence."""
    text = str(error)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
