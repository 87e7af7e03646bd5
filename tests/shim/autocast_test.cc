// SPDX-License-Identifier: BSD-3-Clause
// Autocast: operators of PyTorch's lists have a kernel under the autocast key, all others fall through it.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "tests/shim/support.h"

namespace {

using c10::DispatchKey;
using openreg_test::ShimTest;

class AutocastTest : public ShimTest {};

bool has_rule(const char* name, const char* overload = "") {
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  EXPECT_TRUE(op.has_value()) << name;
  return op.has_value() && op->hasKernelForDispatchKey(DispatchKey::AutocastPrivateUse1);
}

TEST_F(AutocastTest, RulesOfEachList) {
  EXPECT_TRUE(has_rule("aten::mm"));              // lower precision
  EXPECT_TRUE(has_rule("aten::layer_norm"));      // single precision
  EXPECT_TRUE(has_rule("aten::softmax", "int"));  // single precision result
  EXPECT_TRUE(has_rule("aten::norm", "Scalar"));  // another signature below
  EXPECT_TRUE(has_rule("aten::addcmul"));         // widest precision
  EXPECT_FALSE(has_rule("aten::add", "Tensor"));  // in no list
}

// Without the fallthrough every operator in no list would be an error under autocast.
TEST_F(AutocastTest, OtherOperatorsFallThrough) {
  EXPECT_TRUE(c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(DispatchKey::AutocastPrivateUse1));
  EXPECT_TRUE(at::autocast::is_autocast_available(c10::DeviceType::PrivateUse1));
}

}  // namespace
