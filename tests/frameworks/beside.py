"""An original script beside its converted form: lines changed, and the bits of both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from elastane_cli.verify.reference import parse_reference
from elastane_cli.verify.run import VerifyResult, run_verify

SCRIPTS = Path(__file__).parent / "scripts"


def converted(name: str, changes: Mapping[str, str], folder: Path) -> Path:
    """Write the script with some lines changed, each of which occurs once. Returns its path."""
    text = (SCRIPTS / name).read_text()
    for before, after in changes.items():
        assert text.count(f"{before}\n") == 1, before
        text = text.replace(f"{before}\n", f"{after}\n")
    path = folder / f"converted_{name}"
    path.write_text(text)
    return path


def run_beside(
    name: str, changes: Mapping[str, str], folder: Path, *arguments: str, kills: int = 2, ests: int = 3
) -> VerifyResult:
    """Train the original under torchrun with `ests` processes, the converted script on fewer under kills."""
    original = f"torchrun --nproc-per-node {ests} {SCRIPTS / name} {' '.join(arguments)}"
    script = converted(name, changes, folder)
    return run_verify(
        folder / "proof",
        [str(script), *arguments],
        original=parse_reference(original),
        runs=1,
        kills=kills,
        seed=5,
    )
