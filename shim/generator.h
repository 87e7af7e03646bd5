// Random number generators of openreg devices.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>

#include "shim/export.h"

namespace c10::openreg {

// A generator of device openreg:i that holds a CPU generator: for one seed it gives the CPU's numbers, and its state is
// the CPU generator's state, a ByteTensor on the CPU. Kernels that run on the CPU draw from the inner generator. Where
// PyTorch's kernels for GPUs run (operators/gpu_kernels.h), they draw from a generator of that GPU, seeded alike, and the
// state and the offset are that one's.
//
// Threads: PyTorch's callers lock mutex_ of this generator; each function here also locks the inner generator's, which
// is what a drawing kernel holds.
class TORCH_OPENREG_API OpenRegGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit OpenRegGeneratorImpl(DeviceIndex device); // seeded with c10::default_rng_seed_val

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override; // a new, unpredictable seed, which is returned
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // Of a GPU's generator; else refused with c10::NotImplementedError: a Mersenne Twister has no offset.
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;

  const at::Generator& inner() const {
    return inner_;
  }

  // The generator of the GPU, made when first asked for: PyTorch's default one where this is a device's default
  // generator, because some kernels draw from that whatever they are given. For a device with has_gpu_kernels().
  at::Generator gpu() const;
  void be_default() {
    is_default_ = true;
  }

 private:
  OpenRegGeneratorImpl(DeviceIndex device, at::Generator inner);
  OpenRegGeneratorImpl* clone_impl() const override;
  at::Generator existing_gpu() const; // undefined before it is made
  at::Generator drawn_from() const;   // by the kernels of the device

  at::Generator inner_;
  bool is_default_ = false;
  mutable std::mutex gpu_lock_; // guards gpu_
  mutable at::Generator gpu_;
};

// The CPU generator inside `generator`; `generator` itself if it is a CPU generator. Throws for one of another device.
TORCH_OPENREG_API at::Generator inner_cpu_generator(const at::Generator& generator);

// The generator of the GPU that is openreg's device, for one of a device with has_gpu_kernels(); else `generator` itself.
at::Generator inner_gpu_generator(const at::Generator& generator);

// The default generator of a device (-1: the current one), created on first use with an unpredictable seed. The
// reference stays valid until the process ends. Throws for an index out of range.
TORCH_OPENREG_API const at::Generator& default_generator(DeviceIndex device);

// A new generator of a device (-1: the current one).
TORCH_OPENREG_API at::Generator make_generator(DeviceIndex device);

} // namespace c10::openreg
