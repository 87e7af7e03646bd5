/* SPDX-License-Identifier: BSD-3-Clause */
/* internal_api.h: marks internal functions that the libraries shipped with libopenreg.so use. Internal: libopenreg.map
 * exports these under a version of their own, which is not stable. */
#ifndef OPENREG_SRC_INTERNAL_API_H
#define OPENREG_SRC_INTERNAL_API_H

#define OPENREG_INTERNAL __attribute__((visibility("default")))

#endif
