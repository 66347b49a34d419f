"""Which rank of a black-box script runs where."""

from __future__ import annotations

import json
import shlex
import subprocess
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_agent.hosts.remote import remote_command
from elastane_agent.hosts.slots import HostOffer, HostsFormatError, Slot, parse_hosts
from elastane_agent.launch.plan import choose, environment, processes, tf_config
from elastane_common.errors import RefusedError

hosts = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), max_size=6)


def test_hosts_of_a_script() -> None:
    text = "a:4\n\n  # a comment\nb   # one slot\nc:0\n[fe80::1]:2\na:1\n10.0.0.7:3\n"
    found = {host: offer.slots for host, offer in parse_hosts(text).items()}
    assert found == {"a": 5, "b": 1, "[fe80::1]": 2, "10.0.0.7": 3}


def test_classes_and_prices_of_hosts() -> None:
    text = (
        "a:4 spot 0.31\nb\ton-demand\nc:2   1.25 # no class\n[::1]:1 on-demand 0.98\na spot 0.31\nd:0 spot 1"
    )
    assert parse_hosts(text) == {
        "a": HostOffer(5, "spot", 310_000),
        "b": HostOffer(1, "on-demand"),
        "c": HostOffer(2, "", 1_250_000),
        "[::1]": HostOffer(1, "on-demand", 980_000),
    }


@pytest.mark.parametrize(
    "line",
    [
        "a reserved",
        "a spot free",
        "a spot 0",
        "a spot -1",
        "a spot nan",
        "a 0.3 spot",
        "a spot 0.3 EUR",
        "a b",
    ],
)
def test_what_is_no_class_and_no_price_is_refused(line: str) -> None:
    with pytest.raises(HostsFormatError, match="line 2 has neither a class nor a price"):
        parse_hosts(f"good:1 spot 0.5\n{line}\n")


@pytest.mark.parametrize("line", ["a:2 on-demand 0.3", "a:2 spot 0.4", "a:2"])
def test_a_host_of_two_classes_or_prices_is_refused(line: str) -> None:
    with pytest.raises(HostsFormatError, match="line 2 gives a another class or price"):
        parse_hosts(f"a:1 spot 0.3\n{line}\n")


@pytest.mark.parametrize("line", ["a:b", "a:-1", "-oProxyCommand=x", "a:99999", "a;rm", ":4", "é"])
def test_what_is_no_host_is_refused(line: str) -> None:
    with pytest.raises(HostsFormatError, match="line 2 has no host"):
        parse_hosts(f"good:1\n{line}\n")


@given(hosts, hosts, st.integers(1, 12))
def test_hosts_that_stay_keep_their_order_and_come_first(
    old: dict[str, int], new: dict[str, int], workers_max: int
) -> None:
    before = choose(old, (), workers_max)
    after = choose(new, before, workers_max)
    assert len(after) == min(workers_max, sum(new.values())) and len(set(after)) == len(after)
    kept = [host for host in dict.fromkeys(slot.host for slot in before) if host in new]
    order = [host for host, _ in groupby(slot.host for slot in after)]
    assert order[: len(kept)] == kept[: len(order)]
    assert all(slot.index < new[slot.host] for slot in after)


@given(hosts.filter(bool), st.integers(1, 12))
def test_ranks_are_numbered_as_torchrun_numbers_them(found: dict[str, int], workers_max: int) -> None:
    slots = choose(found, (), workers_max)
    ranks = processes(slots)
    assert [one.rank for one in ranks] == list(range(len(slots)))
    for group, (_, members) in enumerate(groupby(ranks, key=lambda one: one.slot.host)):
        local = list(members)
        assert [one.slot.index for one in local] == list(range(len(local)))
        assert {(one.local_world_size, one.group_rank, one.world_size) for one in local} == {
            (len(local), group, len(slots))
        }


def test_variables_of_a_rank() -> None:
    second = processes([Slot("[fe80::1]", 0), Slot("b", 0)])[1]
    found = environment(second, leader="[fe80::1]", port=29500, restarts=2, restarts_max=9, run_id="r")
    assert found["RANK"] == "1" and found["LOCAL_RANK"] == "0" and found["GROUP_RANK"] == "1"
    assert found["MASTER_ADDR"] == "fe80::1" and found["MASTER_PORT"] == "29500"
    assert found["TORCHELASTIC_RESTART_COUNT"] == "2"


def test_tf_config() -> None:
    found = json.loads(tf_config([Slot("a", 0), Slot("a", 1), Slot("b", 0)], 1, 29500))
    assert found == {
        "cluster": {"worker": ["a:29501", "a:29502", "b:29501"]},
        "task": {"type": "worker", "index": 1},
    }


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_remote_shell_gets_every_argument_as_it_is(argument: str) -> None:
    words = remote_command(
        "env HOST={host} sh -c {command}", "a", ["printf", "%s.", argument, "$V"], {"V": argument}, "/"
    )
    assert words[:4] == ["env", "HOST=a", "sh", "-c"]
    said = subprocess.run(words, capture_output=True, check=True).stdout
    assert said == f"{argument}.$V.".encode()


@pytest.mark.parametrize(
    "template", ["ssh {host}", "{command}", "ssh {host} {host} {command}", "ssh '{host}"]
)
def test_template_without_its_names_is_refused(template: str) -> None:
    with pytest.raises(RefusedError):
        remote_command(template, "a", ["x"], {}, "/")
    assert shlex.split("ssh {host} {command}")  # what the hint shows is one
