/* SPDX-License-Identifier: BSD-3-Clause */
// gpu_runtime.h: the runtime with a fake GPU driver that a variable names.
#ifndef OPENREG_TESTS_GPU_RUNTIME_H
#define OPENREG_TESTS_GPU_RUNTIME_H

#include "gpu_test.h"
#include "runtime_test.h"

namespace openreg_test {

class GpuRuntimeTest : public NeedsFake<RuntimeTest, ::testing::WithParamInterface<Gpu>> {
 protected:
  void SetUp() override {
    NeedsFake::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    void* const library = load(GetParam().library);
    ASSERT_NE(library, nullptr) << dlerror();
    hooks_ = hooks_of(library);
    ASSERT_NE(hooks_, nullptr);
    hooks_->reset();
    set("OPENREG_DRIVER_LIBRARIES", GetParam().prefix() + ":" + GetParam().library);
    set("OPENREG_DRIVERS", GetParam().prefix());
  }
  void TearDown() override {
    if (hooks_ == nullptr) return;
    RuntimeTest::TearDown();
    clear_gpu_variables();
    expect_nothing_left(*hooks_);
  }

  const fake_gpu_hooks* hooks_ = nullptr;
};

}  // namespace openreg_test

#endif
