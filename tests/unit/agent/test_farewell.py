"""What an agent that was stopped says of what is left."""

from __future__ import annotations

from elastane_agent.supervisor.farewell import what_was_kept
from elastane_proto.v1 import job_pb2


def job(*, step: int = 45, saved_step: int = -1, url: str = "", **fields: object) -> job_pb2.Job:
    settings = job_pb2.JobSettings(ests=2, checkpoint_url=url)
    return job_pb2.Job(name="j", step=step, saved_step=saved_step, settings=settings, **fields)


def test_what_was_kept_and_what_was_not() -> None:
    told = what_was_kept(job(), state_dir="")
    assert told.startswith("not kept: the training of all 45 steps;") and "--checkpoint" in told
    told = what_was_kept(job(url="/saved"), state_dir="")
    assert told == "not kept: the training of all 45 steps; there is no complete checkpoint in /saved yet"
    told = what_was_kept(job(url="/saved", saved_step=45), state_dir="/tmp/x")
    assert told == (
        "kept: the checkpoint of step 45 in /saved; "
        "the same command with --state-dir /tmp/x continues from there"
    )
    told = what_was_kept(job(url="/saved", saved_step=44), state_dir="")
    assert "; not kept: the 1 step since; the same command continues" in told
    assert "nothing is lost" in what_was_kept(job(step=0), state_dir="")


def test_what_parameter_servers_have_kept() -> None:
    told = what_was_kept(job(step=0, url="/saved"), state_dir="/tmp/x", has_slots=True)
    assert told.startswith("kept: the slots of the model, as last saved in /saved")
    assert "the same command with --state-dir /tmp/x continues" in told
    told = what_was_kept(job(step=0), state_dir="", has_slots=True)
    assert told.startswith("not kept: the slots") and "--checkpoint" in told


def test_where_others_go_on_nothing_is_lost() -> None:
    there = [job_pb2.WorkerInfo(worker_id="other", state=job_pb2.WORKER_STATE_MEMBER)]
    assert "kept: everything; other workers continue" in what_was_kept(job(workers=there), state_dir="")
    over = job(phase=job_pb2.JOB_PHASE_SUCCEEDED)
    assert what_was_kept(over, state_dir="") == ""
