"""What the product's source may not contain: ways by which bytes from outside become code, or end a process.

`msgspec.json.decode(..., type=T)` and that of msgpack prepare T at its first use, which is not thread-safe
for structs within structs: two threads that come first dereference a null pointer. A Decoder of the module
does it while the module is imported.

Read from the syntax trees of all that is installed. An exception is a line in ALLOWED, with its reason.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "proto", "shard_service", "scheduler", "master", "worker")

MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "ruamel",
    "code", "codeop", "xmlrpc", "telnetlib", "jsonpickle",
}  # fmt: skip
"""Modules that make objects or code of bytes."""
SUBMODULES = {
    "multiprocessing.managers", "multiprocessing.connection", "multiprocessing.reduction",
    "torch.distributed.rpc", "torch.hub", "torch.package",
}  # fmt: skip
"""Parts that pickle over sockets, or load code."""
BUILTINS = {"eval", "exec", "compile", "__import__", "execfile"}
CALLS = {
    "popen", "spawnl", "spawnv", "fork_exec", "run_path", "run_module", "import_module", "load_module",
    "Pipe", "Manager",
    # torch.distributed's collectives of Python objects pickle them
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "send_object_list",
    "recv_object_list",
}  # fmt: skip
"""Functions, of whatever module they are."""

ALLOWED = {
    ("worker/elastane/data/transfer.py", "pickle"): "from a data worker to the process it was forked from",
    ("worker/elastane/data/transfer.py", "multiprocessing.reduction"): "the same: over a private socket pair",
    (
        "worker/elastane/data/batch_maker.py",
        "pickle",
    ): "asks whether something could be pickled; reads nothing",
    ("worker/elastane/data/own_generators.py", "pickle"): "writes, to compare states; reads nothing",
    (
        "worker/elastane/runtime/wrapper_names.py",
        "__reduce_ex__",
    ): "how the script's own class is written, asked for; reads nothing",
    ("worker/elastane/runtime/pipelines/elastic_pipe.py", "Pipe"): "the class of a script's `pipe`, our own",
    ("worker/elastane/runtime/pipelines/stock_pipe.py", "Pipe"): "the same",
    ("worker/elastane_cli/commands/catalogue.py", "import_module"): "the fixed list COMMANDS above it",
    ("common/elastane_common/determinism.py", "import_module"): "a fixed name of NumPy",
    ("worker/elastane/reference_hook/elastane_reference.py", "import_module"): "a fixed name of torch",
    ("worker/elastane/warm_start.py", "import_module"): "what the user's script imports itself",
    ("worker/elastane/warm_start.py", "compile"): "the user's script, as `python SCRIPT` does",
    ("worker/elastane/warm_start.py", "exec"): "the same",
}
READS_PICKLE = {"worker/elastane/data/transfer.py"}
"""Where alone something may be unpickled."""


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def findings(tree: ast.AST) -> set[str]:
    """What of the forbidden a module has."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found |= _modules(alias.name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found |= _modules(f"{node.module}.{alias.name}") | _modules(str(node.module))
                if alias.name in CALLS or (node.module, alias.name) == ("os", "system"):
                    found.add(alias.name)
        elif isinstance(node, ast.Call):
            found |= _call(node)
        elif isinstance(node, ast.Name) and node.id in BUILTINS - {"compile"}:
            found.add(node.id)  # also where it is handed on and not called
        elif isinstance(node, ast.Attribute) and node.attr in ("__reduce__", "__reduce_ex__"):
            found.add(node.attr)
    return found


def _modules(name: str) -> set[str]:
    parts = name.split(".")
    return {part for part in parts[:1] if part in MODULES} | {
        module for module in SUBMODULES if name == module or name.startswith(module + ".")
    }


def _call(node: ast.Call) -> set[str]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    owner = ""
    if isinstance(function, ast.Attribute):
        owner = getattr(function.value, "id", "") or getattr(function.value, "attr", "")
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}

    def is_true(argument: str) -> bool:
        value = keywords.get(argument)
        return value is not None and not (isinstance(value, ast.Constant) and value.value is False)

    found = set()
    if isinstance(function, ast.Name) and name in BUILTINS:
        found.add(name)
    if name in CALLS or (name, owner) == ("system", "os"):
        found.add(name)
    if name == "load" and owner in ("torch", "jit"):
        safe = keywords.get("weights_only")
        if owner == "jit" or not (isinstance(safe, ast.Constant) and safe.value is True):
            found.add("torch.load")
    if name == "decode" and owner in ("json", "msgpack") and "type" in keywords:
        found.add("decode of a type")
    if is_true("allow_pickle"):
        found.add("allow_pickle")
    if is_true("shell"):
        found.add("shell")
    if name in ("loads", "load", "Unpickler") and owner in ("pickle", "_pickle"):
        found.add("unpickles")
    return found


def test_nothing_from_outside_becomes_code() -> None:
    unexpected, used = [], set()
    for path in sources():
        name = str(path.relative_to(ROOT))
        for what in findings(ast.parse(path.read_text(), name)):
            if what == "unpickles" and name in READS_PICKLE:
                continue
            if (name, what) in ALLOWED:
                used.add((name, what))
            else:
                unexpected.append(f"{name}: {what}")
    assert not unexpected
    assert used == set(ALLOWED), "an exception that is not needed any more"


def test_everything_that_is_installed_is_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in sources()}
    assert {"worker/elastane/state/codec.py", "master/elastane_master/store/recovery.py"} <= names
    assert len(names) > 150


@pytest.mark.parametrize(
    ("planted", "what"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads as read", "pickle"),
        ("import yaml; yaml.safe_load(text)", "yaml"),
        ("from marshal import loads", "marshal"),
        ("from multiprocessing import connection", "multiprocessing.connection"),
        ("import multiprocessing.managers as m", "multiprocessing.managers"),
        ("eval(text)", "eval"),
        ("handlers = {'x': eval}", "eval"),
        ("exec(text, {})", "exec"),
        ("compile(text, 'x', 'exec')", "compile"),
        ("__import__(name)", "__import__"),
        ("importlib.import_module(name)", "import_module"),
        ("from importlib import import_module", "import_module"),
        ("os.system(text)", "system"),
        ("subprocess.run(text, shell=True)", "shell"),
        ("subprocess.run(text, shell=flag)", "shell"),
        ("torch.load(path)", "torch.load"),
        ("torch.load(path, weights_only=False)", "torch.load"),
        ("torch.load(path, weights_only=flag)", "torch.load"),
        ("torch.jit.load(path)", "torch.load"),
        ("np.load(path, allow_pickle=True)", "allow_pickle"),
        ("dist.broadcast_object_list(items)", "broadcast_object_list"),
        ("pickle.loads(data)", "unpickles"),
        ("msgspec.json.decode(data, type=Manifest)", "decode of a type"),
        ("msgspec.msgpack.decode(data, type=list[Header])", "decode of a type"),
    ],
)
def test_the_reader_sees_what_is_planted(planted: str, what: str) -> None:
    assert what in findings(ast.parse(planted))


@pytest.mark.parametrize(
    "harmless",
    [
        "re.compile('x')", "torch.load(path, weights_only=True)", "subprocess.run(['x'], shell=False)",
        "json.loads(text)", "model.eval()", "import code_of_ours",
        "msgspec.json.decode(data)", "msgspec.json.Decoder(Manifest).decode(data)",
    ],
)  # fmt: skip
def test_the_reader_lets_harmless_code_be(harmless: str) -> None:
    assert not findings(ast.parse(harmless))
