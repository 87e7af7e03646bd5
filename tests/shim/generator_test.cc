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

// The numbers of the CPU generator, for one seed.
TEST_F(GeneratorTest, GivesTheNumbersOfTheCpu) {
  at::Generator cpu = at::detail::createCPUGenerator(1234);
  at::Generator mine = openreg::make_generator(1);
  EXPECT_EQ(mine.device(), device(1));
  EXPECT_EQ(mine.current_seed(), c10::default_rng_seed_val);
  mine.set_current_seed(1234);
  EXPECT_EQ(mine.current_seed(), 1234u);
  const std::vector<uint64_t> numbers = draw(mine);
  EXPECT_EQ(numbers, draw(cpu));  // inner_cpu_generator() of a CPU generator is itself
  EXPECT_NE(numbers, draw(mine));
}

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

// A clone has its own state and the same device.
TEST_F(GeneratorTest, Clone) {
  at::Generator original = openreg::make_generator(1);
  original.set_current_seed(11);
  (void)draw(original);
  at::Generator clone = original.clone();
  EXPECT_EQ(clone.device(), device(1));
  EXPECT_NE(clone, original);
  const std::vector<uint64_t> numbers = draw(original);
  EXPECT_EQ(draw(clone), numbers);
}

TEST_F(GeneratorTest, SeedIsUnpredictableAndReturned) {
  at::Generator generator = openreg::make_generator(0);
  const uint64_t first = generator.seed();
  EXPECT_EQ(generator.current_seed(), first);
  EXPECT_NE(generator.seed(), first);
}

// An offset names a sequence of the seed: 0 is the CPU's, each other one is another, and set_offset() starts it anew.
TEST_F(GeneratorTest, OffsetsNameSequences) {
  at::Generator generator = openreg::make_generator(0);
  generator.set_current_seed(5);
  EXPECT_EQ(generator.get_offset(), 0u);
  const std::vector<uint64_t> first = draw(generator);
  EXPECT_EQ(generator.get_offset(), 0u);
  generator.set_offset(4);
  EXPECT_EQ(generator.get_offset(), 4u);
  EXPECT_EQ(generator.current_seed(), 5u);
  const std::vector<uint64_t> fourth = draw(generator);
  EXPECT_NE(fourth, first);
  generator.set_offset(8);
  EXPECT_NE(draw(generator), fourth);
  generator.set_offset(4);
  EXPECT_EQ(draw(generator), fourth);
  generator.set_offset(0);
  EXPECT_EQ(draw(generator), first);
}

// Seed, offset and position travel in the state and in a clone; what follows a seed starts at offset 0 again.
TEST_F(GeneratorTest, OffsetsTravel) {
  at::Generator from = openreg::make_generator(0);
  from.set_current_seed(5);
  from.set_offset(12);
  (void)draw(from);
  const at::Tensor state = from.get_state();
  const at::Generator clone = from.clone();
  at::Generator to = openreg::make_generator(1);
  to.set_state(state);
  EXPECT_EQ(to.get_offset(), 12u);
  EXPECT_EQ(to.current_seed(), 5u);
  EXPECT_EQ(clone.get_offset(), 12u);
  const std::vector<uint64_t> next = draw(from);
  EXPECT_EQ(draw(to), next);
  EXPECT_EQ(draw(clone), next);
  to.set_current_seed(6);
  EXPECT_EQ(to.get_offset(), 0u);
  EXPECT_THROW(to.set_state(state.slice(0, 1)), c10::Error);  // one byte short
  EXPECT_EQ(to.current_seed(), 6u);
}

// The graph-safe state is not a copy: who sets it draws from the same sequence.
TEST_F(GeneratorTest, GraphsafeStatesAreShared) {
  at::Generator one = openreg::make_generator(0);
  at::Generator other = openreg::make_generator(0);
  one.set_current_seed(5);
  other.graphsafe_set_state(one.graphsafe_get_state());
  const std::vector<uint64_t> first = draw(one);
  const std::vector<uint64_t> second = draw(other);
  EXPECT_NE(first, second);
  one.set_current_seed(5);
  EXPECT_EQ(draw(other), first);
  EXPECT_EQ(draw(one), second);
  EXPECT_THROW(one.graphsafe_set_state(at::detail::createCPUGenerator()), c10::Error);
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
