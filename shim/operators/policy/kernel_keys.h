/* SPDX-License-Identifier: BSD-3-Clause */
// Dispatch keys above those of kernels.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace c10::openreg {

// What must not see the tensors that are shown to a kernel while it runs: autograd's bookkeeping (it is done, above),
// and autocast for their type (the user's tensors are not of it).
inline const c10::DispatchKeySet kAboveKernels =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

} // namespace c10::openreg
