"""Determinism levels: settings of a process that make its bits repeatable, and facts that workers compare.

    D0      random numbers pinned, deterministic kernels. Different hardware may train together.
    D1      also no different hardware: the bits do not depend on the ring. The default.
    D2      also instruction set and precision pinned to those common to all hardware of a kind.

Libraries read most settings that decide their bits once, when they are loaded, so a level has two parts:
`process_environment` is for the parent that starts a process (the agent, torchrun's caller), `apply` for the
process itself, before it computes anything. `facts` is part of the signature that the master compares
when a worker joins. torch is imported by the functions that need it: the agent runs without.
"""

from __future__ import annotations

import enum
import importlib
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from elastane_common.errors import RefusedError

if TYPE_CHECKING:
    import torch

    from elastane_proto.v1 import job_pb2


class Level(enum.StrEnum):
    """Degree to which the result is repeatable; each level includes the previous one."""

    D0 = "d0"
    D1 = "d1"
    D2 = "d2"

    @classmethod
    def _missing_(cls, value: object) -> Level | None:
        lowered = value.lower() if isinstance(value, str) else None
        return next((level for level in cls if level.value == lowered), None)

    def to_proto(self) -> job_pb2.DeterminismLevel:
        """Return the level as JobSettings.determinism."""
        from elastane_proto.v1 import job_pb2

        return {
            Level.D0: job_pb2.DETERMINISM_LEVEL_D0,
            Level.D1: job_pb2.DETERMINISM_LEVEL_D1,
            Level.D2: job_pb2.DETERMINISM_LEVEL_D2,
        }[self]


DEFAULT_LEVEL: Final = Level.D1
_in_effect = DEFAULT_LEVEL


def level_from_text(text: str) -> Level:
    """Return the level of ELASTANE_DETERMINISM. Raises RefusedError for anything else."""
    try:
        return Level(text)
    except ValueError as error:
        raise RefusedError(
            f"ELASTANE_DETERMINISM is {text!r}", hint="it must be d0, d1 or d2", value=text
        ) from error


def level_from_proto(value: job_pb2.DeterminismLevel) -> Level:
    """Return the level of JobSettings.determinism; unspecified is the default."""
    return next((level for level in Level if level.to_proto() == value), DEFAULT_LEVEL)


# NumPy's names of features beyond AVX2, in its releases before 2.4 and since; it ignores unknown names.
_NUMPY_BEYOND_AVX2: Final = (
    "X86_V4,AVX512F,AVX512CD,AVX512_KNL,AVX512_KNM,AVX512_SKX,AVX512_CLX,AVX512_CNL,AVX512_ICL,AVX512_SPR"
)
_X86: Final = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": _NUMPY_BEYOND_AVX2,
    "OPENBLAS_CORETYPE": "Haswell",
}
_ARM: Final = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "ADVANCED_SIMD",
    "OPENBLAS_CORETYPE": "ARMV8",
}
_OTHER: Final = {"ATEN_CPU_CAPABILITY": "default"}
_PRECISION: Final = {
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    # Override cuBLAS and cuDNN settings, whatever a script or library requests.
    "NVIDIA_TF32_OVERRIDE": "0",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0",
}
#: Instruction set extensions that oneDNN distinguishes within one of torch's capabilities.
_EXTENSIONS: Final = ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "sve", "sve2")
#: cuBLAS is deterministic only with a workspace of fixed size.
_CUBLAS_WORKSPACE: Final = ":4096:8"
#: Result of torch.backends.cpu.get_cpu_capability under each pin.
_CAPABILITY: Final = {"avx2": "AVX2", "default": "DEFAULT"}


def process_environment(level: Level, threads: int) -> dict[str, str]:
    """Return the variables a process must be started with so that `apply(level)` succeeds; for its parent.

    They override variables inherited from a shell. threads: torch's, as set by the job.
    """
    count = str(max(1, threads))
    variables = {
        "ELASTANE_DETERMINISM": level.value,
        # Libraries read them when they are loaded, before a script could set their threads.
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "CUBLAS_WORKSPACE_CONFIG": _CUBLAS_WORKSPACE,
    }
    if level is Level.D2:
        variables |= pins(platform.machine(), cpu_vendor())
    return variables


def pins(machine: str, vendor: str) -> dict[str, str]:
    """Return D2's variables for a kind of CPU: the instruction sets common to those of the last ten years.

    machine: from platform.machine(). vendor: from cpu_vendor().
    """
    if machine in ("x86_64", "AMD64"):
        # MKL has its AVX2 branch for Intel's CPUs only, and ignores the setting on others.
        branch = "AVX2" if vendor == "GenuineIntel" else "COMPATIBLE"
        return _X86 | _PRECISION | {"MKL_CBWR": branch}
    return (_ARM if machine in ("aarch64", "arm64") else _OTHER) | _PRECISION


@cache
def cpu_vendor() -> str:
    """Return the CPU's vendor, in the kernel's words ("GenuineIntel"), or "unknown"."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("vendor_id", "CPU implementer"):
                    return value.strip() or "unknown"
    except OSError:
        pass
    return "unknown"


def apply(level: Level) -> None:
    """Apply the settings that a process can make itself; called by `elastane.init` in every mode.

    Raises RefusedError at D2 if the process was not started with D2's variables, or the CPU lacks the
    instruction set they pin.
    """
    import torch

    # Read when cuBLAS is first used, so setting it here is in time too (for a rank of torchrun).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor finds bugs, but costs a pass over memory and changes no defined result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    # Autotuning chooses an algorithm by measuring, so two runs may choose differently.
    torch.backends.cudnn.benchmark = False
    if level is Level.D2:
        _require_pins(os.environ)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    global _in_effect
    _in_effect = level


def in_effect() -> Level:
    """Return the level last applied in this process, initially the default."""
    return _in_effect


def _require_pins(environment: Mapping[str, str]) -> None:
    import torch

    wanted = pins(platform.machine(), cpu_vendor())
    wrong = {name: value for name, value in wanted.items() if environment.get(name) != value}
    if wrong:
        name = next(iter(wrong))
        raise RefusedError(
            f"level d2 pins {name}={wanted[name]}, but the process was started with "
            f"{name}={environment[name]}" if name in environment else
            f"level d2 pins {name}={wanted[name]}, but the process was started without {name}",
            hint="start workers with `elastane run`, which sets it; or start the process with "
            + " ".join(f"{key}={value}" for key, value in wrong.items()),
            **wrong,
        )  # fmt: skip
    expected = _CAPABILITY[wanted["ATEN_CPU_CAPABILITY"]]
    # torch reads its variable once, at the first operation: a late change would be ignored silently.
    if (found := torch.backends.cpu.get_cpu_capability()) != expected:
        raise RefusedError(
            f"level d2 pins the instruction set {expected}, but torch runs with {found} here",
            hint="this CPU lacks it, or torch computed before elastane.init with other variables; "
            "level d1 works on CPUs that are all alike",
            expected=expected,
            found=found,
        )


def facts(level: Level, device: torch.device) -> dict[str, str]:
    """Return the facts of this process that decide its bits, as text; the master compares them when it joins.

    device: of the model. Called when the worker sends Hello, so that settings changed by the script since
    `apply` are included.
    """
    import torch

    found = {
        "determinism": level.value,
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "device": device.type,
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "onednn": _onednn(),
        "mkl": _mkl(),
        **_caches(level),
        **_numpy(),
        "deterministic_kernels": _deterministic_kernels(),
        "float32_precision": _float32_precision(convolutions=device.type == "cuda"),
    }
    if device.type == "cuda":
        found |= {
            "cuda": f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
            "device_model": torch.cuda.get_device_name(device),
            "cudnn": _cudnn(),
        }
    return found


def _deterministic_kernels() -> str:
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _cudnn() -> str:
    import torch

    if torch.backends.cudnn.benchmark:
        return "autotuning"
    return "deterministic" if torch.backends.cudnn.deterministic else "any algorithm"


def _float32_precision(*, convolutions: bool) -> str:
    """Return the precision of matrix products and, on CUDA (a separate setting), of convolutions."""
    import torch

    try:
        products = torch.get_float32_matmul_precision()
        own = "tf32" if torch.backends.cudnn.allow_tf32 else "float32"
    except RuntimeError:
        # The script has used torch's newer settings; the older ones cannot be read after that.
        products = torch.backends.cuda.matmul.fp32_precision
        own = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return f"{products}, convolutions {own}" if convolutions else products


def _onednn() -> str:
    """Return oneDNN's limit, and the extensions that torch's capability does not distinguish."""
    import torch

    if not torch.backends.mkldnn.is_available():
        return "absent"
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA")
    mode = os.environ.get("ONEDNN_DEFAULT_FPMATH_MODE", "STRICT")
    if not limit:
        have = _capabilities()
        limit = " ".join(["no limit", *(name for name in _EXTENSIONS if have.get(name))])
    return limit if mode == "STRICT" else f"{limit}, {mode}"


def _capabilities() -> Mapping[str, Any]:
    import torch

    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def _caches(level: Level) -> dict[str, str]:
    """Return cache sizes in bytes, by which libraries cut products into blocks.

    Returns none at d2, where they may differ.
    """
    have = _capabilities()
    sizes = [have.get("l1d_cache_size"), have.get("l2_cache_size")]
    return {} if level is Level.D2 or None in sizes else {"caches": f"L1d {sizes[0]}, L2 {sizes[1]}"}


def _mkl() -> str:
    import torch

    if not torch.backends.mkl.is_available():
        return "absent"
    branch = os.environ.get("MKL_CBWR", "any branch")
    limit = os.environ.get("MKL_ENABLE_INSTRUCTIONS", "no limit")
    return f"{branch}, {limit}, {cpu_vendor()}"


def _numpy() -> dict[str, str]:
    """Return NumPy's release, and the instruction sets of its loops: its exp and log differ by them."""
    try:
        import numpy
    except ImportError:
        return {"numpy": "absent"}
    try:
        umath = importlib.import_module("numpy._core._multiarray_umath")
        used = " ".join(name for name in umath.__cpu_dispatch__ if umath.__cpu_features__.get(name))
    except (ImportError, AttributeError):
        used = os.environ.get("NPY_DISABLE_CPU_FEATURES", "no limit")
    core = os.environ.get("OPENBLAS_CORETYPE", "any")
    return {"numpy": numpy.__version__, "numpy_loops": f"{used}, OpenBLAS {core}"}
