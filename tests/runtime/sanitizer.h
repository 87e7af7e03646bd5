/* SPDX-License-Identifier: BSD-3-Clause */
// sanitizer.h: OPENREG_TEST_SANITIZER is 1 in a build with the address or thread sanitizer, whose handlers end the process
// instead of the default action, and whose address space is smaller.
#ifndef OPENREG_TESTS_SANITIZER_H
#define OPENREG_TESTS_SANITIZER_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OPENREG_TEST_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OPENREG_TEST_SANITIZER 1
#endif
#endif
#ifndef OPENREG_TEST_SANITIZER
#define OPENREG_TEST_SANITIZER 0
#endif

#endif
