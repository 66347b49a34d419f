"""A script for torchrun-style launchers that starts at once, without torch: sums ranks until told to stop.

    sums_by_sockets.py FOLDER

Rank 0 listens at MASTER_ADDR:MASTER_PORT, the others connect. Writes the same lines as black_box.py.
"""

import os
import socket
import sys
import time
from pathlib import Path


def connected(rank: int, size: int) -> list[socket.socket]:
    """Connections to all others (rank 0), or the one to rank 0."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.create_server(("", place[1])) as server:
            return [server.accept()[0] for _ in range(size - 1)]
    while True:
        try:
            return [socket.create_connection(place)]
        except ConnectionRefusedError:
            time.sleep(0.05)


def all_reduce(rank: int, peers: list[socket.socket], value: int) -> int:
    """The sum of everybody's small number. Raises ConnectionError when one of them is gone."""
    if rank:
        peers[0].sendall(bytes([value]))
        return received(peers[0])
    total = value + sum(received(peer) for peer in peers)
    for peer in peers:
        peer.sendall(bytes([total]))
    return total


def received(peer: socket.socket) -> int:
    """The next number that the peer sent."""
    data = peer.recv(1)
    if not data:
        raise ConnectionError("a peer is gone")
    return data[0]


def main() -> None:
    folder = Path(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    peers = connected(rank, size)
    total = all_reduce(rank, peers, rank)
    life, host = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ.get("FAKE_HOST", "here")
    with (folder / "log").open("a") as log:
        log.write(f"{life} {rank} {size} {total} {host}\n")
    while all_reduce(rank, peers, (folder / "stop").exists()) == 0:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
