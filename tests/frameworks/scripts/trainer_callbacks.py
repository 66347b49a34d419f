"""A Trainer whose callbacks draw random numbers, save in every process, or stop the training."""

import argparse
from pathlib import Path

import torch
from torch import nn
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer import Trainer

POINTS = [{"x": torch.tensor([float(i), 1.0]) / 40, "labels": torch.tensor([i % 3 / 2])} for i in range(36)]


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.drop = nn.Linear(2, 1), nn.Dropout(0.5)

    def forward(self, x, labels):
        found = self.net(self.drop(x))
        return {"loss": (found - labels).square().mean(), "logits": found}


class Between(TrainerCallback):
    """Between epochs: draws as each rank does, saves in every process, stops after the second epoch."""

    def on_epoch_begin(self, args, state, control, **kwargs):
        torch.rand(1)

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        torch.rand(2)
        torch.save(model.state_dict(), Path(args.output_dir) / "own.pt")
        control.should_training_stop = round(state.epoch) == 2


class DrawsInStep(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        torch.rand(1)


class DrawsAfterStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        torch.rand(1)


class DrawsInLog(TrainerCallback):
    def on_log(self, args, state, control, **kwargs):
        torch.rand(1)


class DrawsInEvaluation(TrainerCallback):
    def on_evaluate(self, args, state, control, **kwargs):
        torch.rand(1)


class StopsTraining(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2


class StopsEpoch(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step == 2


CALLBACKS = {
    "between": Between,
    "draws-in-step": DrawsInStep,
    "draws-after-step": DrawsAfterStep,
    "draws-in-log": DrawsInLog,
    "draws-in-evaluation": DrawsInEvaluation,
    "stops-training": StopsTraining,
    "stops-epoch": StopsEpoch,
    "patience": lambda: EarlyStoppingCallback(1),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("callback", choices=CALLBACKS)
    parser.add_argument("--evaluate", type=int, default=0, help="every so many steps")
    args = parser.parse_args()
    training_args = TrainingArguments(
        "out",
        num_train_epochs=4,
        per_device_train_batch_size=3,
        per_device_eval_batch_size=3,
        learning_rate=0.1,
        logging_steps=3,
        eval_strategy="steps" if args.evaluate else "no",
        eval_steps=args.evaluate or None,
        save_strategy="steps" if args.evaluate else "no",
        save_steps=args.evaluate or 500,
        load_best_model_at_end=args.callback == "patience",
        metric_for_best_model="loss",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    Path("out").mkdir(exist_ok=True)
    torch.manual_seed(3)
    trainer = Trainer(
        Line(),
        training_args,
        train_dataset=POINTS,
        eval_dataset=POINTS[:9],
        callbacks=[CALLBACKS[args.callback]()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
