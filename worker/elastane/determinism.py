"""Determinism levels: what of a process is fixed so that its bits repeat, and what workers compare.

    D0   random numbers pinned, deterministic kernels. Unlike hardware may train together.
    D1   and no unlike hardware: the bits do not depend on the ring. The default.
    D2   and the instruction set and precision pinned to what all hardware of a kind has in common.

Libraries read most of what decides their bits once, when they are loaded, so a level has two parts:
`process_environment` is for who starts a process (the agent, torchrun's caller), `apply` for the
process itself, before it computes anything. `facts` goes into the signature that the master compares
at joining. torch is imported by the functions that need it: the agent runs without.
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

from elastane.errors import RefusedError

if TYPE_CHECKING:
    import torch

    from elastane_proto.v1 import job_pb2


class Level(enum.StrEnum):
    """How much of the result must repeat; each level includes the one before."""

    D0 = "d0"
    D1 = "d1"
    D2 = "d2"

    @classmethod
    def _missing_(cls, value: object) -> Level | None:
        lowered = value.lower() if isinstance(value, str) else None
        return next((level for level in cls if level.value == lowered), None)

    def to_proto(self) -> job_pb2.DeterminismLevel:
        """The level as JobSettings.determinism."""
        from elastane_proto.v1 import job_pb2

        return {
            Level.D0: job_pb2.DETERMINISM_LEVEL_D0,
            Level.D1: job_pb2.DETERMINISM_LEVEL_D1,
            Level.D2: job_pb2.DETERMINISM_LEVEL_D2,
        }[self]


DEFAULT_LEVEL: Final = Level.D1
_in_effect = DEFAULT_LEVEL


def level_from_text(text: str) -> Level:
    """The level of ELASTANE_DETERMINISM. Raises RefusedError for anything else."""
    try:
        return Level(text)
    except ValueError as error:
        raise RefusedError(
            f"ELASTANE_DETERMINISM is {text!r}", hint="it must be d0, d1 or d2", value=text
        ) from error


def level_from_proto(value: job_pb2.DeterminismLevel) -> Level:
    """The level of JobSettings.determinism; unspecified is the default."""
    return next((level for level in Level if level.to_proto() == value), DEFAULT_LEVEL)


# NumPy's names of what comes after AVX2, in its releases before 2.4 and since; it passes over those it
# does not know.
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
    # Over cuBLAS and cuDNN, whatever a script or library asks for.
    "NVIDIA_TF32_OVERRIDE": "0",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0",
}
#: Of instruction sets, as oneDNN tells them apart within one of torch's capabilities.
_EXTENSIONS: Final = ("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "sve", "sve2")
#: cuBLAS is deterministic with a workspace of its own only.
_CUBLAS_WORKSPACE: Final = ":4096:8"
#: What torch.backends.cpu.get_cpu_capability says under each pin.
_CAPABILITY: Final = {"avx2": "AVX2", "default": "DEFAULT"}


def process_environment(level: Level, threads: int) -> dict[str, str]:
    """Variables a process must be started with so that `apply(level)` holds; for who starts it.

    They go over what is inherited from a shell. threads: torch's, as the job says.
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
    """D2's variables on a CPU of a kind: what all of its instruction sets of the last ten years have.

    machine: as platform.machine() says. vendor: as cpu_vendor() says.
    """
    if machine in ("x86_64", "AMD64"):
        # MKL has its AVX2 branch for Intel's CPUs only; on others the setting would be passed over.
        branch = "AVX2" if vendor == "GenuineIntel" else "COMPATIBLE"
        return _X86 | _PRECISION | {"MKL_CBWR": branch}
    return (_ARM if machine in ("aarch64", "arm64") else _OTHER) | _PRECISION


@cache
def cpu_vendor() -> str:
    """Who made the CPU, in the kernel's words ("GenuineIntel"); "unknown" where it does not say."""
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
    """Fix what a process can fix by itself; called by `elastane.init` in every mode.

    Raises RefusedError at D2 when the process was not started with D2's variables, or the CPU lacks
    the instruction set they pin.
    """
    import torch

    # Read when cuBLAS is first used, so that it is in time here too (a rank of torchrun's).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True)
    # Filling every new tensor finds bugs, but costs a pass over memory and changes no defined result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    # Autotuning chooses an algorithm by a race, so that two runs may take two.
    torch.backends.cudnn.benchmark = False
    if level is Level.D2:
        _require_pins(os.environ)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    global _in_effect
    _in_effect = level


def in_effect() -> Level:
    """The level last applied in this process; the default before that."""
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
    if (found := torch.backends.cpu.get_cpu_capability()) != expected:
        raise RefusedError(
            f"level d2 pins the instruction set {expected}, but torch runs with {found} here",
            hint="this CPU lacks it, or torch computed before elastane.init with other variables; "
            "level d1 works on CPUs that are all alike",
            expected=expected,
            found=found,
        )


def facts(level: Level, device: torch.device) -> dict[str, str]:
    """What of this process decides its bits, in words; the master compares it at joining.

    device: of the model. Called when the worker says Hello, so that what the script has switched
    since `apply` is seen.
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
    """Of matrix products and, where they have a setting of their own (CUDA), of convolutions."""
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
    """What oneDNN may use: its limit, and the extensions torch's capability does not tell."""
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
    """Sizes in bytes, by which libraries cut products into blocks; d2 is for CPUs that differ in them."""
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
    """NumPy's release, and the instruction sets its loops take: its exp and log differ by them."""
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
