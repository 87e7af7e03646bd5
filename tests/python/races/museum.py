# SPDX-License-Identifier: BSD-3-Clause
"""Real races of 2025 and 2026, each as a small program: what went wrong in a library, and what its mend did.

The programs are written from what the public reports say happened, which each docstring names. ``fixed`` is whether the
mend is there. The first line of a race is the one that the report blames.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

DEVICE = "openreg"
SIZE = 5000
MUSEUM: dict[Callable[[bool], None], str] = {}  # and the kind of its race


def _of(kind: str) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    def add(run: Callable[[bool], None]) -> Callable[[bool], None]:
        MUSEUM[run] = kind
        return run

    return add


def _main() -> torch.openreg.Stream:
    return torch.openreg.current_stream()


# ------------------------------------------------------------------------------------- memory that went back too early


@_of("reuse")
def stashed_memory_is_resized_away(fixed: bool) -> None:
    """torchrec#4231: embeddings are copied to the host on a stream of their own, and their storage is resized to nothing.

    The allocator gives the memory to the next tensor of the main stream while the copy still reads it: NaN in the stash.
    """
    to_host = torch.openreg.Stream()
    stash = torch.empty(SIZE, pin_memory=True)
    weights = torch.ones(SIZE, device=DEVICE)
    to_host.wait_stream(_main())
    with torch.openreg.stream(to_host):
        stash.copy_(weights, non_blocking=True)
    if fixed:
        weights.record_stream(to_host)
    weights.untyped_storage().resize_(0)
    torch.zeros(SIZE, device=DEVICE)
    torch.openreg.synchronize()


@_of("reuse")
def reduced_gradient_is_offloaded_by_another_stream(fixed: bool) -> None:
    """PyTorch#180665: in hybrid sharding the reduced gradient belongs to the stream of reduce-scatter, and the stream of
    all-reduce copies it to the host. It is freed when the function returns: the next reduce-scatter writes into it."""
    reduce_scatter, all_reduce = torch.openreg.Stream(), torch.openreg.Stream()
    gradients = [torch.empty(SIZE, pin_memory=True) for _ in range(2)]
    kept = []
    for gradient in gradients:
        with torch.openreg.stream(reduce_scatter):
            reduced = torch.ones(SIZE, device=DEVICE)
        all_reduce.wait_stream(reduce_scatter)
        with torch.openreg.stream(all_reduce):
            gradient.copy_(reduced, non_blocking=True)
        if fixed:
            kept.append(reduced)  # until backward() has ended
        del reduced
    all_reduce.synchronize()


@_of("reuse")
def weights_are_freed_while_they_compute(fixed: bool) -> None:
    """diffusers#14657: the hook behind a layer gives its weights back to the stream that loads the next layer's, while the
    computing stream may still read them. The path to host memory waited for that, the one to disk didn't."""
    onload = torch.openreg.Stream()
    x = torch.ones(SIZE, device=DEVICE)
    for _ in range(2):
        with torch.openreg.stream(onload):
            weights = torch.ones(SIZE, pin_memory=True).to(DEVICE, non_blocking=True)
        _main().wait_stream(onload)
        x = x * weights
        if fixed:
            _main().synchronize()
        del weights
    torch.openreg.synchronize()


@_of("reuse")
def recorded_for_the_stream_that_loads(fixed: bool) -> None:
    """diffusers#12721: record_stream(current_stream()) stands inside of `with stream(onload)`, so that it names the stream
    that loads the weights, which owns them anyway, and not the one that computes."""
    onload = torch.openreg.Stream()
    x, computes = torch.ones(SIZE, device=DEVICE), _main()
    for _ in range(2):
        with torch.openreg.stream(onload):
            weights = torch.ones(SIZE, pin_memory=True).to(DEVICE, non_blocking=True)
            weights.record_stream(computes if fixed else torch.openreg.current_stream())
        computes.wait_stream(onload)
        x = x * weights
        del weights
    torch.openreg.synchronize()


@_of("reuse")
def handed_over_with_an_event_alone(fixed: bool) -> None:
    """TensorRT-LLM#15265: keys and scales are made on a side stream and used on another. Events order the work, but the
    allocator knows nothing of the second stream: with little memory left the next allocation takes the block."""
    aux, indexer = torch.openreg.Stream(), torch.openreg.Stream()
    for _ in range(2):
        with torch.openreg.stream(aux):
            scale = torch.ones(SIZE, device=DEVICE)
            made = aux.record_event()
        indexer.wait_event(made)
        with torch.openreg.stream(indexer):
            scale.sum()
        if fixed:
            scale.record_stream(indexer)
        del scale


@_of("reuse")
def looked_up_ahead(fixed: bool) -> None:
    """torchrec#2598: embeddings are looked up on a stream of their own while the step before runs backward, and are freed
    when the main stream has been given its work with them, not when it has done it."""
    lookup = torch.openreg.Stream()
    table = torch.ones(100, 50, device=DEVICE)
    rows = torch.arange(100, device=DEVICE)
    lookup.wait_stream(_main())
    for _ in range(2):
        with torch.openreg.stream(lookup):
            embeddings = table[rows]
        _main().wait_stream(lookup)
        if fixed:
            embeddings.record_stream(_main())
        embeddings.sum()
        del embeddings


# ------------------------------------------------------------------------------------------------ streams that don't wait


@_of("read-write")
def default_stream_does_not_wait_for_the_transfer(fixed: bool) -> None:
    """diffusers#13502: a group's weights are loaded on the transfer stream, and the layer's forward reads them at once."""
    transfer = torch.openreg.Stream()
    host = torch.ones(SIZE, pin_memory=True)
    weights = torch.zeros(SIZE, device=DEVICE)
    transfer.wait_stream(_main())
    with torch.openreg.stream(transfer):
        weights.copy_(host, non_blocking=True)
    if fixed:
        _main().wait_stream(transfer)
    weights.sum()
    torch.openreg.synchronize()


@_of("read-write")
def prefetch_and_distribution_share_a_cache(fixed: bool) -> None:
    """torchrec#4191: the prefetch stream fills a cache of embeddings that the stream of the next batch's distribution
    reads; each waits for the main stream, and neither for the other."""
    prefetch, distribute = torch.openreg.Stream(), torch.openreg.Stream()
    cache = torch.zeros(SIZE, device=DEVICE)
    prefetch.wait_stream(_main())
    distribute.wait_stream(_main())
    with torch.openreg.stream(prefetch):
        cache.add_(1)
    if fixed:
        distribute.wait_stream(prefetch)
    with torch.openreg.stream(distribute):
        cache.sum()


@_of("read-write")
def forward_does_not_wait_for_the_prefetch(fixed: bool) -> None:
    """torchrec#3306: the pipelined forward waits for the stream of the input's distribution, and not for that which
    prefetched the embeddings."""
    distribute, prefetch = torch.openreg.Stream(), torch.openreg.Stream()
    inputs, embeddings = torch.zeros(SIZE, device=DEVICE), torch.zeros(SIZE, device=DEVICE)
    distribute.wait_stream(_main())
    with torch.openreg.stream(distribute):
        inputs.fill_(1)
    prefetch.wait_stream(distribute)
    with torch.openreg.stream(prefetch):
        embeddings.copy_(inputs)
    _main().wait_stream(prefetch if fixed else distribute)
    embeddings.sum()


@_of("read-write")
def hook_scales_on_a_stream_of_its_own(fixed: bool) -> None:
    """Megatron-LM#3670: the node that accumulates gradients was made on a side stream, so that its hook runs there. It
    scales the bucket, and the stream of communication, which waits for the main stream alone, reduces it meanwhile."""
    built_on, communication = torch.openreg.Stream(), torch.openreg.Stream()
    bucket = torch.ones(SIZE, device=DEVICE)
    reduced = torch.empty(SIZE // 2, device=DEVICE)
    built_on.wait_stream(_main())
    with torch.openreg.stream(built_on):
        bucket.mul_(0.5)
    communication.wait_stream(built_on if fixed else _main())
    with torch.openreg.stream(communication):
        reduced.copy_(bucket[: SIZE // 2])


@_of("read-write")
def one_block_ahead_in_the_same_buffer(fixed: bool) -> None:
    """Megatron-LM#6202: parameters are gathered one block ahead into a buffer that the block before may still read."""
    gather = torch.openreg.Stream()
    buffer, shard = torch.zeros(SIZE, device=DEVICE), torch.ones(SIZE, device=DEVICE)
    gather.wait_stream(_main())
    for _ in range(2):
        with torch.openreg.stream(gather):
            buffer.copy_(shard)
        _main().wait_stream(gather)
        buffer.sum()
        if fixed:
            gather.wait_stream(_main())


@_of("read-write")
def next_layer_in_the_buffer_that_is_copied_from(fixed: bool) -> None:
    """vLLM#32881: a thread receives the next layer's experts into a buffer as soon as the main thread has *given* the copy
    out of it to its stream. The mend: an event behind the copy, which the thread's stream waits for."""
    receives = torch.openreg.Stream()
    buffer, weights = torch.zeros(SIZE, device=DEVICE), torch.zeros(SIZE, device=DEVICE)
    receives.wait_stream(_main())
    weights.copy_(buffer)
    copied = _main().record_event()

    def receive() -> None:
        if fixed:
            receives.wait_event(copied)
        with torch.openreg.stream(receives):
            buffer.fill_(2)

    thread = threading.Thread(target=receive)
    thread.start()
    thread.join()


# -------------------------------------------------------------------------------------------------- the host is too early


@_of("host")
def hook_reads_a_gradient_on_its_way(fixed: bool) -> None:
    """PyTorch#180666: a hook behind a gradient that is offloaded to pinned memory runs before the copy has ended, and the
    optimizer in it steps with the bytes of the step before."""
    all_reduce = torch.openreg.Stream()
    gradient = torch.ones(SIZE, device=DEVICE)
    parameter = torch.zeros(SIZE)
    all_reduce.wait_stream(_main())
    with torch.openreg.stream(all_reduce):
        offloaded = gradient.to("cpu", non_blocking=True)
        gradient.record_stream(all_reduce)
    if fixed:
        all_reduce.synchronize()
    parameter.add_(offloaded, alpha=-0.1)
    torch.openreg.synchronize()


@_of("host")
def checkpoint_is_written_before_it_is_there(fixed: bool) -> None:
    """Megatron-LM#833: a checkpoint's tensors are copied to the host without waiting, and written to the file at once."""
    state = [torch.full((SIZE,), float(number), device=DEVICE) for number in range(3)]
    on_host = [tensor.to("cpu", non_blocking=True) for tensor in state]
    if fixed:
        torch.openreg.synchronize()
    torch.cat(on_host)
    torch.openreg.synchronize()
