"""One process of the hand-over that startup.py measures: a receiver (rank 0) or a donor of the same state.

    handover_member.py handover RANK SIZE STORE REPEATS     through `elastane.state.handover`; prints seconds
    handover_member.py socket   RANK SIZE STORE REPEATS     a plain socket into tensor memory, for comparison

STORE is a file to which the receiver writes its address. The receiver prints a JSON list of GB/s. The
state is that of 25 million parameters with AdamW, 300 MB. As for a joining worker, the receiving memory is
freshly allocated.
"""

import json
import socket
import sys
import threading
import time
from pathlib import Path

import torch

from elastane.collective.cpu_group import warm_up
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.transport import RingTransport
from elastane.state.codec import encode
from elastane.state.handover import receive_state, send_state

WIDTH, LAYERS = 2048, 6
TAG = 1 << 20


def state():
    return {
        name: [torch.full((WIDTH, WIDTH), float(layer)) for layer in range(LAYERS)]
        for name in ("parameters", "exp_avg", "exp_avg_sq")
    }


def address_in(file):
    while not (file.exists() and file.read_text()):
        time.sleep(0.01)
    return file.read_text()


def handover(rank, size, file, repeats):
    warm_up()
    if rank == 0:
        store = RendezvousStore("127.0.0.1")
        file.with_suffix(".new").write_text(store.address)
        file.with_suffix(".new").rename(file)
    transport = RingTransport.form(
        store_address=address_in(file), prefix="bench", rank=rank, size=size, cancel=threading.Event()
    )
    exported = encode(state()) if rank else None
    donors = list(range(1, size))
    figures = []
    for _ in range(repeats):
        if rank:
            transport.recv(torch.zeros(1), 0, 0).wait()
            send_state(transport, exported, donor_index=rank - 1, donors=donors, receivers=[0], tag_base=TAG)
            continue
        time.sleep(0.1)  # let the donors get ready first, so that nothing else runs during the measurement
        began = time.perf_counter()
        for donor in donors:
            transport.send(torch.ones(1), donor, 0).wait()
        received = receive_state(transport, donors=donors, tag_base=TAG)
        seconds = time.perf_counter() - began
        figures.append(sum(tensor.nbytes for tensor in received.tensors) / seconds / 1e9)
    transport.close()
    return figures


def plain(rank, size, file, repeats):
    total = 3 * LAYERS * WIDTH * WIDTH * 4
    if rank:
        memory = torch.ones(total, dtype=torch.uint8).numpy().data
        host, port = address_in(file).split(":")
        with socket.create_connection((host, int(port))) as connection:
            while connection.recv(1):
                connection.sendall(memory)
        return []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        file.with_suffix(".new").write_text(f"127.0.0.1:{listener.getsockname()[1]}")
        file.with_suffix(".new").rename(file)
        connection, _ = listener.accept()
    figures = []
    with connection:
        for _ in range(repeats):
            time.sleep(0.1)
            began = time.perf_counter()
            connection.sendall(b"g")
            memory = torch.empty(total, dtype=torch.uint8).numpy().data
            received = 0
            while received < total:
                received += connection.recv_into(memory[received:])
            figures.append(total / (time.perf_counter() - began) / 1e9)
    return figures


torch.set_num_threads(1)
how, rank, size, store, repeats = sys.argv[1], *map(int, sys.argv[2:4]), Path(sys.argv[4]), int(sys.argv[5])
found = {"handover": handover, "socket": plain}[how](rank, size, store, repeats)
if rank == 0:
    print(json.dumps(found))
