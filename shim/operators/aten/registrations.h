/* SPDX-License-Identifier: BSD-3-Clause */
// Each file of this folder registers its kernels in one function. Called once, by shim/registration, which has the order.
#pragma once

namespace c10::openreg {

void register_attention();
void register_autocast();
void register_concatenation();
void register_copies();
void register_dispatch_stubs();
void register_dropout();
void register_factories();
void register_fills();
void register_fourier();
void register_lstm();
void register_recurrent_cells();
void register_tensor_properties();
void register_views();

} // namespace c10::openreg
