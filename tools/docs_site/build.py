"""Assembles the sources of the site and builds them with Sphinx; every warning is an error."""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from sphinx.application import Sphinx

from docs_site.assemble import assemble

CONFIGURATION = Path(__file__).parent


def build(out: Path) -> str:
    """Build the site into the folder `out`, which is replaced; return Sphinx's warnings, or "".

    Called by `make docs` and by the tests. With warnings, `out` is left as it was.
    """
    with tempfile.TemporaryDirectory(prefix="elastane-site-") as folder:
        source, made = Path(folder) / "source", Path(folder) / "html"
        assemble(source)
        warnings = io.StringIO()
        Sphinx(
            srcdir=source,
            confdir=CONFIGURATION,
            outdir=made,
            doctreedir=Path(folder) / "doctrees",
            buildername="html",
            status=None,
            warning=warnings,
        ).build()
        faults = warnings.getvalue()
        if not faults:
            shutil.rmtree(out, ignore_errors=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(made, out)
        return faults
