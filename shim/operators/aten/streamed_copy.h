/* SPDX-License-Identifier: BSD-3-Clause */
// Large copies between host memory and memory of a device that the host sees, past the cache: a store that goes through
// the cache first reads what it overwrites, and puts out of the cache what was there.
#pragma once

#include <cstddef>

namespace c10::openreg {

// Whether a copy of so many bytes is faster past the cache than by PyTorch's copy kernel, which has the threads of
// at::get_num_threads().
bool is_faster_streamed(size_t size);

// As memcpy(), whole before it returns. Threads: any.
void copy_streamed(void* destination, const void* source, size_t size);

} // namespace c10::openreg
