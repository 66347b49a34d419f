"""SHA256SUMS and its signature, in the formats that `sha256sum` and `ssh-keygen` check without our help."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FILE: Final = "SHA256SUMS"
NAMESPACE: Final = "file"
"""What `ssh-keygen -Y` calls the purpose of a signature; "file" is its name for files in general."""


class SigningError(Exception):
    """The checksums could not be signed; the text is what ssh-keygen said."""


def write(folder: Path, files: Iterable[Path]) -> Path:
    """Write the checksums of files in `folder` and return their path."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files)]
    path = folder / FILE
    path.write_text("".join(lines), encoding="ascii")
    return path


def sign(sums: Path, key: Path) -> Path:
    """Sign with an SSH key and return the path of the signature. Raises SigningError.

    key: a private key, or the public one of a key that ssh-agent holds.
    """
    signature = sums.with_name(f"{sums.name}.sig")
    signature.unlink(missing_ok=True)  # ssh-keygen would ask whether to overwrite it
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)]
    try:
        # Its standard input stays: ssh-keygen asks for a passphrase at the terminal.
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except FileNotFoundError:
        raise SigningError("ssh-keygen is not installed (Debian: openssh-client)") from None
    if done.returncode or not signature.is_file():
        raise SigningError(done.stdout.strip() or f"ssh-keygen ended with code {done.returncode}")
    return signature


def require_usable(key: Path) -> None:
    """Sign something else, before a release is built: afterwards its files would be there unsigned.

    Raises SigningError.
    """
    if not key.is_file():
        raise SigningError(
            f"{key} is no file: name a private SSH key, or the public one of a key in ssh-agent"
        )
    with tempfile.TemporaryDirectory(prefix="elastane-key-") as folder:
        sign(write(Path(folder), ()), key)
