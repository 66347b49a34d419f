"""Records what an untouched DDP script trained: names, shapes and digests, one file for each rank.

`install` waits for the script's own `import torch`. From then on every DistributedDataParallel that is
built and every optimizer that steps is registered, and when the process group is destroyed or the
process ends (also by sys.exit or os._exit) each rank writes `rank-<r>.json` into ELASTANE_REFERENCE_DIR:

    {"rank", "world", "steps", "facts"}; rank 0 also {"models", "optimizers", "held"} as returned by `taken`
    {"rank", "world", "steps", "error"} if something could not be recorded: the script never sees that

With ELASTANE_REFERENCE_TRACE=1 it also writes `trace-<r>.jsonl`, an object for each event in order:

    forward   digests of DDP's inputs, and of the generators of torch, NumPy and Python
    backward  the loss, as float.hex()
    step      the optimizer's settings, and on rank 0 the digest of every weight after it

Uses only the standard library, and torch once the script has imported it: see the package.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import importlib.machinery
import json
import os
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DIRECTORY = "ELASTANE_REFERENCE_DIR"
TRACE = "ELASTANE_REFERENCE_TRACE"
#: JSON {"threads": int, "deterministic": bool, "precise": bool}: settings made by elastane.init in our own
#: runs.
SETTINGS = "ELASTANE_REFERENCE_SETTINGS"
#: Depth in containers up to which tensors and numbers are searched for.
_DEPTH_MAX = 8


# ---------------------------------------------------------------------- recorded values


def digest(tensor: Any) -> str:
    """Return sha256 in hex of one tensor's elements, row-major; dtype and shape are recorded separately."""
    import torch

    hashed = hashlib.sha256()
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    rows = plain.resolve_conj().resolve_neg().cpu().contiguous()
    if rows.numel():
        hashed.update(rows.view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def described(tensor: Any) -> list[Any]:
    """[digest, dtype, shape] of a tensor."""
    return [digest(tensor), str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def digest_value(value: object) -> str:
    """Return the digest of any nested value; an object of unknown kind counts by its class alone."""
    hashed = hashlib.sha256()
    for piece in _pieces(value, 0):
        hashed.update(piece.encode())
    return hashed.hexdigest()


def _pieces(value: Any, depth: int) -> Iterator[str]:
    import torch

    if isinstance(value, torch.Tensor):
        yield f"tensor:{described(value)};"
    elif isinstance(value, float):
        yield f"float:{value.hex()};"
    elif value is None or isinstance(value, bool | int | str):
        yield f"{value!r};"
    elif isinstance(value, Mapping) and depth < _DEPTH_MAX:
        for key in sorted(value, key=str):
            yield f"{key!s}="
            yield from _pieces(value[key], depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEPTH_MAX:
        yield f"{len(value)}:"
        for item in value:
            yield from _pieces(item, depth + 1)
    else:
        yield f"{type(value).__name__};"


def taken(models: Sequence[Any], optimizers: Sequence[Any]) -> dict[str, Any]:
    """Record weights, buffers and optimizer state of some models, by name.

    "models": for each {"weights", "buffers"}: name -> [digest, dtype, shape]. "optimizers": for each
    {"parameters": [[model, name], ...], "entries": path -> digest}; the path names the parameter that a state
    belongs to, so that order and number of the groups have no influence there.
    """
    names: dict[int, tuple[int, str]] = {}
    found = []
    for number, model in enumerate(models):
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), (number, plain(name)))
        weights = model.named_parameters(remove_duplicate=False)
        buffers = model.named_buffers(remove_duplicate=False)
        found.append(
            {
                "weights": {plain(name): described(p) for name, p in weights},
                "buffers": {plain(name): described(b) for name, b in buffers},
            }
        )
    return {"models": found, "optimizers": [_optimizer(one, names) for one in optimizers]}


def plain(name: str) -> str:
    """Return a tensor's name without the prefix added by torch.compile."""
    return name.replace("_orig_mod.", "")


def _optimizer(optimizer: Any, names: Mapping[int, tuple[int, str]]) -> dict[str, Any]:
    entries: dict[str, str] = {}
    parameters: list[list[Any]] = []
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key == "params":
                continue
            entries[f"group {index}: {key}"] = digest_value(value)
        for place, parameter in enumerate(group["params"]):
            number, name = names.get(id(parameter), (-1, f"{index}.{place}"))
            parameters.append([number, name])
            for key, value in optimizer.state.get(parameter, {}).items():
                entries[f"{number}/{name}: {key}"] = digest_value(value)
    return {"parameters": parameters, "entries": entries}


def held(
    models: Sequence[Any], frames: Sequence[types.FrameType], spaces: Sequence[Mapping[str, Any]]
) -> Any:
    """Record other modules that the script's variables hold (copies, averages, teachers): name -> their
    state.

    models: those recorded in any case. frames: the script's running functions; spaces: its globals.
    """
    import torch

    known = {id(p) for model in models for p in model.parameters()}
    found: dict[str, Any] = {}
    for variables in [*(frame.f_locals for frame in frames), *spaces]:
        for name, value in list(variables.items()):
            if name in found or not isinstance(value, torch.nn.Module):
                continue
            state = value.state_dict()
            own = {id(p) for p in value.parameters()}
            if state and own and not own & known:
                found[name] = {
                    key: described(item) for key, item in state.items() if isinstance(item, torch.Tensor)
                }
    return found


def script_frames() -> list[types.FrameType]:
    """Return the script's running functions, the innermost first: from files in the main file's folder."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if not main:
        return []
    folder = Path(main).absolute().parent
    frames = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename).absolute()
        if path.parent == folder and frame.f_code.co_name != "<module>":
            frames.append(frame)
        frame = frame.f_back
    return frames


def script_globals() -> list[Mapping[str, Any]]:
    main = sys.modules.get("__main__")
    return [vars(main)] if main is not None else []


# ---------------------------------------------------------------------- in the reference's processes


def _unseen(method: Callable[..., None]) -> Callable[..., None]:
    """Record an error of a recorder's method for the report, so that the calling script continues."""

    @functools.wraps(method)
    def call(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the script is not ours
            self.failed(f"{method.__name__}: {type(error).__name__}: {error}")

    return call


class Recorder:
    """Recorder of one process: objects it built and stepped, and its files."""

    def __init__(self, directory: str, *, traced: bool, settings: Mapping[str, Any]) -> None:
        self._directory = Path(directory)
        self._traced = traced
        self._settings = settings
        self._pid = os.getpid()
        self._rank = self._world = -1
        self._models: list[Any] = []
        self._optimizers: list[Any] = []
        self._steps: dict[int, int] = {}
        self._updates = 0
        self._held: dict[str, Any] = {}
        self._written = -1
        self._trace = -1
        self._error = ""

    def torch_is_there(self, torch: Any) -> None:
        """Apply settings that decide the bits, and install the hooks, once the script has imported torch."""
        self._apply(torch)
        wrapper = torch.nn.parallel.DistributedDataParallel
        recorder, build = self, wrapper.__init__

        @functools.wraps(build)
        def init(ddp: Any, *args: Any, **kwargs: Any) -> None:
            build(ddp, *args, **kwargs)
            recorder.built(torch, ddp)

        wrapper.__init__ = init
        optimizers = importlib.import_module("torch.optim.optimizer")
        optimizers.register_optimizer_step_post_hook(lambda one, *_: recorder.stepped(one))
        self._before(torch.distributed, "destroy_process_group", self.finish)
        self._before(torch.distributed.distributed_c10d, "destroy_process_group", self.finish)
        self._before(os, "_exit", self.finish)
        self._before(torch.amp.GradScaler, "update", self._updated)
        if self._traced:
            backward = torch.Tensor.backward

            @functools.wraps(backward)
            def hear(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                recorder.event(
                    kind="backward", loss=[float(x).hex() for x in tensor.detach().reshape(-1)[:4]]
                )
                return backward(tensor, *args, **kwargs)

            torch.Tensor.backward = hear

    @_unseen
    def built(self, torch: Any, ddp: Any) -> None:
        """Register a new DistributedDataParallel."""
        if os.getpid() != self._pid:
            return
        self._withdraw()
        if not self._models:
            self._rank, self._world = torch.distributed.get_rank(), torch.distributed.get_world_size()
            atexit.register(self.finish)
        self._apply(torch)  # the script may have changed the settings since
        # The module, not DDP itself, whose life would be prolonged.
        self._models.append(ddp.module)
        if self._traced:
            if self._rank == 0 and len(self._models) == 1:
                self.event(kind="begin", weights=self._weights())
            ddp.register_forward_pre_hook(self._forward, with_kwargs=True)

    @_unseen
    def stepped(self, optimizer: Any) -> None:
        """Register an optimizer step."""
        if os.getpid() != self._pid or not self._models:
            return
        self._withdraw()
        if id(optimizer) not in self._steps:
            self._optimizers.append(optimizer)
            self._steps[id(optimizer)] = 0
            if self._rank == 0:
                self._held |= {n: v for frame in script_frames() for n, v in _modules(frame.f_locals)}
        self._steps[id(optimizer)] += 1
        if self._traced:
            settings = {
                f"{index}: {key}": value.hex() if isinstance(value, float) else str(value)
                for index, group in enumerate(optimizer.param_groups)
                for key, value in group.items()
                if isinstance(value, bool | int | float)
            }
            weights = self._weights() if self._rank == 0 else {}
            number = next(i for i, one in enumerate(self._optimizers) if one is optimizer)
            self.event(kind="step", optimizer=number, settings=settings, weights=weights)

    def _withdraw(self) -> None:
        """Delete this rank's report, if written already, because training continues."""
        if self._written >= 0:
            self._written = -1
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return self._directory / f"rank-{self._rank}.json"

    @_unseen
    def finish(self) -> None:
        """Write this rank's report; again only if training has continued since."""
        steps = max([*self._steps.values(), self._updates], default=0)
        if os.getpid() != self._pid or not self._models or self._written == steps:
            return
        self._written = steps
        report: dict[str, Any] = {
            "rank": self._rank,
            "world": self._world,
            "steps": steps,
            "facts": _facts(),
        }
        if self._error:
            report["error"] = self._error
        elif self._rank == 0:
            report |= taken(self._models, self._optimizers)
            spaces = [self._held, *script_globals()]
            report["held"] = held(self._models, script_frames(), spaces)
        self._write(report)

    def failed(self, error: str) -> None:
        """Write a report with the error in place of a result."""
        self._error = self._error or error
        report = {"rank": self._rank, "world": self._world, "steps": 0, "error": self._error}
        with contextlib.suppress(OSError):  # a missing report is an error as well
            self._write(report)

    def _write(self, report: Mapping[str, Any]) -> None:
        draft = self._path.with_suffix(".partial")
        draft.write_text(json.dumps(report), encoding="utf-8")
        draft.replace(self._path)

    @_unseen
    def event(self, **record: Any) -> None:
        """Write one line of the trace."""
        if os.getpid() != self._pid or self._rank < 0:
            return
        if self._trace < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._trace = os.open(self._directory / f"trace-{self._rank}.jsonl", flags, 0o644)
        os.write(self._trace, json.dumps(record).encode() + b"\n")

    @_unseen
    def _forward(self, ddp: Any, args: Any, kwargs: Any) -> None:
        import torch

        if not (ddp.training and torch.is_grad_enabled()):
            return
        states = {"torch": digest(torch.get_rng_state()), "Python": digest_value(list(random.getstate()[1]))}
        if "numpy" in sys.modules:
            states["NumPy"] = digest_value([str(part) for part in _numpy_state()])
        self.event(kind="forward", inputs=digest_value([list(args), kwargs]), random=states)

    def _weights(self) -> dict[str, str]:
        many = len(self._models) > 1
        return {
            f"{number}/{name}" if many else name: digest(parameter)
            for number, model in enumerate(self._models)
            for name, parameter in model.named_parameters()
        }

    def _updated(self) -> None:
        """Count a GradScaler's update, also if it skipped the optimizer's step."""
        self._updates += 1

    def _apply(self, torch: Any) -> None:
        if "threads" in self._settings:
            torch.set_num_threads(int(self._settings["threads"]))
        if self._settings.get("deterministic"):
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False
        if self._settings.get("precise"):
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False

    @staticmethod
    def _before(owner: Any, name: str, action: Callable[[], None]) -> None:
        """Run `action` before each call of owner.name."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            action()
            return original(*args, **kwargs)

        setattr(owner, name, call)


def _facts() -> dict[str, str]:
    """Return facts that decide the bits besides the script."""
    torch = sys.modules["torch"]
    return {
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


def _numpy_state() -> Sequence[Any]:
    name, keys, *rest = sys.modules["numpy"].random.get_state()
    return [name, keys.tobytes().hex(), *rest]


def _modules(variables: Mapping[str, Any]) -> list[tuple[str, Any]]:
    import torch

    return [(name, value) for name, value in variables.items() if isinstance(value, torch.nn.Module)]


class _AfterTorch:
    """Import finder that notifies the recorder after `import torch`, and removes itself."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load, recorder = spec.loader.exec_module, self._recorder

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            recorder.torch_is_there(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Install the recorder, before a reference process runs its own code; creates the file "seen"."""
    directory = os.environ[DIRECTORY]
    settings = json.loads(os.environ.get(SETTINGS) or "{}")
    recorder = Recorder(directory, traced=os.environ.get(TRACE) == "1", settings=settings)
    (Path(directory) / "seen").touch()
    sys.meta_path.insert(0, _AfterTorch(recorder))
