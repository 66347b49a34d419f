"""The last message of an agent that was stopped: which part of the training is saved, and which is lost.

Pure: computed from the job as it was after the agent's workers had left.
"""

from __future__ import annotations

from elastane_proto.v1 import job_pb2

_OVER = (job_pb2.JOB_PHASE_SUCCEEDED, job_pb2.JOB_PHASE_CANCELLED)


def what_was_kept(job: job_pb2.Job, *, state_dir: str, has_slots: bool = False) -> str:
    """Return one line of text; empty for a job that has succeeded or was cancelled.

    state_dir: the temporary state directory that the same command must be given to go on; empty if it
    needs none. has_slots: the agent had parameter servers, which have saved their slots.
    """
    if job.phase in _OVER:
        return ""
    if any(worker.state == job_pb2.WORKER_STATE_MEMBER for worker in job.workers):
        return f"kept: everything; other workers continue the job, which is at step {job.step}"
    where = f" with --state-dir {state_dir}" if state_dir else ""
    if has_slots and job.step == 0:
        if not job.settings.checkpoint_url:
            return "not kept: the slots of the model, which parameter servers held; give --checkpoint URL"
        return (
            f"kept: the slots of the model, as last saved in {job.settings.checkpoint_url}; the same "
            f"command{where} continues, and does again what they lack"
        )
    if job.step == 0:
        return "nothing was trained yet, so nothing is lost; run the same command to start"
    if job.saved_step < 0:
        why = (
            f"there is no complete checkpoint in {job.settings.checkpoint_url} yet"
            if job.settings.checkpoint_url
            else "without --checkpoint URL only the workers hold the trained weights"
        )
        return f"not kept: the training of all {_steps(job.step)}; {why}"
    kept = f"kept: the checkpoint of step {job.saved_step} in {job.settings.checkpoint_url}"
    lost = job.step - job.saved_step
    if lost > 0:
        kept += f"; not kept: the {_steps(lost)} since"
    return f"{kept}; the same command{where} continues from there"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"
