"""Which requests a browser may have been tricked into, tokens in cookies, forms, and numbers in words."""

from __future__ import annotations

import pytest

from elastane_master.dashboard.actions import ACTIONS, action_of, request_of, result_of
from elastane_master.dashboard.browser import (
    checked_token,
    cookie_name,
    cookie_value,
    require_own_name,
    require_same_site,
    token_of_cookie,
)
from elastane_master.dashboard.words import age, moment, ranks, size
from elastane_master.decisions.events import Rejection
from elastane_master.security.policy import RULES
from elastane_proto.v1 import job_pb2

HOST = {"Host": "m.example:9090"}
OWN = {**HOST, "Origin": "https://m.example:9090"}


@pytest.mark.parametrize(
    ("headers", "by_cookie"),
    [(OWN, True), ({**OWN, "Sec-Fetch-Site": "same-origin"}, True), (HOST, False),
     ({**HOST, "Sec-Fetch-Site": "none"}, True)],
)  # fmt: skip
def test_forms_of_this_site(headers: dict[str, str], by_cookie: bool) -> None:
    require_same_site(headers, by_cookie=by_cookie)


@pytest.mark.parametrize(
    "headers",
    [
        HOST,  # a browser that says nothing of itself, with a cookie
        {**HOST, "Origin": "null"},
        {**HOST, "Origin": "https://m.example"},
        {**HOST, "Origin": "https://m.example:9090.evil.example"},
        {**HOST, "Origin": "https://evil.example/m.example:9090"},
        {**HOST, "Origin": "file://m.example:9090"},
        {**HOST, "Origin": "http://["},
        {**OWN, "Sec-Fetch-Site": "cross-site"},
        {**OWN, "Sec-Fetch-Site": "same-site"},
        {"Origin": ""},
    ],
)
def test_forms_of_other_sites(headers: dict[str, str]) -> None:
    with pytest.raises(Rejection, match="did not come from a page"):
        require_same_site(headers, by_cookie=True)


def test_names_that_only_this_network_can_give() -> None:
    for host in (
        "127.0.0.1:1",
        "[::1]:1",
        "localhost",
        "master:9090",
        "m.ns.svc",
        "M.EXAMPLE",
        "x.localhost:1",
    ):
        require_own_name(host.lower(), {"m.example"})
    for host in (
        "evil.example",
        "127.0.0.1.evil.example:80",
        "localhost.evil.example",
        "",
        "[::1",
        "svc.evil.com.",
    ):
        with pytest.raises(Rejection, match="does not answer to the name"):
            require_own_name(host, {"m.example"})


def test_a_token_survives_the_cookie_and_nothing_else_does() -> None:
    token = 'a"b;c,d\\e=f/' + "x" * 20
    value = cookie_value(token)
    assert token_of_cookie(value) == token and not set(value) & set('";,\\= ')
    for wrong in ("=", "a", "%%%", "aaaa\n", "ÿ", "gICA"):
        assert token_of_cookie(wrong) is None
    assert cookie_name(tls=True).startswith("__Host-") and not cookie_name(tls=False).startswith("__")
    assert checked_token(f" {token}\n") == token
    for wrong in ("", "  ", "ä" * 20, "a\x00b", "x" * 5000):
        with pytest.raises(Rejection, match="not a token"):
            checked_token(wrong)


def test_every_button_is_an_rpc_that_only_operators_may_call() -> None:
    for action in ACTIONS.values():
        assert RULES[action.rpc].roles == {"operator"}
        fields = {"workers_min": "1", "workers_max": "2", "worker": "w", "confirmed": "yes"}
        request = request_of(action, "j", fields)
        assert type(request).__name__ == f"JobService{action.rpc.rpartition('/')[2]}Request"
        assert request.name == "j" and request.request_id != request_of(action, "j", fields).request_id
    assert [name for name, action in ACTIONS.items() if action.confirmed] == ["cancel"]
    with pytest.raises(Rejection, match="no action"):
        action_of("delete")
    with pytest.raises(Rejection, match="not confirmed"):
        request_of(ACTIONS["cancel"], "j", {})


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "²", "99999999999999", "0x1", "0" * 12 + "9" * 12, "9" * 5000]
)
def test_numbers_of_workers_that_are_none(text: str) -> None:
    with pytest.raises(Rejection, match="is not a number of workers"):
        request_of(ACTIONS["scale"], "j", {"workers_min": text, "workers_max": "2"})


def test_a_number_of_workers_may_have_noughts_before_it() -> None:
    scaled = request_of(ACTIONS["scale"], "j", {"workers_min": " 0", "workers_max": "0" * 5000 + "2"})
    assert isinstance(scaled, job_pb2.JobServiceScaleRequest)
    assert (scaled.workers_min, scaled.workers_max) == (0, 2)


def test_results_in_words() -> None:
    job = job_pb2.Job(settings=job_pb2.JobSettings(ests=4, workers_min=1), phase=3, reason="asked for")
    answer = job_pb2.JobServiceScaleResponse(job=job)
    assert result_of(ACTIONS["scale"], {}, answer).startswith("Scaled to 1 to 4 workers")
    assert result_of(ACTIONS["suspend"], {}, answer) == "The job is suspended: asked for."
    assert result_of(ACTIONS["drain"], {"worker": "w"}, answer) == "w has left."
    job.workers.add(worker_id="w")
    assert "leaves at the next" in result_of(ACTIONS["drain"], {"worker": "w"}, answer.__class__(job=job))
    saved = job_pb2.JobServiceCheckpointResponse(step=7, url="s3://x")
    assert "step 7: s3://x" in result_of(ACTIONS["checkpoint"], {}, saved)
    assert "not complete yet" in result_of(ACTIONS["checkpoint"], {}, None)


def test_words() -> None:
    seconds = (-1.0, 0.44, 9.96, 59.7, 61, 3599.6, 7260, 200_000, None, float("nan"))
    assert [age(one) for one in seconds] == [
        "0.0 s", "0.4 s", "10 s", "1 min 00 s", "1 min 01 s", "1 h 00 min", "2 h 01 min", "2 d 7 h",
        "unknown", "unknown",
    ]  # fmt: skip
    assert [size(one) for one in (0, 1023, 1536, 5 << 30, 1 << 60)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 GiB", "1048576.0 TiB",
    ]  # fmt: skip
    assert [ranks(0, 1), ranks(2, 5), ranks(3, 3), ranks(2, 5, bare=True)] == [
        "EST 0", "ESTs 2-4", "no EST", "2-4",
    ]  # fmt: skip
    assert moment(0) == "1970-01-01 00:00:00" and moment(1e18).startswith("9999")
