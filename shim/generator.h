// Random number generators of openreg devices.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <atomic>
#include <memory>

#include "shim/export.h"

namespace c10::openreg {

// A generator of device openreg:i that holds a CPU generator: for one seed it gives the CPU's numbers, and its state is
// the CPU generator's state, a ByteTensor on the CPU. Kernels that run on the CPU draw from the inner generator.
//
// A Mersenne Twister cannot jump, so an offset is not a position but names one of the sequences of a seed: 0, the one
// after seeding, is the CPU's; set_offset(n) starts sequence n. Drawing leaves the offset alone: where a sequence has
// got to is in the state. With an offset other than 0 seed and offset are appended to the state.
//
// Threads: PyTorch's callers lock mutex_ of this generator; each function here also locks the inner generator's, which
// is what a drawing kernel holds.
class TORCH_OPENREG_API OpenRegGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit OpenRegGeneratorImpl(DeviceIndex device); // seeded with c10::default_rng_seed_val

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override; // a new, unpredictable seed, which is returned
  void set_state(const c10::TensorImpl& new_state) override; // a CPU generator's too
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;

  // A generator that draws from the same sequence as this one, and its counterpart.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) override;

  at::Generator inner() const {
    return sequence_.load()->inner;
  }

 private:
  // What is drawn from. `inner`'s mutex guards the numbers too.
  struct Sequence {
    at::Generator inner;
    uint64_t seed;
    uint64_t offset;
  };

  OpenRegGeneratorImpl(DeviceIndex device, std::shared_ptr<Sequence> sequence);
  OpenRegGeneratorImpl* clone_impl() const override;

  std::atomic<std::shared_ptr<Sequence>> sequence_;
};

// The CPU generator inside `generator`; `generator` itself if it is a CPU generator. Throws for one of another device.
TORCH_OPENREG_API at::Generator inner_cpu_generator(const at::Generator& generator);

// The default generator of a device (-1: the current one), created on first use with an unpredictable seed. The
// reference stays valid until the process ends. Throws for an index out of range.
TORCH_OPENREG_API const at::Generator& default_generator(DeviceIndex device);

// A new generator of a device (-1: the current one).
TORCH_OPENREG_API at::Generator make_generator(DeviceIndex device);

} // namespace c10::openreg
