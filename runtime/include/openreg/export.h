/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/export.h: how public functions are declared. Valid C11 and C++17. */
#ifndef OPENREG_EXPORT_H
#define OPENREG_EXPORT_H

#if defined(__GNUC__)
#define OPENREG_API __attribute__((visibility("default")))      /* a function of libopenreg */
#define OPENREG_WARN_UNUSED __attribute__((warn_unused_result)) /* ignoring its status is a bug */
#define OPENREG_HELPER static inline __attribute__((unused))    /* defined in the header only */
#else
#define OPENREG_API
#define OPENREG_WARN_UNUSED
#define OPENREG_HELPER static inline
#endif

#endif /* OPENREG_EXPORT_H */
