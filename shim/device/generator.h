/* SPDX-License-Identifier: BSD-3-Clause */
// Random number generators of openreg devices.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "shim/base/export.h"

namespace c10::openreg {

// A generator of device openreg:i that holds a CPU generator: for one seed it gives the CPU's numbers, and its state is
// the CPU generator's state, a ByteTensor on the CPU. Kernels that run on the CPU draw from the inner generator. Where
// PyTorch's kernels for GPUs run (operators/gpu_kernels.h), they draw from a generator of that GPU, seeded alike, and the
// state and the offset are that one's.
//
// A Mersenne Twister cannot jump, so an offset is not a position but names one of the sequences of a seed: 0, the one
// after seeding, is the CPU's; set_offset(n) starts sequence n. Drawing leaves the offset alone: where a sequence has
// got to is in the state. With an offset other than 0 seed and offset are appended to the state. A GPU's offset is a
// position.
//
// Threads: PyTorch's callers lock mutex_ of this generator; each function here also locks the inner generator's, which
// is what a drawing kernel holds.
class TORCH_OPENREG_API OpenRegGeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit OpenRegGeneratorImpl(DeviceIndex device); // seeded with c10::default_rng_seed_val

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;                                  // a new, unpredictable seed, which is returned
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

  // The generator of the GPU, made when first asked for: PyTorch's default one where this is a device's default
  // generator, because some kernels draw from that whatever they are given. `device`: the GPU that is openreg's device.
  at::Generator gpu(c10::Device device) const;
  // The device's default one, which may be made in a capture.
  void be_default(uint64_t seed) {
    sequence_.load()->is_default = true;
    begin(seed);
  }

 private:
  // What is drawn from. `inner`'s mutex guards the numbers too.
  struct Sequence {
    Sequence(at::Generator generator, uint64_t its_seed, uint64_t its_offset)
        : inner(std::move(generator)),
          seed(its_seed),
          offset(its_offset) {}

    at::Generator existing_gpu() {
      const std::lock_guard<std::mutex> guard(gpu_lock);
      return gpu;
    }

    at::Generator inner;
    uint64_t seed;
    uint64_t offset;
    bool is_default = false;
    std::mutex gpu_lock; // guards gpu; taken before `inner`'s mutex
    at::Generator gpu;   // undefined before it is made
  };

  OpenRegGeneratorImpl(DeviceIndex device, std::shared_ptr<Sequence> sequence);
  OpenRegGeneratorImpl* clone_impl() const override;
  void begin(uint64_t seed);
  c10::intrusive_ptr<c10::TensorImpl> state_now() const;
  std::optional<at::Generator> drawn_from_gpu() const; // where the kernels of the device do

  std::atomic<std::shared_ptr<Sequence>> sequence_;
};

// The CPU generator inside `generator`; `generator` itself if it is a CPU generator. Throws for one of another device.
TORCH_OPENREG_API at::Generator inner_cpu_generator(const at::Generator& generator);

// The device of PyTorch's own whose kernels run on an openreg device, if there is one. Set by gpu_kernels.cpp while the
// shim is loaded.
using GpuLookup = std::optional<c10::Device> (*)(DeviceIndex device);
void set_gpu_lookup(GpuLookup lookup) noexcept;

// The generator of `gpu`, PyTorch's own device that is openreg's, for a generator of openreg's; else `generator` itself.
at::Generator inner_gpu_generator(const at::Generator& generator, c10::Device gpu);

// The default generator of a device (-1: the current one), created on first use with an unpredictable seed. The
// reference stays valid until the process ends. Throws for an index out of range.
TORCH_OPENREG_API const at::Generator& default_generator(DeviceIndex device);

// A new generator of a device (-1: the current one).
TORCH_OPENREG_API at::Generator make_generator(DeviceIndex device);

} // namespace c10::openreg
