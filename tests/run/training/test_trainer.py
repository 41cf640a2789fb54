"""The class of docs/howto/trainer.md trains as Hugging Face's Trainer does."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import transformers.trainer
from torch.nn import Embedding, Linear
from torch.nn.functional import cross_entropy
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.modeling_outputs import CausalLMOutput

from tests.leftovers import nothing_left

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "trainer.md"
TOLD = ("loss", "grad_norm", "learning_rate", "eval_loss")


def placed_trainer():
    """The class that the page shows."""
    known: dict[str, type] = {}
    exec(
        PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], known
    )
    return known["PlacedTrainer"]


def rows():
    generator, found = torch.Generator().manual_seed(0), []
    for k in range(16):
        words = torch.randint(64, (12,), generator=generator)
        labels = torch.where(torch.arange(12) < k % 5, -100, words)
        found.append({"input_ids": words, "labels": labels})
    return found


def small():
    torch.manual_seed(0)
    sizes = {
        "n_positions": 12,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "vocab_size": 64,
    }
    off = {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **off, bos_token_id=0, eos_token_id=0))


def trained(kind, folder, **options):
    model = small()
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        warmup_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    given = rows()
    trainer = kind(
        model, arguments, train_dataset=given, eval_dataset=given[:4], **options
    )
    trainer.train()
    history = [
        {k: entry[k] for k in TOLD if k in entry} for entry in trainer.state.log_history
    ]
    return model, history


def test_the_trainer_of_the_page_is_the_plain_one_to_the_last_bit(tmp_path):
    search = {"cluster": "cpu:2", "placer": "round-robin", "budget": 0}
    with nothing_left():
        plain, expected = trained(Trainer, tmp_path / "plain")
        placed, history = trained(placed_trainer(), tmp_path / "placed", **search)
    assert history == expected
    assert len(history) == 6
    assert all(
        map(torch.equal, placed.state_dict().values(), plain.state_dict().values())
    )
    kept = GPT2LMHeadModel.from_pretrained(tmp_path / "placed" / "checkpoint-4")
    assert all(
        map(torch.equal, kept.state_dict().values(), plain.state_dict().values())
    )


class Tiny(PreTrainedModel):
    """A language model of five tensors, which trains in a fraction of a second."""

    config_class = PretrainedConfig
    supports_gradient_checkpointing = True

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(PretrainedConfig())
        self.embed, self.hidden, self.head = (
            Embedding(64, 8),
            Linear(8, 8),
            Linear(8, 64),
        )
        self.gradient_checkpointing = False
        self.post_init()

    def _init_weights(self, module):
        """Those of PyTorch."""

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, labels=None, num_items_in_batch=None):
        seen, inner = self.embed(input_ids), lambda x: torch.tanh(self.hidden(x))
        checked = self.gradient_checkpointing and self.training
        seen = (
            self._gradient_checkpointing_func(inner, seen) if checked else inner(seen)
        )
        logits, loss = self.head(seen), None
        if labels is not None:
            summed = "mean" if num_items_in_batch is None else "sum"
            loss = cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction=summed
            )
            loss = loss if num_items_in_batch is None else loss / num_items_in_batch
        return CausalLMOutput(loss=loss, logits=logits)


class Asking(TrainerCallback):
    """Halves every gradient and stops after the third step."""

    def on_pre_optimizer_step(self, args, state, control, model, **options):
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)

    def on_step_end(self, args, state, control, **options):
        control.should_training_stop = state.global_step == 3


def stacked(examples):
    return {key: torch.stack([row[key] for row in examples]) for key in examples[0]}


def right(answers):
    return {
        "right": float((answers.predictions.argmax(-1) == answers.label_ids).mean())
    }


def own_optimizer():
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return {"model": model, "optimizers": (optimizer, schedule)}


PLAIN = {
    "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1, "report_to": [],
    "num_train_epochs": 1, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no",
}  # fmt: skip
OBEYED = {
    "steps": {
        "per_device_train_batch_size": 4, "max_steps": 3, "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2},
        "warmup_steps": 0.5, "learning_rate": 3e-2, "weight_decay": 0.1, "adam_beta1": 0.8,
        "adam_beta2": 0.9, "adam_epsilon": 1e-4, "max_grad_norm": 0.1, "optim": "adamw_torch",
        "average_tokens_across_devices": False, "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
    "optimizer": {
        "optim": "sgd", "optim_args": "momentum=0.9,nesterov=True", "num_train_epochs": 1.5,
        "max_grad_norm": 0, "include_num_input_tokens_seen": "all", "logging_first_step": True,
        "logging_strategy": "epoch", "logging_steps": 3, "logging_nan_inf_filter": False,
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"use_reentrant": True},
        "use_cache": True, "train_sampling_strategy": "sequential", "neftune_noise_alpha": 0.0,
    },
    "evaluation": {
        "eval_strategy": "steps", "eval_steps": 2, "eval_delay": 1, "eval_on_start": True,
        "per_device_eval_batch_size": 3, "eval_do_concat_batches": False,
        "eval_accumulation_steps": 1, "eval_use_gather_object": True, "bf16_full_eval": True,
        "include_for_metrics": ["loss"], "prediction_loss_only": True,
    },
    "best": {
        "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "best",
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1,
        "greater_is_better": True, "fp16_full_eval": True, "save_only_model": True,
        "seed": 7, "data_seed": 3, "save_on_each_node": True, "enable_jit_checkpoint": True,
    },
    "data": {
        "dataloader_drop_last": True, "per_device_train_batch_size": 3, "dataloader_num_workers": 1,
        "dataloader_prefetch_factor": 1, "dataloader_persistent_workers": True,
        "dataloader_in_order": False, "dataloader_multiprocessing_context": "fork",
        "remove_unused_columns": False, "label_names": ["labels"], "dataloader_pin_memory": False,
        "accelerator_config": {"split_batches": True, "use_seedable_sampler": False},
        "train_sampling_strategy": "group_by_length", "length_column_name": "labels",
    },
    "resumed": {"save_strategy": "steps", "save_steps": 3, "ignore_data_skip": True,
                "restore_callback_states_from_checkpoint": True},
}  # fmt: skip
ARGUMENTS = {
    "metrics": lambda: {"model": Tiny(), "data_collator": stacked, "compute_metrics": right,
                        "preprocess_logits_for_metrics": lambda logits, labels: logits / 2},
    "optimizers": own_optimizer,
    "class": lambda: {"model_init": Tiny, "callbacks": [Asking()],
                      "optimizer_cls_and_kwargs": (torch.optim.RAdam, {"lr": 0.1})},
}  # fmt: skip
REFUSED = {
    "label_smoothing_factor": 0.1, "bf16": True, "fp16": True, "tf32": False, "torch_compile": True,
    "full_determinism": True, "torch_empty_cache_steps": 1, "auto_find_batch_size": True,
    "skip_memory_metrics": False, "debug": "underflow_overflow", "use_liger_kernel": True,
    "parallelism_config": None, "fsdp": True, "deepspeed": {},
}  # fmt: skip
LIBRARY = {"parallelism_config", "fsdp", "deepspeed", "use_liger_kernel"}
"""Refused too, but before by the library itself where their packages or processes are missing."""
WITH_OTHERS = {
    "torch_compile_backend", "torch_compile_mode",
    "liger_kernel_config", "fsdp_config", "optim_target_modules",
}  # fmt: skip
"""Options of what is refused, or of optimizers that no package here has; nothing without."""
ONE_PROCESS = {
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers",
    "ddp_static_graph", "ddp_backend", "ddp_timeout", "local_rank", "log_on_each_node",
}  # fmt: skip
"""They say nothing where one process trains, in the plain Trainer neither."""
OWN_PROCESS = {
    "output_dir", "log_level", "log_level_replica", "report_to", "run_name", "project",
    "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "push_to_hub",
    "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_always_push",
    "hub_revision", "do_train", "do_eval", "do_predict", "resume_from_checkpoint",
    "batch_eval_metrics", "disable_tqdm", "use_cpu",
}  # fmt: skip
"""Where the Trainer's own process writes, prints and computes metrics; no step reads them."""


@pytest.fixture(autouse=True)
def no_such_package(monkeypatch):
    """The folder `datasets` of a checkout is not Hugging Face's package of that name."""
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    monkeypatch.setattr(
        transformers.trainer, "enable_full_determinism", lambda seed: None
    )


def test_every_argument_is_obeyed_refused_or_of_the_own_process():
    set_here = {name for values in OBEYED.values() for name in values}
    known = [set_here, set(REFUSED), WITH_OTHERS, ONE_PROCESS, OWN_PROCESS]
    listed = sorted(name for names in known for name in names)
    assert listed == sorted(field.name for field in fields(TrainingArguments))
    made = {name for make in ARGUMENTS.values() for name in make()} | {
        "compute_loss_func"
    }
    rest = {"self", "args", "train_dataset", "eval_dataset", "processing_class"}
    assert made | rest == set(inspect.signature(Trainer.__init__).parameters)
    assert set(placed_trainer().REFUSED) | {"skip_memory_metrics"} == set(REFUSED)


def told(kind, folder, given, made, **options):
    """Parameters and logs of a training; one with checkpoints is resumed from its last one."""
    arguments = TrainingArguments(str(folder), **(PLAIN | given))
    trainer = kind(
        args=arguments, train_dataset=rows(), eval_dataset=rows()[:4], **made, **options
    )
    trainer.train()
    if "ignore_data_skip" in given:
        trainer.args.num_train_epochs = 2
        trainer.train(resume_from_checkpoint=True)
    times = ("runtime", "per_second")
    history = [
        {key: entry[key] for key in entry if not key.endswith(times)}
        for entry in trainer.state.log_history
    ]
    return history, trainer.model.state_dict()


@pytest.mark.parametrize("name", [*OBEYED, *ARGUMENTS])
def test_other_values_of_arguments_train_as_the_plain_trainer(name, tmp_path):
    """Takes two to three seconds: it trains twice, once with workers that it starts."""
    given = OBEYED.get(name, {"eval_strategy": "epoch"})
    make = ARGUMENTS.get(name, lambda: {"model": Tiny()})
    expected, plain = told(Trainer, tmp_path / "plain", given, make())
    search = {"cluster": "cpu:2", "placer": "round-robin", "budget": 0}
    with warnings.catch_warnings(action="ignore"):
        found, placed = told(
            placed_trainer(), tmp_path / "placed", given, make(), **search
        )
    assert [strip(entry, tmp_path) for entry in found] == [
        strip(e, tmp_path) for e in expected
    ]
    assert all(map(torch.equal, placed.values(), plain.values()))
    assert not torch.equal(plain["hidden.weight"], Tiny().hidden.weight)


def strip(entry, folder):
    return {key: value for key, value in entry.items() if str(folder) not in str(value)}


def test_what_is_drawn_follows_from_the_seed(tmp_path):
    """Takes two seconds: it starts workers three times."""
    losses = []
    for seed in (1, 1, 2):
        given = {"seed": seed, "max_steps": 1, "train_sampling_strategy": "sequential"}
        given["neftune_noise_alpha"] = 5.0
        search = {"cluster": "cpu:2", "placer": "round-robin", "budget": 0}
        with warnings.catch_warnings(action="ignore"):
            history, _ = told(
                placed_trainer(), tmp_path, given, {"model": Tiny()}, **search
            )
        losses.append(history[0]["loss"])
    given = {"max_steps": 1, "train_sampling_strategy": "sequential"}
    quiet = told(Trainer, tmp_path, given, {"model": Tiny()})[0][0]["loss"]
    assert losses[0] == losses[1] != losses[2]
    assert quiet not in losses
    assert losses == pytest.approx([quiet] * 3, rel=0.2)


@pytest.mark.parametrize(
    "name", [*sorted(REFUSED.keys() - LIBRARY), "compute_loss_func"]
)
def test_arguments_that_workers_do_not_obey_are_refused(name, tmp_path):
    given = {name: REFUSED[name]} if name in REFUSED else {}
    options = (
        {} if given else {"compute_loss_func": lambda *found, **more: found[0].loss}
    )
    arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, **given)
    with pytest.raises(ValueError, match=f"do not obey {name}"):
        placed_trainer()(Tiny(), arguments, **options)


def test_a_last_batch_that_is_shorter_is_refused_before_training(tmp_path):
    given = PLAIN | {"per_device_train_batch_size": 3}
    trainer = placed_trainer()(
        Tiny(), TrainingArguments(str(tmp_path), **given), None, rows()
    )
    with pytest.raises(
        ValueError, match="the last of 16 examples are no batch of 3; give data"
    ):
        trainer.train()
    assert trainer.step is None
    assert trainer.state.global_step == 0
