/* SPDX-License-Identifier: BSD-3-Clause */
// The entry of libtorch_openreg_compile.so: a runner for one of AOTInductor's packages, made as PyTorch's registry does.
#pragma once

#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <memory>
#include <string>

#include "shim/base/export.h"

extern "C" TORCH_OPENREG_API void openreg_make_runner(
    std::unique_ptr<torch::inductor::AOTIModelContainerRunner>* made,
    const std::string& library,
    size_t models,
    const std::string& device,
    bool single_threaded);
