# SPDX-License-Identifier: BSD-3-Clause
"""Transformers: its Trainer, generation, checkpoints and precisions on the device, with models made from configurations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

DEV = "openreg:1"
WORDS = 61

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def gpt2(**settings: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    special = {"bos_token_id": 0, "eos_token_id": WORDS - 1, "pad_token_id": WORDS - 1}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=2, **special, **settings)
    )


def bert(**settings: Any) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(
        BertConfig(vocab_size=WORDS, max_position_embeddings=32, num_labels=3, **sizes, **settings)
    )


NO_DROPOUT = {
    gpt2: {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    bert: {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences of random words; the labels are the words, or a class."""

    def __init__(self, of_words: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        self._x = torch.randint(0, WORDS - 1, (16, 12), generator=generator)
        self._y = self._x if of_words else self._x[:, 0] % 3

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        mask = torch.ones(12, dtype=torch.long)
        mask[9 + index % 3 :] = 0
        return {"input_ids": self._x[index], "labels": self._y[index], "attention_mask": mask}


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Accelerate decides once a process on its device; here each test does."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def train(model: Any, folder: Path, device: str, **settings: Any) -> Any:
    """A few steps on the device that ACCELERATE_TORCH_DEVICE names."""
    trainer = trainer_for(model, folder, device, **settings)
    trainer.train()
    assert {p.device for p in model.parameters()} == {torch.device(device)}
    return trainer


def trainer_for(model: Any, folder: Path, device: str, **settings: Any) -> Any:
    AcceleratorState._reset_state(True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", device)
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=4,
            per_device_train_batch_size=4,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            learning_rate=1e-2,
            **{"seed": 3, "save_strategy": "no", **settings},
        )
        return Trainer(model, arguments, train_dataset=Data(isinstance(model, GPT2LMHeadModel)))


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# a language model and a classifier, trained by the Trainer: losses, gradient norms and weights are the CPU's
@pytest.mark.parametrize("model", [gpt2, bert])
def test_the_trainer_equals_the_cpu(model: Any, tmp_path: Path) -> None:
    cpu, there = model(**NO_DROPOUT[model]), model(**NO_DROPOUT[model])
    expected = train(cpu, tmp_path, "cpu")
    got = train(there, tmp_path, DEV)
    assert len(losses(expected)) == 4
    assert losses(got) == losses(expected)
    kept = ("loss", "grad_norm", "learning_rate")
    for a, b in zip(got.state.log_history[:4], expected.state.log_history[:4], strict=True):
        assert [a[name] for name in kept] == [b[name] for name in kept]
    for a, b in zip(there.parameters(), cpu.parameters(), strict=True):
        assert torch.equal(a.cpu(), b)


# dropout, which draws numbers on the device, is repeated by the Trainer's seed
def test_the_trainers_seed(tmp_path: Path) -> None:
    first, second = gpt2(), gpt2()
    assert losses(train(first, tmp_path, DEV)) == losses(train(second, tmp_path, DEV))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    third = gpt2()
    train(third, tmp_path, DEV, seed=4)
    assert not torch.equal(first.lm_head.weight, third.lm_head.weight)


# accumulated gradients, recomputed activations and fused optimizers, through the Trainer's settings
@pytest.mark.parametrize(
    "settings",
    [{"gradient_accumulation_steps": 2}, {"gradient_checkpointing": True}, {"optim": "adamw_torch_fused"}],
    ids=["accumulation", "checkpointing", "fused"],
)
def test_the_trainers_settings_equal_the_cpu(settings: dict[str, Any], tmp_path: Path) -> None:
    cpu, there = (gpt2(**NO_DROPOUT[gpt2]) for _ in range(2))
    expected, got = train(cpu, tmp_path, "cpu", **settings), train(there, tmp_path, DEV, **settings)
    assert losses(got) == losses(expected)


# bfloat16 by the variable: TrainingArguments(bf16=True) is refused for devices that Transformers does not know
def test_the_trainer_in_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = losses(train(gpt2(**NO_DROPOUT[gpt2]), tmp_path, "cpu"))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    model = gpt2(**NO_DROPOUT[gpt2])
    seen = set()
    model.lm_head.register_forward_hook(lambda module, inputs, result: seen.add(result.dtype))
    got = losses(train(model, tmp_path, DEV))
    assert seen == {torch.bfloat16} and model.lm_head.weight.dtype == torch.float32
    assert got == pytest.approx(full, abs=2e-2) and got != full


# training goes on from a saved state; without dropout, for the Trainer saves no random state of devices it does not know
def test_the_trainer_resumes(tmp_path: Path) -> None:
    whole = train(gpt2(**NO_DROPOUT[gpt2]), tmp_path / "whole", DEV)
    saved = {"save_strategy": "steps", "save_steps": 2}
    train(gpt2(**NO_DROPOUT[gpt2]), tmp_path / "half", DEV, **saved)
    trainer = trainer_for(gpt2(**NO_DROPOUT[gpt2]), tmp_path / "rest", DEV)
    trainer.train(resume_from_checkpoint=str(tmp_path / "half" / "checkpoint-2"))
    assert losses(trainer) == losses(whole)


# one matrix for words in and words out, before a move, after it, and after training
def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = gpt2()
    shared = model.lm_head.weight
    assert model.transformer.wte.weight is shared
    model.to(DEV)
    assert model.lm_head.weight is model.transformer.wte.weight is shared
    assert shared.device == torch.device(DEV)
    train(model, tmp_path, DEV)
    assert model.lm_head.weight is model.transformer.wte.weight is shared


# greedy, with beams, and drawn by a seed; over a cache of keys and values that stays on the device
def test_generation_equals_the_cpu() -> None:
    # A llama has rotary positions, grouped heads and its own norms, beside what GPT-2 has.
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes, eos_token_id=WORDS - 1))
    for model in (gpt2(), llama):
        results: dict[str, list[list[int]]] = {}
        for device in ("cpu", DEV):
            model.to(device).eval()
            words = torch.arange(10, device=device).reshape(2, 5)
            common = {"max_new_tokens": 8, "pad_token_id": 0, "attention_mask": torch.ones_like(words)}
            made = [
                model.generate(words, do_sample=False, **common),
                model.generate(words, do_sample=False, use_cache=False, **common),
                model.generate(words, num_beams=3, do_sample=False, **common),
            ]
            for _ in range(2):
                set_seed(7)
                made.append(model.generate(words, do_sample=True, top_k=20, top_p=0.9, temperature=0.8, **common))
            assert {m.device for m in made} == {torch.device(device)}
            assert torch.equal(made[0], made[1]) and torch.equal(made[3], made[4])
            results[device] = [m.tolist() for m in made]
        assert results[DEV] == results["cpu"]


# a cache of fixed size, with the step compiled as one graph
@pytest.mark.long
def test_compiled_generation_with_a_static_cache() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes)).eval()
    words = torch.tensor([[1, 5, 9, 3]])
    expected = model.generate(words, max_new_tokens=6, do_sample=False, pad_token_id=0)
    model.to(DEV)
    model.generation_config.cache_implementation = "static"
    model.forward = torch.compile(model.forward, fullgraph=True, dynamic=False)
    got = model.generate(words.to(DEV), max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(got.cpu(), expected)


# the cache of one step is what the next one gets, and gives what the whole sequence gives
def test_the_cache_of_keys_and_values() -> None:
    model = gpt2().to(DEV).eval()
    words = torch.arange(8, device=DEV)[None]
    with torch.no_grad():
        whole = model(words).logits
        first = model(words[:, :5], use_cache=True)
        second = model(words[:, 5:], past_key_values=first.past_key_values, use_cache=True)
    assert first.past_key_values.layers[0].keys.device == torch.device(DEV)
    assert second.past_key_values.get_seq_length() == 8
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole)


# written from a device as safetensors, read straight onto another
@pytest.mark.parametrize("device_map", [DEV, {"": DEV}, torch.device(DEV), "sequential layers"])
def test_saved_models_load_onto_the_device(device_map: Any, tmp_path: Path) -> None:
    model = gpt2().to("openreg:0").eval()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    if device_map == "sequential layers":
        device_map = {"transformer.wte": 0, "transformer.wpe": 0, "transformer.drop": 0, "transformer.h.0": 0}
        device_map |= {"transformer.h.1": 1, "transformer.ln_f": 1, "lm_head": 0}
        device_map = {name: f"openreg:{index}" for name, index in device_map.items()}
        spread = {torch.device("openreg:0"), torch.device(DEV)}
    else:
        spread = {torch.device(DEV)}
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path, device_map=device_map).eval()
    assert {p.device for p in loaded.parameters()} == spread
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    for a, b in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    words = torch.arange(6)[None]
    with torch.no_grad():
        got = loaded(words.to(loaded.transformer.wte.weight.device)).logits
        assert torch.equal(got.cpu(), model(words.to("openreg:0")).logits.cpu())


# each attention that Transformers chooses among, and half precision
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_equals_the_cpu(attention: str, dtype: torch.dtype) -> None:
    model = bert(attn_implementation=attention).to(dtype).eval()
    words = torch.arange(20).reshape(2, 10)
    mask = torch.tensor([[1] * 10, [1] * 6 + [0] * 4])
    with torch.no_grad():
        expected = model(words, attention_mask=mask).logits
        got = model.to(DEV)(words.to(DEV), attention_mask=mask.to(DEV)).logits
    assert got.dtype == dtype
    torch.testing.assert_close(got.cpu(), expected)


# a pipeline takes the device by name, and tells it
def test_pipelines_run_on_the_device() -> None:
    made = pipeline("text-generation", model=gpt2().eval(), tokenizer=_tokenizer(), device=DEV)
    assert made.device == torch.device(DEV)
    assert next(made.model.parameters()).device == torch.device(DEV)
    text = made("1 2 3", max_new_tokens=4, do_sample=False)[0]["generated_text"]
    reference = pipeline("text-generation", model=gpt2().eval(), tokenizer=_tokenizer(), device="cpu")
    assert text == reference("1 2 3", max_new_tokens=4, do_sample=False)[0]["generated_text"]


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({str(index): index for index in range(WORDS)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=str(WORDS - 1), eos_token=str(WORDS - 1))
