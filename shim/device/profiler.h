/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once

namespace c10::openreg {

// Registers events of streams as what PyTorch's older profiler times a device with.
void register_profiler_stubs();

} // namespace c10::openreg
