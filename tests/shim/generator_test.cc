// SPDX-License-Identifier: BSD-3-Clause
// Generators: the CPU's numbers for one seed, states that travel, one default generator a device.
#include "shim/device/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <thread>
#include <vector>

#include "tests/shim/support.h"

namespace {

using namespace openreg_test;
namespace openreg = c10::openreg;

class GeneratorTest : public ShimTest {
 protected:
  static std::vector<uint64_t> draw(const at::Generator& generator) {
    auto* engine = openreg::inner_cpu_generator(generator).get<at::CPUGeneratorImpl>();
    std::vector<uint64_t> numbers(100);
    for (uint64_t& number : numbers) {
      number = engine->random64();
    }
    return numbers;
  }
};

// A state taken is a state that can be set, in another generator too; it is a CPU tensor of bytes.
TEST_F(GeneratorTest, StateRoundTrip) {
  at::Generator from = openreg::make_generator(0);
  from.set_current_seed(7);
  (void)draw(from);
  const at::Tensor state = from.get_state();
  EXPECT_TRUE(state.is_cpu());
  EXPECT_EQ(state.scalar_type(), at::kByte);
  const std::vector<uint64_t> next = draw(from);
  at::Generator to = openreg::make_generator(1);
  to.set_state(state);
  EXPECT_EQ(draw(to), next);
  at::Generator cpu = at::detail::createCPUGenerator();
  cpu.set_state(state);
  EXPECT_EQ(draw(cpu), next);
}

// One default generator a device, the same for every caller, wherever it is asked for.
TEST_F(GeneratorTest, DefaultGenerators) {
  const at::Generator& zero = openreg::default_generator(0);
  const at::Generator& one = openreg::default_generator(1);
  EXPECT_NE(zero, one);
  EXPECT_EQ(one.device(), device(1));
  EXPECT_EQ(&openreg::default_generator(1), &one);
  EXPECT_EQ(at::globalContext().defaultGenerator(device(1)), one);
  EXPECT_EQ(at::globalContext().defaultGenerator(device(-1)), zero);
  {
    const c10::DeviceGuard on(device(1));
    EXPECT_EQ(openreg::default_generator(-1), one);
    EXPECT_EQ(at::detail::getPrivateUse1Hooks().getNewGenerator().device(), device(1));
  }
  std::vector<std::thread> threads;
  std::vector<const at::Generator*> seen(4);
  for (size_t i = 0; i < seen.size(); ++i) {
    threads.emplace_back([&seen, i] { seen[i] = &openreg::default_generator(1); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(seen, std::vector<const at::Generator*>(4, &one));
}

// acceptance 4.7, 4.12: no generator for a device that is none.
TEST_F(GeneratorTest, AnIndexOutOfRangeIsRefused) {
  for (const int index : {2, 126, -2, -56}) {
    EXPECT_HAS(error_of([&] { openreg::default_generator(static_cast<c10::DeviceIndex>(index)); }),
               "The device index is out of range. It must be in [0, 2), but got " + std::to_string(index) + ".");
    EXPECT_THROW(openreg::make_generator(static_cast<c10::DeviceIndex>(index)), c10::Error);
  }
}

}  // namespace
