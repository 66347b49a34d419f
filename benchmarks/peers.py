"""The peers we are measured beside, each in a virtual environment of its own.

    python benchmarks/peers.py            installs all of them, from PyPI

A benchmark installs what it needs itself. ELASTANE_PEERS names another folder than .elastane/peers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = {
    # k8s: without it the master does not start, although no cluster is used.
    "dlrover": ["dlrover[k8s]==0.6.1", "protobuf"],
    # Nothing else binds its coordinator and manager for Python; a release as of these figures.
    "torchft": ["torchft-nightly==2026.10.26", "torch", "numpy"],
}


def peer_python(name: str) -> str:
    """The interpreter in which the peer is installed. Raises CalledProcessError if it cannot be."""
    folder = Path(os.environ.get("ELASTANE_PEERS", ROOT / ".elastane" / "peers")) / name
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = "\n".join(PEERS[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    print(f"installing {' '.join(PEERS[name])} into {folder}", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    # The peers train with the same torch as we do; dlrover's own dependencies are its own affair.
    environment = dict(os.environ)
    if name != "dlrover":
        environment["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS[name]],
        check=True,
        env=environment,
    )
    stamp.write_text(wanted)
    return str(python)


if __name__ == "__main__":
    for peer in PEERS:
        print(peer, peer_python(peer))
