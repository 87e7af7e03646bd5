/* SPDX-License-Identifier: BSD-3-Clause */
// Descriptors of collectives for a driver's library (openreg/communicators.h): types, reductions, counts.
#pragma once

#include <ATen/core/Tensor.h>
#include <openreg/communicators.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>

namespace c10::openreg {

// Of tensors that lie in a row, one of which may be undefined. `kind` is OPENREG_COLLECTIVE_*; `peer` the root or the peer.

// What moves bytes, `bytes` of them as the kind counts them. Parts a copy-on-write `to`.
openreg_collective moved(int32_t kind, const at::Tensor& from, const at::Tensor& to, uint64_t bytes, int peer = 0);

// What reduces, `count` elements of from's type. Throws c10::NotImplementedError for a reduction that libraries lack, and
// c10::TypeError for a type that they can't reduce so. bool's SUM is "or" and its PRODUCT "and"; a complex number is two.
openreg_collective reduced(
    int32_t kind, const at::Tensor& from, const at::Tensor& to, int64_t count, const c10d::ReduceOp& op, int root = 0);

} // namespace c10::openreg
