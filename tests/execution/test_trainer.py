"""The class of docs/howto/trainer.md trains as Hugging Face's Trainer does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers.trainer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tests.leftovers import nothing_left

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "trainer.md"
TOLD = ("loss", "grad_norm", "learning_rate", "eval_loss")


def placed_trainer():
    """The class that the page shows."""
    known: dict[str, type] = {}
    exec(PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], known)
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
    sizes = {"n_positions": 12, "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64}
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
    trainer = kind(model, arguments, train_dataset=given, eval_dataset=given[:4], **options)
    trainer.train()
    history = [{k: entry[k] for k in TOLD if k in entry} for entry in trainer.state.log_history]
    return model, history


def test_the_trainer_of_the_page_is_the_plain_one_to_the_last_bit(tmp_path, monkeypatch):
    # The folder `datasets` of a checkout is not Hugging Face's package of that name.
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    search = {"cluster": "cpu:2", "placer": "round-robin", "budget": 0}
    with nothing_left():
        plain, expected = trained(Trainer, tmp_path / "plain")
        placed, history = trained(placed_trainer(), tmp_path / "placed", **search)
    assert history == expected
    assert len(history) == 6
    assert all(map(torch.equal, placed.state_dict().values(), plain.state_dict().values()))
    kept = GPT2LMHeadModel.from_pretrained(tmp_path / "placed" / "checkpoint-4")
    assert all(map(torch.equal, kept.state_dict().values(), plain.state_dict().values()))


@pytest.mark.parametrize(
    ("name", "given"),
    [("label_smoothing_factor", {"label_smoothing_factor": 0.1}), ("bf16", {"bf16": True}),
     ("torch_compile", {"torch_compile": True}), ("compute_loss_func", {})],
)  # fmt: skip
def test_arguments_that_workers_do_not_obey_are_refused(name, given, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    arguments = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, **given)
    options = {} if given else {"compute_loss_func": lambda *found, **more: found[0].loss}
    with pytest.raises(ValueError, match=f"do not obey {name}"):
        placed_trainer()(small(), arguments, **options)
