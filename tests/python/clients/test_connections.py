# SPDX-License-Identifier: BSD-3-Clause
"""``OPENREG_CONTRIB`` connects libraries when they are imported, whichever imports torch first."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

ALL = """
import torchvision_operators
{first}
import accelerate, sentence_transformers, transformers
from sentence_transformers.util import get_device_name
from tokenizers import Tokenizer, models
config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
model = transformers.GPT2LMHeadModel(config)
model.save_pretrained("model")
places = dict.fromkeys(["transformer.wte", "transformer.wpe", "transformer.drop", "lm_head"], 1)
places |= {{"transformer.h": 0, "transformer.ln_f": 0}}
spread = transformers.GPT2LMHeadModel.from_pretrained("model", device_map=places)
print(accelerate.Accelerator().device, transformers.TrainingArguments("out").device, get_device_name())
words = Tokenizer(models.WordLevel({{"0": 0}}, unk_token="0"))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0")
print(transformers.pipeline("text-generation", spread, tokenizer=tokenizer).device)
"""


# nothing in the program names openreg; a map of layers is where a pipeline's first layer is
@pytest.mark.parametrize("first", [pytest.param("import torch", marks=pytest.mark.long), "import transformers"])
def test_libraries_take_the_device(script: Any, first: str) -> None:
    pytest.importorskip("sentence_transformers")
    done = script(ALL.format(first=first), OPENREG_CONTRIB="1")
    lines = done.stdout.splitlines()[-2:]  # behind DeepSpeed's own, if that is installed
    assert lines == ["openreg:0 openreg:0 openreg:0", "openreg:1"]


FILES = """
import torchvision_operators
import torch
from safetensors.torch import load_file, save_file
save_file({"a": torch.ones(3)}, "file")
print(*(load_file("file", device=device)["a"].device for device in ("cuda:1", "openreg:1", str(torch.device("cuda:0")))))
"""


# a program for CUDA reads files to the device that it names
def test_files_of_programs_for_cuda(script: Any) -> None:
    pytest.importorskip("safetensors")
    assert script(FILES, OPENREG_AS_CUDA="1").stdout == "cuda:1 cuda:1 cuda:0\n"


SPECIFIED = """
import torchvision_operators
from transformers import testing_utils as tests
tests.backend_manual_seed(tests.torch_device, 3)
tests.backend_empty_cache(tests.torch_device)
print(tests.torch_device, tests.backend_device_count(tests.torch_device))
"""


# the file of the documentation's page
@pytest.mark.long
def test_transformers_tests_take_the_device(script: Any, tmp_path: Path, root: Path) -> None:
    pytest.importorskip("transformers")
    page = (root / "docs/testing-with-openreg.md").read_text()
    (tmp_path / "openreg_spec.py").write_text(page[page.index("import torch\nDEVICE_NAME") :].partition("```")[0])
    done = script(SPECIFIED, TRANSFORMERS_TEST_DEVICE_SPEC="openreg_spec.py", OPENREG_SIM_DEVICES="3")
    assert done.stdout == "openreg 3\n"


LAUNCHED = """
import json, os, sys
import torchvision_operators
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(4, 2))
accelerator.save_state("state")
accelerator.wait_for_everyone()
accelerator.load_state("state")
rank = accelerator.process_index
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump([accelerator.num_processes, str(accelerator.device)], file)
"""


# as many processes as were asked for, each on a device of its own; states are read there
@pytest.mark.parametrize(
    "setting",
    [{"OPENREG_CONTRIB": "accelerate"}, pytest.param({"OPENREG_AS_CUDA": "1"}, marks=pytest.mark.long)],
    ids=str,
)
def test_accelerate_launch_starts_all_processes(script: Any, tmp_path: Path, setting: dict[str, str]) -> None:
    pytest.importorskip("accelerate")
    command = "import sys, torchvision_operators; from accelerate.commands import launch; launch.main()"
    options = ("--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    script(LAUNCHED, str(tmp_path / "report"), launcher=("-c", command, "--main_process_port=0", *options), **setting)
    found = [json.loads((tmp_path / f"report.{rank}").read_text()) for rank in (0, 1)]
    device = "cuda" if "OPENREG_AS_CUDA" in setting else "openreg"
    assert found == [[2, f"{device}:0"], [2, f"{device}:1"]]


# names are read without regard to case, and one that is unknown is warned of
def test_the_variable(caplog: pytest.LogCaptureFixture) -> None:
    from torch_openreg.contrib import _on_import

    assert _on_import.wanted(None) == _on_import.wanted("0") == set()
    assert _on_import.wanted("1") > set(_on_import.LIBRARIES)
    assert _on_import.wanted(" PEFT, lightning") == {"peft", "lightning"}
    assert _on_import.wanted("", as_cuda=True) == {"deepspeed", "safetensors"}
    with caplog.at_level(logging.WARNING, "torch_openreg"):
        assert _on_import.wanted("keras") == set()
    assert "'keras'" in caplog.text


# without the variable nothing stands between Python and the libraries
def test_nothing_is_watched_without_the_variable(python: Any) -> None:
    code = (
        "import sys, torch\nprint([type(f).__module__ for f in sys.meta_path if 'torch_openreg' in type(f).__module__])"
    )
    assert "_on_import" not in python(code).stdout
    assert "_on_import" in python(code, OPENREG_CONTRIB="1").stdout
