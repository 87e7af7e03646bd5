# SPDX-License-Identifier: BSD-3-Clause
"""Sentence Transformers, diffusers, PyTorch Geometric, skorch, Stable-Baselines3 and ignite, against the CPU."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

DEV = torch.device("openreg:1")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return x, (x.sum(1) > 0).long()


# embeddings, their similarities, a loss, and a saved model
def test_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers import losses, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [chr(97 + i) for i in range(26)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{one}" for one in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path)

    def made(device: str) -> Any:
        body = models.Transformer(str(tmp_path))
        pooling = models.Pooling(body.get_word_embedding_dimension())
        return library.SentenceTransformer(modules=[body, pooling], device=device)

    here, there = made("cpu").eval(), made("openreg:1").eval()
    texts = ["some words", "others", "a third one"]
    expected = here.encode(texts, convert_to_tensor=True)
    found = there.encode(texts, convert_to_tensor=True)
    assert found.device == DEV
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(there.similarity(found, found).cpu(), here.similarity(expected, expected))
    assert library.util.semantic_search(found, found, top_k=1)[2][0]["corpus_id"] == 2
    results = []
    for model in (here, there):
        inputs = [library.util.batch_to_device(model.preprocess(part), model.device) for part in (texts[:2], texts[1:])]
        loss = losses.CosineSimilarityLoss(model)(inputs, torch.tensor([1.0, 0.0], device=model.device))
        loss.backward()
        results.append((loss.item(), next(p.grad for p in model.parameters() if p.grad is not None).norm().item()))
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    there.save(str(tmp_path / "saved"))
    loaded = library.SentenceTransformer(str(tmp_path / "saved"), device="openreg:0")
    torch.testing.assert_close(loaded.encode(texts, convert_to_tensor=True).cpu(), expected)


# a pipeline as a whole, with the model on the host until it is called, in parts, and with copies on a stream
def test_diffusers(tmp_path: Path) -> None:
    library = pytest.importorskip("diffusers")

    def unet() -> Any:
        torch.manual_seed(0)
        sizes = {"sample_size": 8, "layers_per_block": 1, "block_out_channels": (8, 16), "norm_num_groups": 4}
        down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
        return library.UNet2DModel(**sizes, down_block_types=down, up_block_types=up).eval()

    def pipeline() -> Any:
        made = library.DDIMPipeline(unet(), library.DDIMScheduler(num_train_timesteps=10))
        made.set_progress_bar_config(disable=True)
        return made

    def images(made: Any, device: str = "cpu") -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(0)
        return torch.from_numpy(made(num_inference_steps=2, generator=generator, output_type="np").images)

    def in_groups(made: Any) -> None:
        made.unet.enable_group_offload(DEV, torch.device("cpu"), "leaf_level", use_stream=True)

    expected = images(pipeline())
    for prepare in (
        lambda made: made.to(DEV),
        lambda made: made.enable_model_cpu_offload(gpu_id=1),
        lambda made: made.enable_sequential_cpu_offload(device=DEV),
        in_groups,
    ):
        made = pipeline()
        prepare(made)
        assert made._execution_device == DEV
        torch.testing.assert_close(images(made), expected)
    made = pipeline().to(DEV)
    torch.testing.assert_close(images(made, "openreg:1"), expected)
    made.save_pretrained(tmp_path)
    loaded = library.DDIMPipeline.from_pretrained(tmp_path, device_map="openreg")
    loaded.set_progress_bar_config(disable=True)
    assert loaded.unet.device == torch.device("openreg:0")
    torch.testing.assert_close(images(loaded), expected)
    half = unet().to(DEV)
    half.enable_layerwise_casting(storage_dtype=torch.bfloat16, compute_dtype=torch.float32)
    assert half(torch.ones(1, 3, 8, 8, device=DEV), 1).sample.dtype == torch.float32


# layers of graphs in training, batches of graphs, and the loader that copies on a stream
def test_geometric() -> None:
    geometric = pytest.importorskip("torch_geometric")
    from torch_geometric.data import Batch, Data

    torch.manual_seed(0)
    graph = Data(x=torch.randn(30, 8), edge_index=torch.randint(0, 30, (2, 120)), y=torch.randint(0, 3, (30,)))
    for layer in (geometric.nn.GCNConv, geometric.nn.GATConv, geometric.nn.SAGEConv, geometric.nn.TransformerConv):
        losses: list[list[float]] = []
        for device in (torch.device("cpu"), DEV):
            torch.manual_seed(0)
            model, moved = layer(8, 3).to(device), graph.clone().to(device)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            losses.append([])
            for _ in range(3):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(moved.x, moved.edge_index), moved.y)
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    batch = Batch.from_data_list([graph, graph])
    expected = geometric.nn.global_mean_pool(batch.x, batch.batch)
    moved = batch.pin_memory().to(DEV, non_blocking=True)
    pooled = geometric.nn.global_mean_pool(moved.x, moved.batch)
    assert pooled.device == DEV
    torch.testing.assert_close(pooled.cpu(), expected)
    assert geometric.utils.to_dense_adj(moved.edge_index, moved.batch).shape == (2, 30, 30)


# scikit-learn's interface: the device is a string, which travels with the pickled net
def test_skorch(tmp_path: Path) -> None:
    library = pytest.importorskip("skorch")
    x, y = (part.numpy() for part in data())
    nets = []
    for device in ("cpu", "openreg:1"):
        torch.manual_seed(0)
        net = library.NeuralNetClassifier(
            nn.Linear, module__in_features=8, module__out_features=2, criterion=nn.CrossEntropyLoss, device=device
        )
        nets.append(net.set_params(max_epochs=3, lr=0.1, verbose=0).fit(x, y))
    assert nets[1].module_.weight.device == DEV
    losses = [[epoch["valid_loss"] for epoch in net.history] for net in nets]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and nets[1].score(x, y) == nets[0].score(x, y)
    expected = nets[1].predict_proba(x)
    again = pickle.loads(pickle.dumps(nets[1]))
    assert again.module_.weight.device == DEV and (again.predict_proba(x) == expected).all()
    nets[1].save_params(f_params=tmp_path / "p", f_optimizer=tmp_path / "o")
    nets[0].load_params(f_params=tmp_path / "p", f_optimizer=tmp_path / "o")
    assert nets[0].module_.weight.device.type == "cpu" and nets[0].predict_proba(x) == pytest.approx(expected)


# what draws no numbers on the device equals the CPU; what does is the same twice; saved agents load anywhere
def test_stable_baselines(tmp_path: Path) -> None:
    library = pytest.importorskip("stable_baselines3")

    def learned(kind: Any, device: str, **settings: Any) -> Any:
        return kind("MlpPolicy", "CartPole-v1", seed=0, device=device, **settings).learn(100)

    def weights(agent: Any) -> torch.Tensor:
        return nn.utils.parameters_to_vector(agent.policy.parameters()).detach().cpu()

    deep = {"learning_starts": 20, "policy_kwargs": {"net_arch": [16]}}
    here, there = learned(library.DQN, "cpu", **deep), learned(library.DQN, "openreg:1", **deep)
    assert there.policy.device == DEV
    torch.testing.assert_close(weights(there), weights(here))
    proximal = {"n_steps": 32, "batch_size": 16, "n_epochs": 2}
    there = learned(library.PPO, "openreg:1", **proximal)
    assert torch.equal(weights(there), weights(learned(library.PPO, "openreg:1", **proximal)))
    there.save(tmp_path / "agent")
    for device in ("openreg:0", "cpu"):
        loaded = library.PPO.load(tmp_path / "agent", device=device)
        assert loaded.policy.device == torch.device(device) and torch.equal(weights(loaded), weights(there))


# engines, metrics on the device, mixed precision, checkpoints
def test_ignite(tmp_path: Path) -> None:
    pytest.importorskip("ignite")
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.handlers import Checkpoint
    from ignite.metrics import Accuracy, Loss

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), 16)
    results: list[list[float]] = []
    for device in ("cpu", "openreg:1"):
        torch.manual_seed(0)
        model = nn.Linear(8, 2).to(device)
        optimizer, criterion = torch.optim.SGD(model.parameters(), 0.1), nn.CrossEntropyLoss()
        losses: list[float] = []
        trainer = create_supervised_trainer(model, optimizer, criterion, device=device)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine, to=losses: to.append(engine.state.output))
        trainer.run(loader, 2)
        metrics = {"accuracy": Accuracy(device=device), "loss": Loss(criterion, device=device)}
        evaluator = create_supervised_evaluator(model, metrics, device=device)
        evaluator.run(loader)
        results.append([*losses, evaluator.state.metrics["accuracy"], evaluator.state.metrics["loss"]])
        saved = Checkpoint({"model": model, "optimizer": optimizer}, str(tmp_path / device[:3]))
        saved(trainer)
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    before = model.weight.detach().clone()
    nn.init.zeros_(model.weight)
    Checkpoint.load_objects({"model": model, "optimizer": optimizer}, torch.load(str(saved.last_checkpoint)))
    assert torch.equal(model.weight, before)
    halved = create_supervised_trainer(model, optimizer, criterion, device=DEV, amp_mode="amp", scaler=True)
    assert halved.run(loader, 1).output == pytest.approx(results[1][-3], rel=0.2)
