"""`python -m docs_site [build|errors|comparison|pictures]`: the site, or what is generated and committed."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from docs_site import comparison_figures, errors_page, pictures
from docs_site.paths import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs_site", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=("build", "errors", "comparison", "pictures"), default="build"
    )
    parser.add_argument("--out", type=Path, default=ROOT / ".elastane" / "site", help="folder of the site")
    arguments = parser.parse_args()
    if arguments.what == "errors":
        errors_page.PAGE.write_text(errors_page.render(), encoding="utf-8")
        print(f"wrote {errors_page.PAGE}")
    elif arguments.what == "comparison":
        page, measured = comparison_figures.PAGE, comparison_figures.MEASURED
        made = comparison_figures.render(
            page.read_text(encoding="utf-8"), measured.read_text(encoding="utf-8")
        )
        page.write_text(made, encoding="utf-8")
        print(f"wrote {page}")
    elif arguments.what == "pictures":
        for path, text in pictures.all_pictures().items():
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    else:
        from docs_site.build import build  # only this command needs Sphinx

        began = time.monotonic()
        faults = build(arguments.out.absolute())
        if faults:
            print(faults, file=sys.stderr)
            return 1
        print(f"{arguments.out}/index.html, in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
