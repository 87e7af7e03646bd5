# SPDX-License-Identifier: BSD-3-Clause
"""Trains on handwritten digits in four processes of two agents, one of which is killed, and goes on in two.

`launch` starts two agents of torchrun on this machine, with two processes each, as on two machines. The model is
sharded over the four with FSDP2, and each epoch ends with a distributed checkpoint. In the middle of an epoch a process
is killed: the agents start all four again, which go on from the last checkpoint. Then two processes take the checkpoint
of the four and train the rest. Each process works on its share of every batch, so the losses must be those of one
process on the CPU that nothing interrupts.

    python examples/train_elastic.py [--output demo-output/elastic]

The part that trains, `work`, names no device and no backend.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BATCH = 64
EPOCHS_OF_FOUR = 4  # processes
EPOCHS = 6
KILLED_IN = 2  # the epoch, counted from 0, that is cut short
TOLERANCE = 1e-3  # of an epoch's loss: the processes sum gradients in another order


def make_model() -> nn.Sequential:
    """A small convolutional network; the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def batches(epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The images, of shape (64, 1, 8, 8), and labels of an epoch, in the epoch's order; the same in each process."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    return [(images[part], labels[part]) for part in order.split(BATCH) if len(part) == BATCH]


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, epoch: int, killed: Path | None = None
) -> float:
    """Trains on this process's share of each batch.

    Args:
        model: Sharded, or whole in the only process.
        optimizer: The optimizer of its parameters.
        device: The device of its parameters.
        epoch: Number of the epoch, from 0.
        killed: The last process kills itself in the middle, unless this file exists, and makes it.

    Returns:
        The mean loss of all shares.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    total = torch.zeros((), device=device)
    for number, (images, labels) in enumerate(batches(epoch)):
        if killed is not None and rank == world - 1 and number == 10 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = F.cross_entropy(model(images[rank::world].to(device)), labels[rank::world].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    if dist.is_initialized():
        dist.all_reduce(total, dist.ReduceOp.AVG)
    return total.item() / len(batches(epoch))


def work(output: Path, epochs: int) -> None:
    """What each process runs: goes on from the last checkpoint there is, up to `epochs`."""
    dist.init_process_group()
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    device = torch.device(accelerator.type, torch.accelerator.current_device_index())
    model = make_model().to(device)
    mesh = init_device_mesh(accelerator.type, (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    saved = sorted(output.glob("epoch-*/.metadata"))  # written last
    first = 0
    if saved:
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=saved[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        first = int(saved[-1].parent.name.split("-")[1]) + 1
    dist.barrier()
    for epoch in range(first, epochs):
        loss = train_epoch(model, optimizer, device, epoch, output / "killed" if epoch == KILLED_IN else None)
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=output / f"epoch-{epoch}")
        if dist.get_rank() == 0:
            entry = {
                "epoch": epoch,
                "loss": loss,
                "processes": dist.get_world_size(),
                "device": device.type,
            }
            with (output / "epochs.jsonl").open("a") as log:
                log.write(json.dumps(entry) + "\n")
    dist.destroy_process_group()


def run_agents(count: int, output: Path, epochs: int) -> None:
    """Runs `count` agents of torchrun with two processes each, which meet at a free port; exits if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}", "--nproc-per-node=2"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=digits", "--local-addr=127.0.0.1"),
        *("--max-restarts=5", "--monitor-interval=0.2", __file__, "work", f"--output={output}", f"--epochs={epochs}"),
    ]
    # A store for each start of the processes. In the agents' own one, keys have the number of starts that an agent has
    # counted, which is another where one agent has seen its process fail and the other has not: they would never meet.
    environment = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} | os.environ
    agents = [
        subprocess.Popen(command, env=environment, stderr=(output / f"agent-{count}-{number}.log").open("w"))
        for number in range(count)
    ]
    statuses = [agent.wait() for agent in agents]
    if any(statuses):
        for number in range(count):
            print((output / f"agent-{count}-{number}.log").read_text()[-3000:], file=sys.stderr)
        sys.exit(f"agents ended with {statuses}")


def launch(output: Path) -> None:
    """Runs the whole story, and compares its losses with those of one process on the CPU."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    print(f"four processes of two agents; one is killed in epoch {KILLED_IN}", flush=True)
    run_agents(2, output, EPOCHS_OF_FOUR)
    print("two processes go on from the checkpoint of the four", flush=True)
    run_agents(1, output, EPOCHS)

    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    expected = [train_epoch(model, optimizer, torch.device("cpu"), epoch) for epoch in range(EPOCHS)]
    entries = [json.loads(line) for line in (output / "epochs.jsonl").read_text().splitlines()]
    print("epoch    loss  one process  processes")
    for entry, reference in zip(entries, expected, strict=False):
        print(f"{entry['epoch']:>5} {entry['loss']:>7.4f} {reference:>12.4f} {entry['processes']:>10}")
    problems = []
    if [entry["epoch"] for entry in entries] != list(range(EPOCHS)):
        problems.append("epochs are missing, or came twice")
    elif any(abs(entry["loss"] - reference) > TOLERANCE for entry, reference in zip(entries, expected, strict=True)):
        problems.append("the losses are not those of one process")
    if [entry["processes"] for entry in entries] != [4] * EPOCHS_OF_FOUR + [2] * (EPOCHS - EPOCHS_OF_FOUR):
        problems.append("not as many processes as were started")
    if not (output / "killed").exists():
        problems.append("no process was killed")
    if any(entry["device"] == "cpu" for entry in entries):
        problems.append("trained on the CPU")
    if problems:
        sys.exit("train_elastic: " + "; ".join(problems))
    print(f"nothing was lost but the steps since the last checkpoint (device: {entries[0]['device']})")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Sharded training that survives a killed process.")
    parser.add_argument("command", choices=["launch", "work"], nargs="?", default="launch")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output/elastic"), help="folder of checkpoints and logs"
    )
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of work: number of epochs in all")
    options = parser.parse_args()
    if options.command == "work":
        work(options.output, options.epochs)
    else:
        launch(options.output)


if __name__ == "__main__":
    main()
