"""The training service of the chapter "Training service design", with its package, fields and int32 job ids.

A projection of the runs, so that clients of that service work unchanged.
"""

from __future__ import annotations

from elastane_master.decisions.runs import chapter, views
from elastane_master.runs.service import TrainingRuns
from elastane_master.servers.binding import Context
from elastane_master.servers.run_submission import submit
from elastane_master.servers.visible_runs import run_of, unknown_run
from elastane_proto.training import training_service_pb2 as chapter_pb2


class ChapterServicer:
    """Serves training.TrainingService, the chapter's own surface."""

    def __init__(self, runs: TrainingRuns) -> None:
        self._runs = runs

    async def Train(self, request: chapter_pb2.TrainRequest, context: Context) -> chapter_pb2.TrainResponse:
        sent = request.metadata
        metadata = chapter.Metadata(
            sent.algorithm,
            sent.dataset_id,
            sent.name,
            sent.train_data_version_hash,
            dict(sent.parameters),
            sent.output_model_name,
        )
        submitted = await submit(self._runs, chapter.spec_of(metadata), "")
        return chapter_pb2.TrainResponse(job_id=chapter.job_id(submitted.run_id))

    async def GetTrainingStatus(
        self, request: chapter_pb2.GetTrainingStatusRequest, context: Context
    ) -> chapter_pb2.GetTrainingStatusResponse:
        server = self._runs.server
        run_of(server, request.job_id)
        view = views.run_view(server.machine, request.job_id, server.clock())
        if view is None:
            raise unknown_run(request.job_id)
        status = chapter.status_of(view)
        await server.log.settled()
        metadata = chapter_pb2.TrainingJobMetadata(
            algorithm=status.metadata.algorithm,
            dataset_id=status.metadata.dataset_id,
            name=status.metadata.name,
            train_data_version_hash=status.metadata.train_data_version_hash,
            parameters=status.metadata.parameters,
            output_model_name=status.metadata.output_model_name,
        )
        return chapter_pb2.GetTrainingStatusResponse(
            status=status.status,
            job_id=status.job_id,
            message=status.message,
            metadata=metadata,
            positionInQueue=status.position_in_queue,
        )
