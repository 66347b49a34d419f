"""Who uploads the model, who waits for it, and what is said where nothing is uploaded."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import elastane
from elastane import model_saving
from elastane.model_saving import Role
from elastane_common.artifacts import ArtifactError, read_manifest, verify
from elastane_common.errors import StepError


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has opened no job yet."""
    for name in ("MODEL_URL", "RANK", "ELASTANE_MODE", "ELASTANE_RUN_FENCE"):
        monkeypatch.delenv(name, raising=False)
    model_saving.take_role(Role())
    yield
    model_saving.take_role(Role())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "weights.bin").write_bytes(b"weights")
    return path


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MODEL_URL", f"{tmp_path}/there/")
    return f"{tmp_path}/there"


def contents(url: str) -> bytes:
    manifest = verify(url)
    return (Path(url) / manifest.folder / "weights.bin").read_bytes()


def test_a_plain_process_uploads(model: Path, url: str) -> None:
    at = elastane.save_model(model)
    assert Path(at, "weights.bin").read_bytes() == contents(url) == b"weights"
    assert elastane.save_model(str(model / "weights.bin")) == at  # the same file alone is the same model


def test_without_a_url_it_says_that_nothing_is_uploaded(model: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        assert elastane.save_model(model) == ""
    assert [entry["event"] for entry in logs] == [
        f"the model stays at {model}: MODEL_URL is not set, so it is not uploaded"
    ]


def test_of_the_ranks_of_a_launcher_the_first_uploads(
    model: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert elastane.save_model(model) == "" and read_manifest(url) is None
    monkeypatch.setenv("RANK", "0")
    assert elastane.save_model(model) != "" and contents(url) == b"weights"


def test_a_launch_that_was_given_up_does_not_replace_the_model_of_its_successor(
    model: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTANE_RUN_FENCE", "8")
    stored = elastane.save_model(model)
    monkeypatch.setenv("ELASTANE_RUN_FENCE", "7")
    assert elastane.save_model(model) == stored  # the same bits
    (model / "weights.bin").write_bytes(b"other")
    with pytest.raises(ArtifactError, match=r"a later launch .* \(fence 8, own 7\)"):
        elastane.save_model(model)
    assert contents(url) == b"weights"
    monkeypatch.setenv("ELASTANE_RUN_FENCE", "9")
    assert elastane.save_model(model) != stored


def test_the_same_model_of_a_later_launch_is_fenced_as_that(
    model: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fence in ("7", "8"):
        monkeypatch.setenv("ELASTANE_RUN_FENCE", fence)
        elastane.save_model(model)
    (model / "weights.bin").write_bytes(b"other")
    monkeypatch.setenv("ELASTANE_RUN_FENCE", "7")
    with pytest.raises(ArtifactError, match="a later launch"):
        elastane.save_model(model)


def test_a_worker_without_a_job_does_not_know_who_leads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTANE_MODE", "elastic")
    with pytest.raises(StepError, match=r"before elastane\.init"):
        elastane.save_model(model)


def test_a_missing_model_is_an_error_for_the_leader_alone(tmp_path: Path, url: str) -> None:
    with pytest.raises(ArtifactError, match="neither a file nor a folder"):
        elastane.save_model(tmp_path / "none")
    model_saving.take_role(Role(turn=lambda: 1))
    assert elastane.save_model(tmp_path / "none") == ""


def test_a_worker_waits_for_the_leader_and_uploads_nothing(
    model: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = shutil.copytree(model, tmp_path / "leader")
    looks = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:  # another model than the one that is waited for
            (theirs / "weights.bin").write_bytes(b"of an epoch before")
        else:
            (theirs / "weights.bin").write_bytes(b"weights")
        model_saving.take_role(Role())
        elastane.save_model(theirs)
        stamps.append((Path(url) / "manifest.json").stat().st_mtime_ns)

    stamps: list[int] = []
    monkeypatch.setattr(model_saving.time, "sleep", look)
    model_saving.take_role(Role(turn=lambda: 1))
    at = elastane.save_model(model)
    assert len(looks) == 2 and Path(at, "weights.bin").read_bytes() == b"weights"
    assert (Path(url) / "manifest.json").stat().st_mtime_ns == stamps[-1]


def test_a_worker_uploads_once_its_turn_has_come(
    model: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(model_saving.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(model_saving.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    model_saving.take_role(Role(turn=lambda: 3, takeover_seconds=20.0))
    elastane.save_model(model)
    assert contents(url) == b"weights" and 160.0 <= now[0] < 161.0


def test_a_worker_uploads_at_once_when_the_ring_changes(
    model: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = iter([False, True])
    monkeypatch.setattr(model_saving.time, "sleep", lambda seconds: None)
    model_saving.take_role(Role(turn=lambda: 1, ring_changes=lambda: next(changes), takeover_seconds=1e9))
    elastane.save_model(model)
    assert contents(url) == b"weights" and next(changes, None) is None


def test_a_standby_uploads_nothing(model: Path, url: str) -> None:
    model_saving.take_role(Role(turn=lambda: None))
    assert elastane.save_model(model) == "" and read_manifest(url) is None


def test_the_scripts_generators_do_not_move(model: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage's library may draw, as those that retry do."""
    from elastane_common import artifacts

    write = artifacts.write_artifacts
    monkeypatch.setattr(
        artifacts, "write_artifacts", lambda *of, **how: (random.random(), write(*of, **how))[1]
    )
    before = random.getstate()
    elastane.save_model(model)
    assert random.getstate() == before
    entered = []
    isolated = contextlib.contextmanager(lambda: iter([entered.append("in")]))
    model_saving.take_role(Role(turn=lambda: 0, isolated=isolated))
    elastane.save_model(model)
    assert entered == ["in"]
