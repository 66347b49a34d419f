"""What a TensorFlow script finds in the training service, checked without TensorFlow.

    elastane submit --model cluster --framework tensorflow --instances 2 tf_config.py

Each task listens at its address of TF_CONFIG, as TensorFlow's servers do, and sends what it knows of the
cluster to all others: they must know the same. Rank 0 saves that as the "model".
"""

import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import elastane

WAIT_SECONDS = 60

config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
print(f"TF_CONFIG {json.dumps(config, sort_keys=True)}", flush=True)

addresses = [address for kind in cluster for address in cluster[kind]]
own = cluster[task["type"]][task["index"]]
if len(set(addresses)) != int(os.environ["WORLD_SIZE"]) or addresses.index(own) != int(os.environ["RANK"]):
    raise SystemExit(f"{own} is not the address of rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")


def socket_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def tell(address: str) -> None:
    """Send the cluster to a task, which may not listen yet."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            with socket.create_connection(socket_address(address), timeout=WAIT_SECONDS) as connection:
                connection.sendall(json.dumps(cluster, sort_keys=True).encode())
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


with socket.create_server(socket_address(own)) as server:
    server.settimeout(WAIT_SECONDS)
    others = [address for address in addresses if address != own]
    for address in others:
        threading.Thread(target=tell, args=(address,)).start()
    for _ in others:
        connection, _ = server.accept()
        with connection, connection.makefile() as lines:
            received = lines.read()
        if json.loads(received) != cluster:
            raise SystemExit(f"another task has the cluster {received}")

file = os.environ.get("HOLD_UNTIL")
while file and not Path(file).exists():
    time.sleep(0.05)
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "cluster.json").write_text(json.dumps(cluster, sort_keys=True))
    elastane.save_model(folder)
print(f"all {len(addresses)} tasks know the same cluster", flush=True)
