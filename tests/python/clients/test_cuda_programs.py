# SPDX-License-Identifier: BSD-3-Clause
"""Other libraries' programs for CUDA, unchanged, on simulated devices: Transformers' Trainer, and Accelerate's own tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")
AS_CUDA = ("-m", "torch_openreg.contrib.cuda_to_openreg")

TRAINER = """
import json, sys
import torchvision_operators
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        words = torch.arange(index, index + 6)
        return {"input_ids": words, "labels": words}

path, *settings = sys.argv[1:]
special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, **special, **off))
arguments = TrainingArguments(output_dir=path + ".out", max_steps=3, logging_steps=1, report_to=[], disable_tqdm=True,
                              save_strategy="no", **json.loads(settings[0]))
trainer = Trainer(model, arguments, train_dataset=Data())
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
peaks = [torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())]
with open(path, "w") as file:
    json.dump([losses, arguments.n_gpu, type(trainer.model_wrapped).__name__, peaks], file)
"""


# two devices in one process are nn.DataParallel to the Trainer; the losses are the CPU's on the same batches
@pytest.mark.long
def test_trainer_on_two_devices(script: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    report = tmp_path / "report"
    script(TRAINER, str(report), '{"per_device_train_batch_size": 4}', launcher=AS_CUDA, OPENREG_SIM_DEVICES="2")
    losses, count, model, peaks = json.loads(report.read_text())
    assert (count, model) == (2, "DataParallel")
    assert min(peaks) > 0
    script(TRAINER, str(report), '{"per_device_train_batch_size": 8, "use_cpu": true}')
    assert losses == pytest.approx(json.loads(report.read_text())[0], rel=1e-4)


# The others, by `make client-suites`.
OWN = ["test_ops"]
if os.environ.get("OPENREG_TEST_CLIENT_SUITES") == "1":
    OWN += ["test_sync", "test_script", "test_merge_weights"]


# Accelerate's tests of what several GPUs are to do, as pip ships them: a process for each device, over gloo
@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_accelerate_own_tests(script: Any, name: str) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *AS_CUDA)
    program = (
        "import runpy, sys, torchvision_operators; runpy.run_module(sys.argv[1], run_name='__main__', alter_sys=True)"
    )
    connections = ("-m", "torch_openreg.contrib.accelerate")
    script(
        program, f"accelerate.test_utils.scripts.{name}", launcher=(*launcher, *connections), OPENREG_SIM_DEVICES="2"
    )
