/* SPDX-License-Identifier: BSD-3-Clause */
// For files that wait for a std::condition_variable, also within PyTorch's headers: the library loads with libstdc++ of gcc 11,
// as RHEL 9 has it.
//
// gcc 12 gave wait() a second version in libstdc++ (GLIBCXX_3.4.30), which differs in noexcept alone, and what is compiled with
// it asks for that one. The first is there in every libstdc++.
#pragma once

#include <condition_variable>

#if defined(__GLIBCXX__) && defined(__ELF__) && defined(__x86_64__)
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
