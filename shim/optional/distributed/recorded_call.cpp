// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/recorded_call.h"

namespace c10::openreg {

void RecordedCall::begin(const char* name) {
  record_->_setAsync(); // as every backend's: the collective goes on behind it
  record_->before(name, c10::ArrayRef<const c10::IValue>(inputs_.data(), inputs_.size()));
}

} // namespace c10::openreg
