/* SPDX-License-Identifier: BSD-3-Clause */
// The entry of libtorch_openreg_graph.so, for a PyTorch that has graphs of accelerators (since 2.13).
#pragma once

#include <torch/headeronly/version.h>

#include "shim/base/export.h"

// The version's header is for ccache, as in registration/parts.cpp.
#if __has_include(<ATen/core/GraphImplInterface.h>)
#define OPENREG_HAS_GRAPHS
#include <ATen/core/GraphImplInterface.h>

#include <memory>

extern "C" TORCH_OPENREG_API void openreg_make_graph(std::unique_ptr<at::GraphImplInterface>* made, bool keep_graph);
#endif
