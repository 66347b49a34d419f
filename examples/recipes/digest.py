"""Says what a training ended with, in a line: two runs are equal if their lines are."""

import hashlib
import sys

import torch


def show(**things):
    """Print the sha256 of each: a module's or optimizer's state_dict, or a plain value."""
    said = " ".join(f"{name}={_of(thing)}" for name, thing in things.items())
    # In one write and a line of its own, whatever other ranks are printing.
    sys.stdout.write(f"\ndigest {said}\n")
    sys.stdout.flush()


def _of(thing):
    thing = getattr(thing, "module", thing) if type(thing).__name__ == "DistributedDataParallel" else thing
    found = hashlib.sha256()

    def add(path, value):
        if isinstance(value, torch.Tensor):
            found.update(f"{path} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                add(f"{path}.{key}", value[key])
        elif isinstance(value, list | tuple):
            for place, each in enumerate(value):
                add(f"{path}.{place}", each)
        else:
            found.update(f"{path} {value!r}".encode())

    add("", thing.state_dict() if hasattr(thing, "state_dict") else thing)
    return found.hexdigest()[:16]
