"""Writes requirements.lock: every pin of constraints.txt with the sha256 of its file, for this platform.

    python tools/lock.py [--report FILE]

Run by `make lock` when constraints.txt has changed. pip itself chooses the files; --report takes an existing
report (`pip install --dry-run --no-deps --ignore-installed --report FILE`). torch is left out, because one
version has several builds (CPU, CUDA) that are different files, each from an index of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("torch",)


def pins() -> list[str]:
    """Return the lines of constraints.txt that are locked."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if "==" in line and line.partition("==")[0] not in LEFT_OUT]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def ask_pip() -> dict[str, Any]:
    """Run pip without installing; return its report on the files that it would install."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "pins.txt", Path(folder) / "report.json"
        wanted.write_text("\n".join(pins()))
        options = ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:", "--quiet"]
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *options,
            "--report",
            str(report),
            "-r",
            str(wanted),
        ]
        subprocess.run(command, check=True)
        return dict(json.loads(report.read_text()))


def locked(report: dict[str, Any]) -> list[str]:
    """Build the lock file's text from pip's report. Raises SystemExit if a pin has no file or no hash."""
    lines = {}
    for item in report["install"]:
        name, version = normalized(item["metadata"]["name"]), item["metadata"]["version"]
        sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines[f"{name}=={version}"] = f"{name}=={version} \\\n    --hash=sha256:{sha256}"
    wanted = {f"{normalized(pin.partition('==')[0])}=={pin.partition('==')[2]}" for pin in pins()}
    if missing := sorted(wanted - lines.keys()):
        raise SystemExit(f"pip has no file for {', '.join(missing)}")
    return [lines[pin] for pin in sorted(wanted)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--report", type=Path, help="what pip said before")
    report = parser.parse_args().report
    lines = locked(json.loads(report.read_text()) if report is not None else ask_pip())
    place = f"CPython {sys.version_info.major}.{sys.version_info.minor}, {platform.machine()} Linux"
    header = [
        f"# Made by `make lock` from constraints.txt, for {place}, torch apart.",
        "# Checked by `make audit-deps`; to install what is in it:",
        "#   pip install --require-hashes --no-deps -r requirements.lock",
    ]
    (ROOT / "requirements.lock").write_text("\n".join([*header, *lines]) + "\n")


if __name__ == "__main__":
    main()
