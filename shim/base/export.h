/* SPDX-License-Identifier: BSD-3-Clause */
// What libtorch_openreg.so exports: the shim is compiled with hidden visibility.
#pragma once

#define TORCH_OPENREG_API __attribute__((visibility("default")))
