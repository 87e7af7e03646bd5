// SPDX-License-Identifier: BSD-3-Clause
// The names by which the HIP driver looks up its functions, against the vendor's own library: a fake has whatever name it
// is compiled with.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#ifdef OPENREG_TEST_REAL_HIP
#include "../../../runtime/drivers/gpu/gpu_names.h"

namespace {

#define GPU_TEST_STRING(name) GPU_NAME(name),
#define GPU_TEST_VMM_STRING(name) GPU_VMM_NAME(name),
const char* const required[] = {OPENREG_GPU_FUNCTIONS(GPU_TEST_STRING)};
const char* const optional[] = {OPENREG_GPU_OPTIONAL_FUNCTIONS(GPU_TEST_STRING)};
const char* const growing[] = {OPENREG_GPU_VMM_FUNCTIONS(GPU_TEST_VMM_STRING)};

// Every function that open() requires, and those of expandable segments, are in the library that belongs to the headers;
// what it lacks is optional.
TEST(GpuNames, AreInTheVendorsLibrary) {
  const std::string soname = "libamdhip64.so." + std::to_string(HIP_VERSION_MAJOR);
  void* const library = dlopen(soname.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) GTEST_SKIP() << "HIP's headers are installed without its library: " << dlerror();
  for (const char* name : required) EXPECT_NE(dlsym(library, name), nullptr) << name;
  for (const char* name : growing) EXPECT_NE(dlsym(library, name), nullptr) << name;
  const bool has_newer = HIP_VERSION >= 50300000;
  for (const char* name : optional)
    EXPECT_EQ(dlsym(library, name) != nullptr, has_newer || std::string(name) != "hipLaunchHostFunc") << name;
}

}  // namespace
#else
TEST(GpuNames, AreInTheVendorsLibrary) { GTEST_SKIP() << "the HIP driver is not built here"; }
#endif
