"""State of the job in one worker: captured exactly, handed over, saved.

`codec` turns nested state into JSON and tensors, `train_state` collects it from the script's objects and
restores it, `handover` moves it between workers, `checkpoint` stores it in files.
"""

from elastane.state.checkpoint import (
    Checkpoint,
    CheckpointDamagedError,
    CheckpointError,
    LoadedCheckpoint,
    NoUsableCheckpointError,
    ShardInfo,
    checkpoint_name,
    list_checkpoints,
    load_newest,
    take_snapshot,
    write_manifest,
    write_shard,
)
from elastane.state.codec import Exported, StateNotCarriedError
from elastane.state.fingerprint import fingerprint
from elastane.state.handover import HandoverError, receive_state, send_state
from elastane.state.train_state import StateError, TrainState

__all__ = [
    "Checkpoint",
    "CheckpointDamagedError",
    "CheckpointError",
    "Exported",
    "HandoverError",
    "LoadedCheckpoint",
    "NoUsableCheckpointError",
    "ShardInfo",
    "StateError",
    "StateNotCarriedError",
    "TrainState",
    "checkpoint_name",
    "fingerprint",
    "list_checkpoints",
    "load_newest",
    "receive_state",
    "send_state",
    "take_snapshot",
    "write_manifest",
    "write_shard",
]
