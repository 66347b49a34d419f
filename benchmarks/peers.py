"""Installs the frameworks that Elastane is compared with, each in its own virtual environment.

    python benchmarks/peers.py            installs all of them, from PyPI

Benchmarks install what they need themselves. ELASTANE_PEERS names another folder than .elastane/peers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = {
    # Without the extra k8s the master does not start, although no cluster is used.
    "dlrover": ["dlrover[k8s]==0.6.1", "protobuf"],
    "ray": ["ray[default]==2.60.0"],
    # The only package with Python bindings of its coordinator and manager; the release that was measured.
    "torchft": ["torchft-nightly==2026.10.26", "torch", "numpy"],
}

SAME_TORCH = {"torchft"}
"""Peers that train with the torch that Elastane does; dependencies of the others are not constrained."""


def peer_python(name: str) -> str:
    """Install the peer if needed; return its interpreter. Raises CalledProcessError if that fails."""
    folder = Path(os.environ.get("ELASTANE_PEERS", ROOT / ".elastane" / "peers")) / name
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = "\n".join(PEERS[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return str(python)
    print(f"installing {' '.join(PEERS[name])} into {folder}", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    environment = dict(os.environ)
    if name in SAME_TORCH:
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
