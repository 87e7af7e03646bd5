/* SPDX-License-Identifier: BSD-3-Clause */
/* internal_api.h: marks what the libraries that are built and shipped with libopenreg.so use of its rooms. Internal:
 * libopenreg.map puts these into a version of their own, which promises nothing. */
#ifndef OPENREG_SRC_INTERNAL_API_H
#define OPENREG_SRC_INTERNAL_API_H

#define OPENREG_INTERNAL __attribute__((visibility("default")))

#endif
