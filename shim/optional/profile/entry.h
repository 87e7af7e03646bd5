/* SPDX-License-Identifier: BSD-3-Clause */
// The entry of libtorch_openreg_profile.so. For a PyTorch that takes rows from backends, after Kineto's headers.
#pragma once

#include <IActivityProfiler.h>

#include <memory>

#include "shim/base/export.h"

extern "C" TORCH_OPENREG_API void openreg_make_profiler(std::unique_ptr<libkineto::IActivityProfiler>* made);
