"""A release is made of a commit alone, is the same bytes twice, and what it says of itself can be checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from release import checksums, materials, notes, packages
from release.__main__ import main, release
from release.paths import ROOT, version_of

from elastane_proto.versions import CLIENT_OLDEST, MASTER_OLDEST, PROTOCOL

MADE = 1_750_000_000
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- what comes

## [0.2.0] - 2026-12-01

### Fixed

- what was

## [0.1.0] - soon

- a draft
"""
#: What a build reads, so that a copy of the project is small.
LEFT_OUT = shutil.ignore_patterns(
    ".*", "tests", "docs", "benchmarks", "tools", "dist", "__pycache__", "node_modules", "*.pyc"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a candidate of this tree."""
    out = tmp_path_factory.mktemp("release") / "dist"
    source = copy_of_project(tmp_path_factory.mktemp("one"))
    release(source, out, MADE, candidate=True)
    return out


def copy_of_project(folder: Path) -> Path:
    source = folder / "elastane"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    return source


# ---------------------------------------------------------------- notes


def test_notes_are_the_section_of_the_version() -> None:
    text = notes.render(CHANGELOG, "0.2.0")
    assert text.startswith("# Elastane 0.2.0 (2026-12-01)\n")
    assert "- what was" in text
    assert "what comes" not in text
    assert "a draft" not in text


def test_notes_of_a_candidate_are_what_is_unreleased() -> None:
    text = notes.render(CHANGELOG, "0.3.0", candidate=True)
    assert text.startswith("# Elastane 0.3.0 (candidate)\n")
    assert "- what comes" in text
    assert "what was" not in text


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.3.0", "no section [0.3.0]"), ("0.1.0", "write the day")],
)
def test_a_version_that_the_changelog_does_not_date_is_not_released(version: str, words: str) -> None:
    with pytest.raises(notes.NoSectionError, match=words.replace("[", r"\[").replace("]", r"\]")):
        notes.render(CHANGELOG, version)


def test_an_empty_section_is_no_release_note() -> None:
    with pytest.raises(notes.NoSectionError, match="empty"):
        notes.render("## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n- x\n", "0.3.0", candidate=True)


def test_notes_of_this_project_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notes", "--candidate"]) == 0
    assert capsys.readouterr().out.startswith(f"# Elastane {version_of(ROOT)} (candidate)\n")


def test_the_policy_names_the_protocols_that_the_code_accepts() -> None:
    page = " ".join((ROOT / "docs" / "versions.md").read_text().split())
    assert f"speak version {CLIENT_OLDEST} of the protocol or newer (this release speaks {PROTOCOL})" in page
    assert f"need a master that speaks version {MASTER_OLDEST} or newer" in page


# ---------------------------------------------------------------- packages


def test_wheel_and_sdist_are_the_same_bytes_wherever_and_whenever_they_are_built(
    made: Path, tmp_path: Path
) -> None:
    source = copy_of_project(tmp_path / "elsewhere, later")
    for path in source.rglob("*"):
        if path.is_file():
            os.utime(path, (1e9, 1e9))
            path.chmod(0o600)
    again = packages.build(source, tmp_path / "out", MADE)
    assert [path.name for path in again] == [
        f"elastane-{version_of(ROOT)}-py3-none-any.whl",
        f"elastane-{version_of(ROOT)}.tar.gz",
    ]
    for path in again:
        assert path.read_bytes() == (made / path.name).read_bytes(), path.name


def test_every_file_bears_the_time_of_the_release(made: Path) -> None:
    [wheel] = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {time.gmtime(MADE)[:6]}


def test_what_is_not_committed_is_not_released(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    (repository / "kept.py").write_text("committed")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x", "--date", f"{MADE} +0000"]):
        dated = os.environ | {"GIT_COMMITTER_DATE": f"{MADE} +0000"}
        subprocess.run([*git, *command], cwd=repository, env=dated, check=True)
    (repository / "kept.py").write_text("changed")
    (repository / "stray.py").write_text("x")
    packages.export("HEAD", tmp_path / "out", repository)
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {"kept.py": "committed"}
    assert packages.commit_time("HEAD", repository) == MADE


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old.whl").write_text("x")
    with pytest.raises(SystemExit):
        main(["--candidate", "--out", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["old.whl"]


def test_a_key_that_cannot_sign_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no-key").write_text("x")
    for key, why in ((tmp_path / "none", "is no file"), (tmp_path / "no-key", "key")):
        assert main(["--candidate", "--key", str(key), "--out", str(tmp_path / "dist")]) == 1
        assert why in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


# ---------------------------------------------------------------- bill of materials


def test_the_bill_names_what_the_wheel_needs_with_versions_and_checksums(made: Path) -> None:
    bill = json.loads((made / f"elastane-{version_of(ROOT)}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    pins = materials.pins((ROOT / "constraints.txt").read_text())
    found = {one["name"]: one for one in bill["components"]}
    assert {name: one["version"] for name, one in found.items()} == {name: pins[name] for name in found}
    assert found["grpcio"]["scope"] == "required"
    assert found["torch"]["scope"] == "optional"
    assert "pytest" not in found
    assert [name for name, one in found.items() if "hashes" not in one] == ["torch"]
    assert [name for name, one in found.items() if "licenses" not in one] == []
    [wheel] = made.glob("*.whl")
    ours = bill["metadata"]["component"]
    assert ours["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    needs = {one["ref"]: set(one.get("dependsOn", ())) for one in bill["dependencies"]}
    direct = {ref.partition("/")[2].partition("@")[0] for ref in needs[ours["bom-ref"]]}
    assert {"grpcio", "redis", "torch", "docker"} <= direct
    refs = {one["bom-ref"] for one in bill["components"]}
    assert set().union(*needs.values()) <= refs


def test_a_package_in_another_version_than_the_tested_one_stops_the_bill(tmp_path: Path) -> None:
    for name in ("constraints.txt", "requirements.lock"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    pins = tmp_path / "constraints.txt"
    pins.write_text(pins.read_text().replace(f"redis=={metadata.version('redis')}", "redis==1.0"))
    with pytest.raises(materials.MaterialsError, match=r"redis .* constraints\.txt says 1\.0"):
        materials.render("x.whl", "0" * 64, "0.1.0", MADE, tmp_path)


# ---------------------------------------------------------------- checksums


def test_the_checksums_are_those_of_all_files_and_find_a_changed_one(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "dist")
    check = ["sha256sum", "--check", "--strict", checksums.FILE]
    assert subprocess.run(check, cwd=tmp_path / "dist", check=False, capture_output=True).returncode == 0
    listed = {line.split()[1] for line in (made / checksums.FILE).read_text().splitlines()}
    assert listed == {path.name for path in made.iterdir()} - {checksums.FILE}
    [wheel] = (tmp_path / "dist").glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    assert subprocess.run(check, cwd=tmp_path / "dist", check=False, capture_output=True).returncode == 1


@pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="no ssh-keygen: apt-get install openssh-client"
)
def test_a_signature_is_accepted_of_the_signer_for_these_bytes_alone(made: Path, tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    for path in (key, other):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    sums = tmp_path / checksums.FILE
    shutil.copyfile(made / checksums.FILE, sums)
    signature = checksums.sign(sums, key)
    assert checksums.sign(sums, key) == signature  # again, without a question

    def accepted(signer: Path, text: bytes) -> bool:
        signers = tmp_path / "signers"
        signers.write_text(f"releases@elastane {signer.with_suffix('.pub').read_text()}")
        command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "releases@elastane", "-n", "file"]
        done = subprocess.run([*command, "-s", str(signature)], input=text, check=False, capture_output=True)
        return done.returncode == 0

    assert accepted(key, sums.read_bytes())
    assert not accepted(other, sums.read_bytes())
    assert not accepted(key, sums.read_bytes().replace(b"elastane", b"elastine", 1))
    with pytest.raises(checksums.SigningError):
        checksums.sign(sums, tmp_path / "none")
