#include "shim/operators/ways.h"

#include <openreg/driver.h>
#include <openreg/openreg.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "shim/status.h"

namespace c10::openreg {
namespace {

// 0: not known yet, else 1 + the way.
std::array<std::atomic<uint8_t>, OPENREG_MAX_DEVICES> ways;

bool staging_is_forced() {
  const char* value = std::getenv("OPENREG_OPERATORS");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "auto") == 0) {
    return false;
  }
  TORCH_CHECK(
      std::strcmp(value, "staged") == 0,
      "OPENREG_OPERATORS must be 'auto' or 'staged', but is '",
      value,
      "'.");
  return true;
}

// Counts of one thread land on one of a few cache lines: operators of several threads don't share one.
struct alignas(64) Counter {
  std::atomic<uint64_t> value{0};
};
std::array<Counter, 16> aliased_calls;

size_t this_threads_counter() {
  static std::atomic<size_t> threads{0};
  static thread_local const size_t mine = threads.fetch_add(1, std::memory_order_relaxed) % aliased_calls.size();
  return mine;
}

struct StagedCounts {
  std::mutex lock;
  std::map<std::string, StagedCount> by_operator;
};

StagedCounts& staged_counts() {
  static auto* counts = new StagedCounts; // leaked: used until the process ends
  return *counts;
}

} // namespace

OperatorWay operator_way(DeviceIndex device) {
  if (device >= 0 && device < OPENREG_MAX_DEVICES) {
    const uint8_t known = ways[device].load(std::memory_order_relaxed);
    if (C10_LIKELY(known != 0)) {
      return static_cast<OperatorWay>(known - 1);
    }
  }
  openreg_device_properties properties{};
  properties.struct_size = sizeof properties;
  OPENREG_CHECK(openreg_get_device_properties(device, &properties));
  const bool visible = (properties.caps & OPENREG_CAP_HOST_VISIBLE) != 0;
  const auto way = visible && !staging_is_forced() ? OperatorWay::aliased : OperatorWay::staged;
  ways[device].store(static_cast<uint8_t>(1 + static_cast<uint8_t>(way)), std::memory_order_relaxed);
  return way;
}

void forget_operator_ways() noexcept {
  for (auto& way : ways) {
    way.store(0, std::memory_order_relaxed);
  }
}

void count_aliased_call() noexcept {
  aliased_calls[this_threads_counter()].value.fetch_add(1, std::memory_order_relaxed);
}

void count_staged_call(const std::string& name, uint64_t bytes) {
  auto& counts = staged_counts();
  const std::lock_guard<std::mutex> guard(counts.lock);
  auto& count = counts.by_operator[name];
  count.calls += 1;
  count.bytes += bytes;
}

OperatorCounts operator_counts() {
  OperatorCounts result;
  for (const auto& counter : aliased_calls) {
    result.aliased_calls += counter.value.load(std::memory_order_relaxed);
  }
  auto& counts = staged_counts();
  const std::lock_guard<std::mutex> guard(counts.lock);
  result.staged = counts.by_operator;
  for (const auto& [name, count] : result.staged) {
    result.staged_calls += count.calls;
    result.staged_bytes += count.bytes;
  }
  return result;
}

void reset_operator_counts() {
  for (auto& counter : aliased_calls) {
    counter.value.store(0, std::memory_order_relaxed);
  }
  auto& counts = staged_counts();
  const std::lock_guard<std::mutex> guard(counts.lock);
  counts.by_operator.clear();
}

} // namespace c10::openreg
