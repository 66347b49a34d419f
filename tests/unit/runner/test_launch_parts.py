"""The parts of a launch: secrets, ports, algorithms, code, what is kept of it, and the plan of its ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import json_format

from elastane_common import layout
from elastane_common.artifact_mark import check_mark, make_mark
from elastane_common.code_archive import ArchiveError, pack
from elastane_common.errors import RefusedError
from elastane_common.storage import Folder
from elastane_proto.v1 import training_pb2
from elastane_runner.algorithms import Algorithm, read_algorithms
from elastane_runner.archive import ArchiveLimits
from elastane_runner.code_folder import CodeCache, CodeError, clone
from elastane_runner.engine import AttemptRecord, RankRecord, RankState
from elastane_runner.environment import Endpoint, LaunchSpecError
from elastane_runner.held_ports import HeldPort
from elastane_runner.launches import LaunchRecord, LaunchStore, Rank, Unit, launch_of
from elastane_runner.launching import (
    LaunchError,
    LaunchSettings,
    Preparation,
    ServiceStorage,
    agent_command,
    check_network,
    plan,
    prepare,
)
from elastane_runner.secret_files import SECRET_BYTES_MAX, SecretError, read_secret

# ---------------------------------------------------------------- secrets


def test_a_secret_is_a_files_content_without_its_last_newline(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "key").write_text("a\nb\n")
    assert read_secret(tmp_path, "KEY", "sub/key") == "a\nb"


@pytest.mark.parametrize(
    "name",
    ["", "../outside", "sub/../../outside", "/etc/passwd", "link", "sub", "missing", "a\0b", "big", "bytes"],
)
def test_what_is_no_secret_is_refused_without_a_value(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "secrets"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "outside").write_text("hidden")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "big").write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    (folder / "bytes").write_bytes(b"hidden\xff")
    with pytest.raises(SecretError, match="KEY") as refused:
        read_secret(folder, "KEY", name)
    assert "hidden" not in str(refused.value)


def test_a_runner_without_a_folder_has_no_secrets() -> None:
    with pytest.raises(SecretError, match="no folder of secrets"):
        read_secret(None, "KEY", "key")


@pytest.mark.parametrize("variable", ["MASTER_ADDR", "ELASTANE_TOKEN_FILE", "lower"])
def test_a_secret_replaces_no_variable_of_the_service(tmp_path: Path, variable: str) -> None:
    (tmp_path / "key").write_text("hidden")
    spec = training_pb2.RunSpec(command=["x"], secrets=[{"variable": variable, "file": "key"}])
    launch = LaunchStore(tmp_path).new(record())
    launch.record.spec = json_format.MessageToDict(spec, preserving_proto_field_name=True)
    with pytest.raises(LaunchError, match=variable) as refused:
        prepare(
            launch,
            ServiceStorage(),
            CodeCache(tmp_path),
            LaunchSettings(host="h", masters="m:1", secrets=tmp_path),
        )
    assert refused.value.is_permanent and "hidden" not in str(refused.value)


# ---------------------------------------------------------------- ports


def test_a_held_port_cannot_be_taken_until_it_is_released() -> None:
    port = HeldPort()
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port.number))
    port.release()
    port.release()
    with socket.create_server(("127.0.0.1", port.number)) as server:
        assert server.getsockname()[1] == port.number


# ---------------------------------------------------------------- algorithms


def test_algorithms_have_a_command_and_a_folder_beside_their_file(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    file = tmp_path / "algorithms.toml"
    file.write_text(
        '[digits]\ncommand = ["python", "t.py"]\nfolder = "digits"\n[other]\ncommand = ["x"]\nimage = "i"'
    )
    found = read_algorithms(file)
    assert found["digits"].command == ("python", "t.py")
    assert found["digits"].folder == str(tmp_path / "digits") and found["other"].folder == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]\n", "has no command"),
        ('[a]\ncommand = "x"\n', "array"),
        ('[a]\ncommand = ["x"]\nfoler = "y"\n', "foler"),
        ('["a/b"]\ncommand = ["x"]\n', "cannot be the name"),
        ('[a]\ncommand = ["x"]\nfolder = "missing"\n', "is not there"),
        ("[a\n", "algorithms.toml"),
    ],
)
def test_a_file_of_algorithms_that_is_wrong_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "algorithms.toml"
    file.write_text(text)
    with pytest.raises(RefusedError, match=words):
        read_algorithms(file)


# ---------------------------------------------------------------- code


def sent(tmp_path: Path, name: str) -> tuple[str, str]:
    """An archive at a URL: the URL and its digest."""
    source = tmp_path / name
    source.mkdir()
    (source / "train.py").write_text(name)
    archive = tmp_path / f"{name}.zip"
    digest = pack(source, archive)
    url = (tmp_path / "artifacts").as_uri()
    Folder(url).write(layout.code_archive(digest), [archive.read_bytes()])
    return url, digest


def test_an_archive_is_downloaded_once_and_unpacked_for_each_launch(tmp_path: Path) -> None:
    url, digest = sent(tmp_path, "one")
    cache = CodeCache(tmp_path / "runner")
    cache.unpack(url, digest, tmp_path / "first", ArchiveLimits())
    Folder(url).remove_file(layout.code_archive(digest))
    (tmp_path / "first" / "train.py").write_text("changed by its run")
    cache.unpack(url, digest, tmp_path / "second", ArchiveLimits())
    assert (tmp_path / "second" / "train.py").read_text() == "one"


def test_the_archive_that_was_not_used_for_the_longest_time_makes_room(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "runner", bytes_max=1)
    for name in ("one", "two"):
        url, digest = sent(tmp_path, name)
        cache.unpack(url, digest, tmp_path / f"{name}-unpacked", ArchiveLimits())
    assert [path.stem for path in (tmp_path / "runner" / "code").iterdir()] == [digest]


def test_an_archive_that_is_missing_or_changed_fails_for_good_and_is_not_kept(tmp_path: Path) -> None:
    url, digest = sent(tmp_path, "one")
    cache = CodeCache(tmp_path / "runner")
    with pytest.raises(CodeError, match="there is no archive") as missing:
        cache.unpack(url, "0" * 64, tmp_path / "x", ArchiveLimits())
    Folder(url).write(layout.code_archive(digest), [b"something else"])
    with pytest.raises(CodeError, match="another sha256") as changed:
        cache.unpack(url, digest, tmp_path / "x", ArchiveLimits())
    assert missing.value.is_permanent and changed.value.is_permanent
    assert not list((tmp_path / "runner" / "code").iterdir()) and not (tmp_path / "x").exists()


def test_limits_of_archives_hold(tmp_path: Path) -> None:
    url, digest = sent(tmp_path, "one")
    with pytest.raises(ArchiveError, match="more than 0"):
        CodeCache(tmp_path / "runner").unpack(url, digest, tmp_path / "x", ArchiveLimits(entries=0))


def repository(tmp_path: Path) -> tuple[Path, str]:
    folder = tmp_path / "repository"
    author = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    folder.mkdir()

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            check=True,
            capture_output=True,
            env={**os.environ, **author},
        )
        return done.stdout.decode().strip()

    git("init", "--quiet")
    for text in ("first", "second"):
        (folder / "train.py").write_text(text)
        git("add", ".")
        git("commit", "--quiet", "-m", text)
    return folder, git("rev-parse", "HEAD~1")


def test_a_commit_is_checked_out_that_is_no_branchs_tip(tmp_path: Path) -> None:
    folder, commit = repository(tmp_path)
    clone(folder.as_uri(), commit, tmp_path / "code")
    assert (tmp_path / "code" / "train.py").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("url", "commit", "permanent"),
    [
        ("--upload-pack=touch x", "0" * 40, True),
        ("/nowhere", "0" * 40, False),
        ("ext::sh -c true", "0" * 40, False),
        ("/nowhere", "main", True),
        ("/nowhere", "A" * 40, True),
    ],
)
def test_a_commit_that_cannot_be_had_leaves_nothing(
    tmp_path: Path, url: str, commit: str, permanent: bool
) -> None:
    with pytest.raises(CodeError) as refused:
        clone(url, commit, tmp_path / "code")
    assert refused.value.is_permanent is permanent and not list(tmp_path.iterdir())


def test_nothing_is_launched_where_the_services_folder_is_another_one(tmp_path: Path) -> None:
    launch = LaunchStore(tmp_path / "runner").new(record())
    launch.record.spec |= {"code": {"installed": True}, "command": ["x"]}
    there, here = (tmp_path / "there").as_uri(), (tmp_path / "here").as_uri()
    mark = make_mark(there)
    assert mark and make_mark(there) == mark
    assert prepare(launch, ServiceStorage(there, mark), CodeCache(tmp_path), SETTINGS).command == ("x",)
    for _ in "no folder", "another one":
        with pytest.raises(LaunchError, match="here is not the service's folder on this machine") as refused:
            prepare(launch, ServiceStorage(here, mark), CodeCache(tmp_path), SETTINGS)
        assert not refused.value.is_permanent, "another runner may reach it"
        make_mark(here)


def test_a_url_that_means_the_same_everywhere_has_no_mark() -> None:
    assert make_mark("memory://elastane-marks") == ""
    check_mark("memory://elastane-marks", "")


def test_code_is_readable_for_the_user_of_a_container_below_a_folder_that_is_not(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    for path in (project / "train.py", project / "sub" / "run.sh"):
        path.write_text("x")
        path.chmod(0o700)
    digest = pack(project, tmp_path / "a.zip")
    launch = LaunchStore(tmp_path / "runner").new(record())
    Folder(tmp_path.as_uri()).write(layout.code_archive(digest), [(tmp_path / "a.zip").read_bytes()])
    launch.record.spec |= {"code": {"archive_sha256": digest}, "command": ["x"]}
    before = os.umask(0o077)
    try:
        folder = prepare(launch, ServiceStorage(tmp_path.as_uri()), CodeCache(tmp_path), SETTINGS).folder
    finally:
        os.umask(before)
    assert folder.parent.stat().st_mode & 0o077 == 0
    for path in (folder, *folder.rglob("*")):
        wanted = 0o555 if path.is_dir() else 0o444
        assert path.stat().st_mode & wanted == wanted, path


# ---------------------------------------------------------------- launches


def record(elastic: bool = False, **fields: object) -> LaunchRecord:
    spec = training_pb2.RunSpec(
        algorithm="a",
        output_model_name="m",
        instances=2,
        framework="FRAMEWORK_ELASTANE" if elastic else "FRAMEWORK_PYTORCH",
        parameters={"LR": "0.1"},
    )
    return LaunchRecord(
        run_id=7,
        attempt=2,
        fence=9,
        elastic=elastic,
        job="run-7-2" if elastic else "",
        artifact_url="file:///a/runs/7",
        spec=json_format.MessageToDict(spec, preserving_proto_field_name=True),
        **fields,
    )


def test_units_name_their_launch_and_an_elastic_rank_has_one_of_its_own_for_each_try() -> None:
    assert record(tries={0: 1, 1: 1}).units() == [Unit("run-7-2-9", 1)]
    elastic = record(True, tries={1: 2})
    assert elastic.unit_of(1) == Unit("run-7-2-9-1", 2)
    assert elastic.units() == [Unit("run-7-2-9-1", 1), Unit("run-7-2-9-1", 2)]
    assert launch_of("run-7-2-9-1") == launch_of("run-7-2-9") == elastic.key
    assert launch_of("run-7-2") is None


def test_a_launch_is_found_again_with_the_newest_try_of_each_rank(tmp_path: Path) -> None:
    store = LaunchStore(tmp_path)
    launch = store.new(record(True, tries={0: 2, 1: 1}, prior_bytes={0: 5}))
    launch.save()
    ended = RankRecord(rank=0, state=RankState.EXITED, returncode=-9, started_at=1.0, ended_at=2.0)
    found = [
        AttemptRecord(run="run-7-2-9-0", attempt=1, fence=9, launched=True, ranks=(ended,)),
        AttemptRecord(
            run="run-7-2-9-0",
            attempt=2,
            fence=9,
            launched=True,
            ranks=(RankRecord(rank=0, state=RankState.RUNNING, started_at=3.0),),
        ),
        AttemptRecord(run="run-7-2-9-1", attempt=1, fence=9, launched=False, ranks=(ended,)),
    ]
    (loaded,) = store.load(found, now=10.0)
    assert loaded.record == launch.record
    assert loaded.ranks == {0: Rank(0, "running", started_at=3.0)}
    (again,) = store.load(found[:1], now=10.0)
    assert again.ranks == {}, "an older try is not the rank"


def test_ranks_that_are_prepared_side_by_side_save_their_launch_each(tmp_path: Path) -> None:
    launch = LaunchStore(tmp_path).new(record(True, tries={0: 1}))
    with ThreadPoolExecutor(8) as threads:
        for saved in [threads.submit(launch.save) for _ in range(64)]:
            saved.result()


def test_what_was_prepared_and_never_started_is_removed_by_the_next_runner(tmp_path: Path) -> None:
    store = LaunchStore(tmp_path)
    launch = store.new(record(tries={0: 1}))
    launch.save()
    (tmp_path / "launches" / "1-1-1").mkdir()
    (tmp_path / "launches" / "1-1-1" / "launch.json").write_text(json.dumps({"run_id": "x"}))
    assert store.load([], now=0.0) == [] and not list((tmp_path / "launches").iterdir())


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_a_signal_is_reported_as_128_and_its_number(returncode: int, code: int) -> None:
    rank = Rank(0)
    rank.apply(RankState.EXITED, returncode, b"bye", 5.0)
    assert (rank.state, rank.exit_code, rank.last_line, rank.ended_at) == ("exited", code, b"bye", 5.0)


# ---------------------------------------------------------------- plans

SETTINGS = LaunchSettings(
    host="h0",
    masters="m:1",
    worker_token_file="/token",
    environ={"ELASTANE_TLS_CA": "/ca", "ELASTANE_TOKEN_FILE": "/runners-own", "ELASTANE_TOKEN": "secret"},
)


def test_black_boxes_start_together_with_where_all_ranks_listen(tmp_path: Path) -> None:
    launch = LaunchStore(tmp_path).new(record(tries={1: 1}))
    preparation = Preparation(tmp_path, ("python", "t.py"), {"KEY": "hidden"})
    endpoints = {0: Endpoint("h1", 11), 1: Endpoint("h0", 12)}
    made = plan(launch, preparation, [1], endpoints, SETTINGS)
    (rank,) = made.ranks
    assert (made.run, made.attempt, made.fence, made.folder) == ("run-7-2-9", 1, 9, tmp_path)
    assert (rank.rank, rank.command) == (1, ("python", "t.py"))
    variables = rank.environment
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"], variables["RANK"]) == ("h1", "11", "1")
    assert (variables["KEY"], variables["LR"], variables["JOB_ATTEMPT"]) == ("hidden", "0.1", "2")
    assert variables["MODEL_URL"] == "file:///a/runs/7/model"
    assert [name for name in variables if name.startswith("ELASTANE_")] == ["ELASTANE_RUN_FENCE"]
    assert variables["ELASTANE_RUN_FENCE"] == "9"
    with pytest.raises(LaunchSpecError, match="rank 0 of 2 has no endpoint"):
        plan(launch, preparation, [1], {1: Endpoint("h0", 12)}, SETTINGS)


def test_a_worker_joins_the_runs_job_with_the_workers_token(tmp_path: Path) -> None:
    launch = LaunchStore(tmp_path).new(record(True, tries={1: 3}))
    made = plan(launch, Preparation(tmp_path, ("t.py", "--x"), {}), [1], {}, SETTINGS)
    (rank,) = made.ranks
    assert (made.run, made.attempt) == ("run-7-2-9-1", 3)
    assert rank.command == agent_command(launch.record, ("t.py", "--x"), SETTINGS)
    assert rank.command[-2:] == ("t.py", "--x") and rank.command[rank.command.index("--job") + 1] == "run-7-2"
    own = {name: value for name, value in rank.environment.items() if name.startswith("ELASTANE_")}
    assert own == {
        "ELASTANE_MASTER": "m:1",
        "ELASTANE_JOB": "run-7-2",
        "ELASTANE_LOCAL_WORKERS": "1",
        "ELASTANE_RUN_FENCE": "9",
        "ELASTANE_TLS_CA": "/ca",
        "ELASTANE_TOKEN_FILE": "/token",
    }
    dear = replace(SETTINGS, capacity="on-demand")
    (rank,) = plan(launch, Preparation(tmp_path, ("t.py",), {}), [1], {}, dear).ranks
    assert rank.environment["ELASTANE_CAPACITY"] == "on-demand"


@pytest.mark.parametrize(
    ("framework", "seen"),
    [("PYTORCH", ["4,6,5", "4,6,5"]), ("HOROVOD", ["4,6,5", "4,6,5"]), ("TENSORFLOW", ["4,5", "6"])],
)
def test_ranks_see_their_gpus_where_their_framework_looks(
    framework: str, seen: list[str], tmp_path: Path
) -> None:
    launch = LaunchStore(tmp_path).new(record(tries={0: 1, 1: 1}, gpus={0: ["4", "5"], 1: ["6"]}))
    launch.record.spec["framework"] = f"FRAMEWORK_{framework}"
    endpoints = {rank: Endpoint("h0", 11 + rank) for rank in range(2)}
    made = plan(launch, Preparation(tmp_path, ("t",), {}), [0, 1], endpoints, SETTINGS)
    assert [rank.environment["CUDA_VISIBLE_DEVICES"] for rank in made.ranks] == seen


def test_a_worker_of_an_elastic_run_sees_its_own_gpus(tmp_path: Path) -> None:
    launch = LaunchStore(tmp_path).new(record(True, tries={0: 1, 1: 1}, gpus={0: ["4"], 1: ["6"]}))
    made = plan(launch, Preparation(tmp_path, ("t.py",), {}), [1], {}, SETTINGS)
    assert made.ranks[0].environment["CUDA_VISIBLE_DEVICES"] == "6"


def test_tensorflow_knows_chief_and_parameter_servers(tmp_path: Path) -> None:
    launch = LaunchStore(tmp_path).new(record(tries={0: 1, 1: 1, 2: 1}))
    roles = {"framework": "FRAMEWORK_TENSORFLOW", "instances": 3, "chief": True, "parameter_servers": 1}
    launch.record.spec |= roles
    endpoints = {rank: Endpoint("h0", 11 + rank) for rank in range(3)}
    made = plan(launch, Preparation(tmp_path, ("t",), {}), [2], endpoints, SETTINGS)
    assert json.loads(made.ranks[0].environment["TF_CONFIG"]) == {
        "cluster": {"chief": ["h0:11"], "worker": ["h0:12"], "ps": ["h0:13"]},
        "task": {"type": "ps", "index": 0},
    }


# ---------------------------------------------------------------- ranks with a network of their own

OWN_NETWORK = replace(SETTINGS, has_own_network=True, interpreter="python")


def test_ranks_that_share_a_network_of_their_own_meet_at_its_loopback(tmp_path: Path) -> None:
    launch = LaunchStore(tmp_path).new(record(tries={0: 1, 1: 1}))
    endpoints = {0: Endpoint("h0", 11), 1: Endpoint("h0", 12)}
    preparation = Preparation(tmp_path, ("t",), {}, image="i:1")
    launch.record.spec["slots_per_instance"] = 3
    made = plan(launch, preparation, [0, 1], endpoints, OWN_NETWORK)
    assert [(one.environment["MASTER_ADDR"], one.environment["MASTER_PORT"]) for one in made.ranks] == [
        ("127.0.0.1", "11")
    ] * 2
    assert (made.image, made.slots_per_rank) == ("i:1", 3)


def test_ranks_that_would_not_meet_are_not_launched() -> None:
    check_network(record(), [1], SETTINGS)
    check_network(record(), [0, 1], OWN_NETWORK)
    with pytest.raises(LaunchError, match="1 of 2 instances are elsewhere") as apart:
        check_network(record(), [1], OWN_NETWORK)
    check_network(record(True), [1], OWN_NETWORK)
    for masters in ("127.0.0.1:1", "m:1,localhost:1", "[::1]:1"):
        with pytest.raises(LaunchError, match="do not reach the master") as alone:
            check_network(record(True), [1], replace(OWN_NETWORK, masters=masters))
    assert not apart.value.is_permanent and not alone.value.is_permanent


def test_workers_in_containers_are_started_by_the_images_python() -> None:
    assert agent_command(record(True), ("t.py",), OWN_NETWORK)[0] == "python"
    assert agent_command(record(True), ("t.py",), SETTINGS)[0] == sys.executable


@pytest.mark.parametrize(
    ("code", "algorithm", "image"),
    [({"image": "own:1"}, "digits", "own:1"), ({}, "digits", "digits:3"), ({}, "other", "")],
)
def test_the_image_is_the_runs_or_the_algorithms(
    tmp_path: Path, code: dict[str, str], algorithm: str, image: str
) -> None:
    spec = training_pb2.RunSpec(algorithm=algorithm, command=["x"], code={"installed": True, **code})
    launch = LaunchStore(tmp_path).new(record())
    launch.record.spec = json_format.MessageToDict(spec, preserving_proto_field_name=True)
    algorithms = {"digits": Algorithm(("y",), image="digits:3")}
    settings = replace(SETTINGS, algorithms=algorithms)
    assert prepare(launch, ServiceStorage(), CodeCache(tmp_path), settings).image == image
