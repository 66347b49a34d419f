"""torchrun's options, given to `elastane run`."""

from __future__ import annotations

import pytest

from elastane_cli.commands.torchrun_options import TorchrunOptionError, translate

OWN = {"--ests": True, "--workers": True, "--master": True, "--max-restarts": True, "-m": False}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("--nproc-per-node 4 train.py --nnodes 3", "--ests 4 train.py --nnodes 3"),
        ("--nproc_per_node=4 --standalone train.py", "--ests 4 train.py"),
        ("--workers 1:2 --nproc-per-node 4 -m pack.train", "--ests 4 --workers 1:2 -m pack.train"),
        ("--nnodes 1 --nproc-per-node 2 --max-restarts 3 t.py", "--ests 2 --max-restarts 3 t.py"),
        ("--nnodes 1:3 --nproc-per-node 2 --master h:1 t.py", "--ests 6 --master h:1 t.py"),
        ("--rdzv-endpoint h:1 --rdzv_backend=c10d --ests 2 t.py", "--ests 2 t.py"),
        ("--ests 2 t.py --nproc-per-node 4", "--ests 2 t.py --nproc-per-node 4"),
        ("--workers=1:2 t.py --tee 3", "--workers=1:2 t.py --tee 3"),
        ("", ""),
    ],
)
def test_they_become_the_number_of_ranks(given: str, taken: str) -> None:
    found = translate(given.split(), OWN.get)
    assert " ".join(found.words) == taken
    changed = taken != given
    assert bool(found.notes) == changed


def test_notes_say_what_an_option_is_taken_for() -> None:
    notes = translate(["--nproc-per-node", "4", "--tee", "3", "--standalone", "t.py"], OWN.get).notes
    assert [note.split(":")[0] for note in notes] == [
        "--tee has no effect",
        "--standalone has no effect",
        "--nproc-per-node 4 is taken as --ests 4",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--nproc-per-node gpu t.py", "'gpu' is not a number"),
        ("--nproc-per-node 0 t.py", "'0' is not a number of at least 1"),
        ("--nproc-per-node", "a value is missing"),
        ("--nproc-per-node 4 --ests 4 t.py", "--ests already says"),
        ("--nnodes 2 --nproc-per-node 4 t.py", "2 machines: run this on one of them with --hosts"),
        ("--nnodes 3:2 --nproc-per-node 4 --master h:1 t.py", "'3:2': MIN is above MAX"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(given: str, words: str) -> None:
    with pytest.raises(TorchrunOptionError, match=words) as error:
        translate(given.split(), OWN.get)
    assert error.value.option in ("--nproc-per-node", "--nnodes")
