"""Makes a release of a commit, or prints its notes.

    python -m release --key ~/.ssh/id_ed25519          all files of a release, into dist/
    python -m release --candidate                      the same of what is not released yet
    python -m release notes [--candidate]              its notes alone

`make release` and `make release-notes` call it. Without a key SHA256SUMS is not signed. Exits with 1 where a
file cannot be made; nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from release import checksums, materials, notes, packages
from release.paths import ROOT, version_of

NOTES = "RELEASE-NOTES.md"


def main(arguments: list[str] | None = None) -> int:
    words = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m release", description=words)
    parser.add_argument("what", nargs="?", choices=("files", "notes"), default="files")
    parser.add_argument("--commit", default="HEAD", help="what is released (default: HEAD)")
    parser.add_argument("--candidate", action="store_true", help="take the notes of the section Unreleased")
    parser.add_argument("--key", type=Path, help="SSH key that signs SHA256SUMS")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="folder, must be empty (default: dist)"
    )
    given = parser.parse_args(arguments)
    if given.what == "files" and given.out.is_dir() and any(given.out.iterdir()):
        parser.error(
            f"{given.out} is not empty: remove what is in it, or choose another folder (--out, OUT=)"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="elastane-release-") as folder:
            source = Path(folder)
            if given.key is not None and given.what == "files":
                checksums.require_usable(given.key)
            packages.export(given.commit, source)
            if given.what == "notes":
                print(_notes(source, given.candidate), end="")
            else:
                made = release(
                    source, given.out, packages.commit_time(given.commit), candidate=given.candidate
                )
                if given.key is not None:
                    made.append(checksums.sign(given.out / checksums.FILE, given.key))
                for path in made:
                    print(f"{path.stat().st_size:10,} bytes  {path}")
    except (notes.NoSectionError, materials.MaterialsError, checksums.SigningError) as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        said = error.stdout if isinstance(error.stdout, str) else ""
        print(f"{said}{' '.join(error.cmd[:4])} ... ended with code {error.returncode}", file=sys.stderr)
        return 1
    return 0


def release(source: Path, out: Path, made: int, *, candidate: bool) -> list[Path]:
    """Write the files of a release into `out` and return them, SHA256SUMS last.

    source: its files, as committed. made: its time in seconds since 1970, which all files bear. Raises
    NoSectionError before anything is built, MaterialsError, subprocess.CalledProcessError.
    """
    text = _notes(source, candidate)
    out.mkdir(parents=True, exist_ok=True)
    files = packages.build(source, out, made)
    version = version_of(source)
    [wheel] = [path for path in files if path.suffix == ".whl"]
    bill = out / f"elastane-{version}.cdx.json"
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    bill.write_text(materials.render(wheel.name, sha256, version, made, source), encoding="utf-8")
    (out / NOTES).write_text(text, encoding="utf-8")
    files += [bill, out / NOTES]
    return [*files, checksums.write(out, files)]


def _notes(source: Path, candidate: bool) -> str:
    changelog = (source / "CHANGELOG.md").read_text(encoding="utf-8")
    return notes.render(changelog, version_of(source), candidate=candidate)


if __name__ == "__main__":
    sys.exit(main())
