"""A master of a job's own, started as its pod is: the kubelet's probe finds it alive."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme

from deployment.processes import START_SECONDS_MAX, free_port
from elastane_operator.manifests.master import MasterDefaults, master_objects
from patience import Patience, wait
from unit.deploy.elastic_jobs import identity, spec_of

SECRETS = {"tokenSecret": {"name": "tokens"}, "tlsSecret": {"name": "tls"}}


def make_secrets(folder: Path) -> None:
    """A folder for each secret, a file for each key."""
    ca = trustme.CA()
    certificate = ca.issue_cert("digits-master.ml.svc.cluster.local")
    for name in ("tls", "tokens"):
        (folder / name).mkdir()
    ca.cert_pem.write_to_path(folder / "tls/ca.crt")
    certificate.cert_chain_pems[0].write_to_path(folder / "tls/tls.crt")
    certificate.private_key_pem.write_to_path(folder / "tls/tls.key")
    digest = hashlib.sha256(b"token").hexdigest()
    (folder / "tokens/tokens.toml").write_text(
        f'[[token]]\nname = "operator"\nsha256 = "{digest}"\nroles = ["operator"]\njobs = ["*"]\n'
    )


def variables(stateful: dict[str, Any], folder: Path) -> dict[str, str]:
    """Of the container, with this machine's folders in the place of its mounts."""
    pod = stateful["spec"]["template"]["spec"]
    [container] = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    told = {each["name"]: each["value"] for each in container["env"]}
    for name, value in told.items():
        for mount in container["volumeMounts"]:
            if value.startswith(f"{mount['mountPath']}/"):
                secret = volumes[mount["name"]].get("secret")
                outside = folder / (secret["secretName"] if secret else mount["name"])
                told[name] = f"{outside}{value.removeprefix(mount['mountPath'])}"
    return told


@pytest.mark.parametrize("secrets", [{}, SECRETS], ids=["open", "with secrets"])
def test_the_probe_of_its_pod_finds_it_alive(tmp_path: Path, secrets: dict[str, Any]) -> None:
    make_secrets(tmp_path)
    [*_, stateful] = master_objects(identity(), spec_of(master={"perJob": {}, **secrets}), MasterDefaults())
    [container] = stateful["spec"]["template"]["spec"]["containers"]
    port = free_port()
    told = variables(stateful, tmp_path) | {"ELASTANE_LISTEN": "127.0.0.1:0"}
    probe = container["livenessProbe"]["httpGet"]
    [inside] = [each["containerPort"] for each in container["ports"] if each["name"] == probe["port"]]
    assert told["ELASTANE_HTTP"] == f"0.0.0.0:{inside}"
    told["ELASTANE_HTTP"] = f"127.0.0.1:{port}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "elastane_master"],
        env=clean | told | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    kubelet = ssl.create_default_context()
    kubelet.check_hostname, kubelet.verify_mode = False, ssl.CERT_NONE
    url = f"{probe['scheme'].lower()}://127.0.0.1:{port}{probe['path']}"
    limit = Patience(START_SECONDS_MAX)
    try:
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5, context=kubelet) as answer:
                    assert answer.status == 200
                break
            except urllib.error.URLError as error:
                assert isinstance(error.reason, ConnectionRefusedError)  # not yet; anything else is a fault
                assert process.poll() is None
                assert limit.left()
                time.sleep(0.02)
        process.terminate()
        assert wait(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()
