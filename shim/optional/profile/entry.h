/* SPDX-License-Identifier: BSD-3-Clause */
// The entry of libtorch_openreg_profile.so, for a PyTorch that takes rows from backends.
#pragma once

#include <memory>

#include "shim/base/export.h"

namespace libkineto {
class IActivityProfiler;
}

extern "C" TORCH_OPENREG_API void openreg_make_profiler(std::unique_ptr<libkineto::IActivityProfiler>* made);
