/* SPDX-License-Identifier: BSD-3-Clause */
/* absent_vendor.c: stands in for a vendor's library that is not installed. */

int openreg_absent_vendor_function(void);

int
openreg_absent_vendor_function(void)
{
    return 0;
}
