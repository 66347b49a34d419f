"""What `elastane doctor` says of packages, clock, limits, ports, proxies, GPUs, masters and stores."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from typer.testing import CliRunner

from elastane.diagnose import remote, surroundings
from elastane.diagnose.findings import Finding, Severity
from elastane.diagnose.gpus import GpuFacts, judge_gpus
from elastane.diagnose.remote import StoreFacts, check_master, check_store, judge_store
from elastane.diagnose.surroundings import (
    SurroundingFacts,
    judge_surroundings,
    surrounding_facts,
    unmet_requirements,
)
from elastane_cli.chaos.store_server import StoreServer
from elastane_cli.commands.main import build_app
from elastane_proto.error_codes import entries

GOOD = SurroundingFacts(
    clock_seconds=2e9, clock_kept=True, processes=4096, ports=28_000, address="10.0.0.1", no_proxy="localhost"
)
GOOD_STORE = StoreFacts(
    server="Valkey", version="9.1.0", appendonly="yes", appendfsync="always", eviction="noeviction"
)


def test_nothing_is_said_of_good_surroundings() -> None:
    assert judge_surroundings(GOOD) == []
    unknown = {"clock_kept": None, "processes": -1, "ports": -1}
    assert judge_surroundings(msgspec.structs.replace(GOOD, **unknown)) == []
    assert judge_store(GOOD_STORE) == []


@pytest.mark.parametrize(
    ("change", "code", "severity", "words"),
    [
        ({"packages": ["grpcio is 1.60, needed is >=1.85"]}, "ELA532", Severity.REFUSED, "grpcio is 1.60"),
        ({"clock_seconds": 86400.0}, "ELA533", Severity.REFUSED, "1970-01-02"),
        ({"clock_kept": False}, "ELA533", Severity.NOTE, "nothing synchronizes the clock"),
        ({"processes": 64}, "ELA526", Severity.NOTE, "64 processes"),
        ({"loopback": False}, "ELA534", Severity.REFUSED, "127.0.0.1"),
        ({"ports": 100}, "ELA534", Severity.NOTE, "only 100 ports"),
        ({"taken": True}, "ELA534", Severity.NOTE, "127.0.0.1:50051"),
        ({"unreached": "No route to host"}, "ELA528", Severity.NOTE, "No route to host"),
        ({"address": "127.0.1.1"}, "ELA528", Severity.NOTE, "127.0.1.1"),
    ],
)
def test_one_thing_wrong_around_is_one_finding(
    change: dict[str, object], code: str, severity: Severity, words: str
) -> None:
    (found,) = judge_surroundings(msgspec.structs.replace(GOOD, **change))
    assert (found.code, found.severity) == (code, severity)
    assert words in found.what
    assert found.todo


def test_a_proxy_is_told_where_it_stands_between() -> None:
    facts = msgspec.structs.replace(GOOD, proxy="http://user:secret@proxy:3128", no_proxy=".cluster,other")
    assert judge_surroundings(facts) == []
    assert judge_surroundings(facts, "127.0.0.1:50051,master.cluster:50051") == []
    (found,) = judge_surroundings(facts, "master.cluster:50051,10.0.0.5:50051")
    assert found.code == "ELA535"
    assert "http://proxy:3128" in found.what
    assert "secret" not in found.what


def test_these_surroundings_can_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "here")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(surroundings, "MASTER_PORT", taken.getsockname()[1])
        facts = surrounding_facts("127.0.0.1")
    assert facts.loopback
    assert facts.taken
    assert not facts.unreached
    assert facts.ports > 0
    assert (facts.proxy, facts.no_proxy) == ("http://proxy:1", "here")
    assert surrounding_facts("192.0.2.1").unreached  # of no machine (RFC 5737)


def test_an_unmet_requirement_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = ["pytest>=999", "no-such-thing-at-all", "torch==0.1", "pip>=1; extra == 'dev'", "msgspec>=0.1"]
    monkeypatch.setattr(surroundings.metadata, "requires", lambda name: stated)
    assert [unmet.partition(" is ")[0] for unmet in unmet_requirements()] == [
        "pytest",
        "no-such-thing-at-all",
    ]


@pytest.mark.parametrize(
    ("facts", "severity", "words"),
    [
        (GpuFacts(present=2), Severity.COSTS, "a build without CUDA"),
        (GpuFacts(present=2, build="13.0", error="driver too old"), Severity.COSTS, "driver too old"),
        (GpuFacts(present=2, build="13.0", visible=""), Severity.NOTE, "CUDA_VISIBLE_DEVICES is ''"),
        (GpuFacts(present=4, seen=1, build="13.0", visible="2"), Severity.NOTE, "4 GPUs, torch sees 1"),
        (GpuFacts(visible="0"), Severity.NOTE, "there is no GPU here"),
    ],
)
def test_gpus_that_torch_does_not_see(facts: GpuFacts, severity: Severity, words: str) -> None:
    (found,) = judge_gpus(facts)
    assert (found.code, found.severity) == ("ELA531", severity)
    assert words in found.what
    assert found.todo


@pytest.mark.parametrize(
    "facts",
    [GpuFacts(), GpuFacts(visible="-1"), GpuFacts(visible=""), GpuFacts(present=2, seen=2, build="13.0")],
)
def test_of_gpus_as_they_should_be_nothing_is_said(facts: GpuFacts) -> None:
    assert judge_gpus(facts) == []


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"cluster": True}, "ELA551", Severity.REFUSED),
        ({"role": "slave"}, "ELA551", Severity.REFUSED),
        ({"server": "Redis", "version": "6.2.1"}, "ELA553", Severity.REFUSED),
        ({"appendonly": "no"}, "ELA552", Severity.DIFFERS),
        ({"appendfsync": "everysec"}, "ELA552", Severity.NOTE),
        ({"eviction": "allkeys-lru"}, "ELA552", Severity.DIFFERS),
        ({"offset_seconds": -60.0}, "ELA533", Severity.NOTE),
    ],
)
def test_one_thing_wrong_with_a_store_is_one_finding(
    change: dict[str, object], code: str, severity: Severity
) -> None:
    (found,) = judge_store(msgspec.structs.replace(GOOD_STORE, **change))
    assert (found.code, found.severity) == (code, severity)
    assert found.todo


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    folder = tmp_path_factory.mktemp("store")
    server = StoreServer(folder / "data", folder / "log")
    server.start()
    yield server
    server.stop()


def test_a_real_store_is_asked(store: StoreServer) -> None:
    facts, found = check_store(store.url, 5.0)
    assert "appendfsync everysec" in facts["store asked"]
    assert [(finding.code, finding.severity) for finding in found] == [("ELA552", Severity.NOTE)]
    with redis.Redis.from_url(store.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert [finding.code for finding in check_store(store.url, 5.0)[1]] == ["ELA552", "ELA552"]
        client.config_set("maxmemory-policy", "noeviction")


def test_a_store_is_asked_as_the_user_of_a_master(
    store: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = ("+@read", "+@write", "+@connection", "+@scripting", "+@transaction", "-@dangerous")
    user = ("elastane", "reset", "on", ">open sesame", "~elastane:*", *granted)  # as docs/security.md has it
    with redis.Redis.from_url(store.url) as client:
        client.execute_command("ACL", "SETUSER", *user)
    (tmp_path / "password").write_text("open sesame\n")
    url = store.url.replace("redis://", "redis://elastane@")
    (found,) = check_store(url, 5.0)[1]
    assert found.code == "ELA551"
    assert "sesame" not in found.what
    monkeypatch.setenv("ELASTANE_MASTER_STORE_PASSWORD_FILE", str(tmp_path / "password"))
    assert check_store(url, 5.0)[1] == []


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "http://nonsense"])
def test_a_store_that_cannot_be_used(url: str) -> None:
    (found,) = check_store(url, 1.0)[1]
    assert (found.code, found.severity) == ("ELA551", Severity.REFUSED)


def test_a_master_that_is_not_there_and_something_that_is_none() -> None:
    (found,) = check_master("127.0.0.1:1", 1.0)[1]
    assert found.code == "ELA401"
    assert found.what.startswith("no connection")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (found,) = check_master(f"127.0.0.1:{silent.getsockname()[1]}", 0.3)[1]
    assert found.what.startswith("no answer")


def test_of_several_masters_those_that_stand_by_are_as_they_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stands_by = Finding(severity=Severity.REFUSED, kind="master", code="ELA541", what="it stands by")
    answers = {"a:1": ("stands by", [stands_by], False), "b:1": ("serves", [], True)}
    monkeypatch.setattr(remote, "_ask_master", lambda address, timeout_seconds: answers[address])
    assert check_master("a:1,b:1", 1.0) == ({"master a:1": "stands by", "master b:1": "serves"}, [])
    assert check_master("a:1", 1.0)[1] == [stands_by]


def test_the_command_tries_what_it_is_told_to(store: StoreServer) -> None:
    arguments = ["doctor", "--json", "--store", store.url, "--master", "127.0.0.1:1"]
    done = CliRunner().invoke(build_app(), arguments)
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert {"ELA401", "ELA552"} <= {finding["code"] for finding in document["findings"]}
    assert {finding["code"] for finding in document["findings"]} <= set(entries())
    assert "Valkey" in document["facts"]["store asked"] or "Redis" in document["facts"]["store asked"]
    assert CliRunner().invoke(build_app(), ["doctor", "--master", "nonsense"]).exit_code == 2
