"""Hugging Face's Trainer for `train`: the loss of each step, progress, dropout per rank, atomic checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from cpu_train_stack.group.create import agreement, gather
from cpu_train_stack.operators.output_layer import OutputLayer
from cpu_train_stack.speed import balanced_ranks
from cpu_train_stack.speed.step_clock import clock_of
from cpu_train_stack.train.flags.training_arguments import changed, check_metric
from cpu_train_stack.train.loop import console, resume
from cpu_train_stack.train.loop.grouping import GroupedByLength
from cpu_train_stack.train.loop.losses import Losses
from cpu_train_stack.train.loop.progress import Progress
from cpu_train_stack.train.model import adapters, ipex, sharding
from cpu_train_stack.train.output import checkpoints, replicas, weights


class DropoutPerRank(TrainerCallback):
    """Give each rank its own seed, or all ranks drop the same neurons. The order of rows has another seed."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.manual_seed(args.seed + args.process_index)


class CpuTrainer(Trainer):
    """The Trainer that the adaptations of `speed` have changed, with what only `train` needs.

    `losses` and `progress`: complete after `train_from`. `evaluated`: the last evaluation's step and metrics.
    `ddp_comm_hook` and `row_lengths`: read by `speed.gradients` and `speed.balanced_ranks`.
    """

    def __init__(
        self,
        exchange: str | None = None,
        output: OutputLayer | None = None,
        write: Callable[[Any, Any], Any] | None = None,
        **options: Any,
    ) -> None:
        """`exchange`: how gradients are exchanged, see gradients.exchange.

        `output`: computes the sums of the loss, see speed.output_layer. `write`: generates texts during
        evaluation. `options`: of Trainer.
        """
        arguments, sharded = options["args"], sharding.is_sharded(options["model"])
        # Trainer refuses to save the optimizer of a sharded model. `_save_optimizer_and_scheduler` saves it.
        with changed(arguments, "save_only_model", arguments.save_only_model or sharded):
            super().__init__(**options)
        self._sharded = sharded
        self.ddp_comm_hook = exchange
        self.output = output
        self._write = write
        self.clock = clock_of(self)
        self.losses = Losses(self.clock)
        self.progress = Progress(self.clock, self.args.world_size)
        self.evaluated: tuple[int, dict[str, float]] | None = None
        self._saving = False
        self.remove_callback(PrinterCallback)
        for callback in (
            DropoutPerRank(),
            resume.IntervalsOfFlags(),
            resume.BeginEpochs(self.train_dataset),
            self.losses,
            self.progress,
        ):
            self.add_callback(callback)

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Keep no states of a decoder: with them, one of transformers 4 does not separate packed rows."""
        if "decoder_input_ids" in inputs or "position_ids" in inputs:
            inputs = {**inputs, "use_cache": False}
        return super().compute_loss(model, inputs, *arguments, **options)

    def prediction_step(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Also generate the texts of a batch, beside its scores."""
        loss, scores, labels = super().prediction_step(model, inputs, *arguments, **options)
        if self._write is None:
            return loss, scores, labels
        with self.accelerator.autocast():
            texts = self._write(self.model, inputs)
        return loss, (scores[0] if isinstance(scores, tuple) else scores, texts), labels

    def create_optimizer(self, *arguments: Any) -> Any:
        """Also optimize with IPEX, which needs the model and its optimizer before DDP wraps the model."""
        optimizer = super().create_optimizer(*arguments)
        if ipex.is_ignored_by(Trainer, self.args):
            optimizer = ipex.optimize(self.model, optimizer, self.args.bf16)
            self.optimizer = optimizer
        return optimizer

    def row_lengths(self) -> Sequence[int]:
        """The tokens in each row of the training data."""
        lengths: Sequence[int] = self.train_dataset.lengths()
        return lengths

    def _get_train_sampler(self, *arguments: Any) -> Any:
        """Group rows if asked for.

        Trainer's own grouping uses torch's generator, which differs between our ranks: they would not agree on the
        order of the rows.
        """
        if not self._groups_rows():
            return super()._get_train_sampler(*arguments)
        args = self.args
        rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        seed = args.seed if args.data_seed is None else args.data_seed
        grouped = GroupedByLength(self.row_lengths(), rows, seed)
        return balanced_ranks.of_trainer(self, grouped, self.row_lengths)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Do not group rows for evaluation, as Trainer would: metrics identify a row by its position."""
        if self._groups_rows():
            return SequentialSampler(eval_dataset)
        return super()._get_eval_sampler(eval_dataset)

    def get_eval_dataloader(self, *arguments: Any) -> Any:
        """Evaluate every row: Trainer would apply --dataloader_drop_last to evaluation too."""
        with changed(self.args, "dataloader_drop_last", False):
            return super().get_eval_dataloader(*arguments)

    def _groups_rows(self) -> bool:
        strategy = getattr(self.args, "train_sampling_strategy", None)
        return strategy == "group_by_length" or bool(getattr(self.args, "group_by_length", False))

    def train_from(self, checkpoint: Path | None) -> None:
        """Train, starting from a checkpoint or from the model. A checkpoint of the last step is only loaded,
        because Trainer would train one more step. Losses and step count are then those of the checkpoint."""
        if checkpoint is None:
            self.train()
            return
        planned, state = self._planned_steps(), resume.state_of(self, checkpoint)
        state.best_model_checkpoint = resume.best_checkpoint(state, Path(self.args.output_dir))
        remaining = state.global_step < planned
        moved = resume.changed_rows(state, self._per_epoch()) if remaining else None
        for note in (resume.changed_epochs(state, planned, self.args), moved):
            if note is not None:
                console.note(note, self.args.process_index, kind="warning")
        if remaining:
            self.add_callback(resume.BestCheckpoint(state.best_model_checkpoint))
            self.train(resume_from_checkpoint=str(checkpoint))
            return
        console.note(
            f"{checkpoint.name} is the end of this job: no step is left to train", self.args.process_index
        )
        self.load(checkpoint)
        # Those of the rank that saved the checkpoint, rank 0.
        state.is_world_process_zero = self.is_world_process_zero()
        state.is_local_process_zero = self.is_local_process_zero()
        self.state = state
        self.losses.restore(state)
        if self.args.load_best_model_at_end and state.best_model_checkpoint:
            self._load_best_model()

    def load(self, checkpoint: Path) -> None:
        self._load_from_checkpoint(str(checkpoint))

    def _planned_steps(self) -> int:
        # Releases that lack this method, such as 4.46, do not count the rest.
        counts_rest = hasattr(Trainer, "set_initial_training_values")
        return resume.planned_steps(self.args, len(self.get_train_dataloader()), counts_rest)

    def _per_epoch(self) -> int:
        """The number of steps in an epoch."""
        return -(-len(self.get_train_dataloader()) // int(self.args.gradient_accumulation_steps))

    def _get_output_dir(self, trial: Any) -> str:
        """The folder of Trainer's checkpoints: while a checkpoint is being written, the staging folder."""
        folder = Path(super()._get_output_dir(trial))
        return str(checkpoints.staging_folder(folder) if self._saving else folder)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._sharded:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        folder = Path(output_dir)
        sharding.save_optimizer(self.model, self.optimizer, folder / OPTIMIZER_NAME, self.args.should_save)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), folder / SCHEDULER_NAME)

    _load_rng_state = resume.reads("rng_state")(Trainer._load_rng_state)

    @resume.reads("optimizer.pt or scheduler.pt")
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = Path(checkpoint) if checkpoint else None
        if folder and sharding.load_optimizer(self.model, self.optimizer, folder / OPTIMIZER_NAME):
            self.lr_scheduler.load_state_dict(torch.load(folder / SCHEDULER_NAME, weights_only=True))
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
            resume.check_optimizer(self.optimizer)

    @resume.reads("the weights")
    def _load_from_checkpoint(self, checkpoint: str, *arguments: Any, **options: Any) -> None:
        # A sharded model has read its weights from the checkpoint already.
        reads = not self._sharded or adapters.is_adapter(Path(checkpoint))
        if reads and not weights.restore(self.model, Path(checkpoint)):
            super()._load_from_checkpoint(checkpoint, *arguments, **options)

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Write the checkpoint to the staging folder; rank 0 renames it when all ranks are done.

        Trainer would write directly into the final folder, file by file.
        """
        output, step = Path(self.args.output_dir), self.state.global_step
        name = f"{PREFIX_CHECKPOINT_DIR}-{step}"
        self.losses.reduce()
        self._saving = True
        try:
            with checkpoints.full_disk_reported(output, f"the checkpoint of step {step}", self.args.should_save):
                super()._save_checkpoint(*arguments, **options)
                self._forget_staging(output, name)
        finally:
            self._saving = False
        if dist.is_initialized():
            dist.barrier()
        if self.args.should_save:
            checkpoints.publish(output, name)
            checkpoints.rotate(output, self.args.save_total_limit, self.state.best_model_checkpoint)
        # After the rename. Ranks that do not share the folder do not find the best checkpoint there.
        self.state.best_model_checkpoint = gather(self.state.best_model_checkpoint)[0]
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(output / name))

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Also save an adapter's labels, and delete weights that an earlier run left."""
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            weights.complete(Path(output_dir or self.args.output_dir), self.model)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing while saving: the staging folder is about to be renamed."""
        if not self._saving:
            super()._push_from_checkpoint(checkpoint_folder)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """Also remember the metrics: the history has those of a checkpoint's run too, maybe of other rows.

        Raises UsageError for an unknown --metric_for_best_model: Trainer would raise a KeyError.
        """
        metrics: dict[str, float] = super().evaluate(*arguments, **options)
        self.evaluated = self.state.global_step, metrics
        if self.is_in_train:
            with agreement():
                check_metric(self.args.metric_for_best_model, metrics)
        return metrics

    def evaluation_loop(self, *arguments: Any, **options: Any) -> Any:
        """Implement --prediction_loss_only by dropping the other metrics.

        Without predictions, Trainer would give a short last batch full weight, and would not count rows.
        """
        with changed(self.args, "prediction_loss_only", False):
            found = super().evaluation_loop(*arguments, **options)
        if self.args.prediction_loss_only:
            for name in [name for name in found.metrics if not name.endswith(("_loss", "_samples"))]:
                del found.metrics[name]
        return found

    def _forget_staging(self, output: Path, name: str) -> None:
        """Replace the staging folder by the final folder in the state's path of the best checkpoint."""
        written = checkpoints.staging_folder(output) / name
        if self.state.best_model_checkpoint == str(written):
            self.state.best_model_checkpoint = str(output / name)
            if self.args.should_save:
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))

    def _load_best_model(self) -> None:
        """Load the best model on rank 0, and copy it to all ranks: other nodes may not see its folder."""
        best = Path(self.state.best_model_checkpoint)
        if self._sharded and not hasattr(self.model, "peft_config"):
            weights.restore_shards(self.model, best, self.args.should_save)
            return
        if not weights.restore_best(self.model, best):
            super()._load_best_model()
        replicas.copy_from_rank_0(self.model)
