// SPDX-License-Identifier: BSD-3-Clause
// Times c10::DeviceGuard on openreg: made and destroyed, to the device that is current and to another. Prints a line
// "name nanoseconds" per figure, the least of several rounds; the reference is the guard of the CPU, which does nothing.
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "shim/device/device.h"

namespace {

double nanoseconds_per_guard(c10::Device device) {
  constexpr int count = 2'000'000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) {
    const c10::DeviceGuard guard(device);
    asm volatile("" : : "r"(&guard) : "memory");
  }
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  return time.count() / count;
}

} // namespace

int main() {
  constexpr auto type = c10::DeviceType::PrivateUse1;
  c10::openreg::set_device(0);
  constexpr double never = std::numeric_limits<double>::infinity();
  double same = never;
  double other = never;
  double cpu = never;
  for (int round = 0; round < 11; ++round) {
    same = std::min(same, nanoseconds_per_guard({type, 0}));
    other = std::min(other, nanoseconds_per_guard({type, 1}));
    cpu = std::min(cpu, nanoseconds_per_guard(c10::kCPU));
  }
  std::printf("guard_same %.3f\nguard_other %.3f\nguard_cpu %.3f\n", same, other, cpu);
  return 0;
}
