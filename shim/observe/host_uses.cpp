// SPDX-License-Identifier: BSD-3-Clause
// What operators of the CPU do with pinned memory that a stream may be copying from or to: seen by an observer of
// PyTorch's, which is there while races are looked for.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <openreg/races.h>

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "shim/base/status.h"
#include "shim/observe/races.h"

namespace c10::openreg {
namespace {

// The pinned memory that streams have used lies between these: most tensors are elsewhere.
std::atomic<uintptr_t> lowest{UINTPTR_MAX};
std::atomic<uintptr_t> highest{0};

// Observers can't throw.
std::atomic<bool> is_pending{false};

struct Pending {
  std::mutex lock;
  std::string message;
  pid_t process = 0; // whose race it is: a forked child has none of its parent's
};

Pending& pending() {
  static auto& only = *new Pending;
  return only;
}

// A race that the program has ended without: nothing is left to throw it, so the process's status says it.
void end_with_a_status(int status, void* /*unused*/) {
  if (status != 0 || !is_pending.load(std::memory_order_relaxed) || pending().process != getpid()) {
    return;
  }
  static const char kLine[] = "openreg: error: the program ended with a race that nothing could raise; status 1\n";
  (void)std::fflush(nullptr);
  (void)!write(STDERR_FILENO, kLine, sizeof kLine - 1);
  _exit(EXIT_FAILURE);
}

void keep_for_later(const char* message) {
  const std::lock_guard<std::mutex> guard(pending().lock);
  static const int registered = on_exit(end_with_a_status, nullptr);
  (void)registered;
  pending().message = message;
  pending().process = getpid();
  is_pending.store(true, std::memory_order_relaxed);
}

bool may_be_pinned(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage()) {
    return false;
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.storage().data());
  return address < highest.load(std::memory_order_relaxed) &&
      address + tensor.storage().nbytes() > lowest.load(std::memory_order_relaxed);
}

template <class Use>
void for_each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      use(tensor);
    }
  }
}

// Whether the host works on the tensors' data in this call itself: not in one that it makes of it, and not by making a view.
bool works_on_host(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& returns = schema.returns();
  if (!returns.empty() && returns[0].alias_info() != nullptr && !returns[0].alias_info()->isWrite()) {
    return false;
  }
  return uses_data(schema.name()) &&
      (schema.name() == "aten::copy_" || op.hasKernelForDispatchKey(c10::DispatchKey::CPU));
}

void note(const at::Tensor& tensor, bool writes, const std::string& name) {
  if (!may_be_pinned(tensor) || openreg_races_knows(tensor.storage().data(), tensor.storage().nbytes()) == 0) {
    return;
  }
  const openreg_status status = openreg_races_host_use(
      openreg_races_origin(name.c_str()),
      tensor.const_data_ptr(),
      tensor.is_non_overlapping_and_dense() ? tensor.nbytes() : tensor.itemsize(),
      writes ? 1 : 0);
  if (status != OPENREG_OK) {
    keep_for_later(openreg_last_error()->message);
  }
}

void see(const at::RecordFunction& call) {
  bool may_matter = false;
  bool has_ours = false;
  for (const c10::IValue& input : call.inputs()) {
    for_each_tensor(input, [&](const at::Tensor& tensor) {
      may_matter |= may_be_pinned(tensor);
      has_ours |= tensor.defined() && tensor.is_privateuseone();
    });
  }
  const auto name = call.operator_name();
  if (!may_matter || has_ours || !name.has_value()) {
    return;
  }
  const auto op = c10::Dispatcher::singleton().findOp(*name);
  if (!op.has_value() || !works_on_host(*op)) {
    return;
  }
  const auto& declared = op->schema().arguments();
  for (size_t i = 0; i < call.inputs().size() && i < declared.size(); ++i) {
    const auto* const alias = declared[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    for_each_tensor(call.inputs()[i], [&](const at::Tensor& tensor) { note(tensor, writes, op->schema().name()); });
  }
}

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& call) {
  if (highest.load(std::memory_order_relaxed) != 0 && follows_races()) {
    see(call);
  }
  return nullptr;
}

std::mutex installing;
at::CallbackHandle installed = at::INVALID_CALLBACK_HANDLE; // guarded by it
std::atomic<bool> is_installed{false};

} // namespace

void watch_host_uses(bool on) {
  if (is_installed.load(std::memory_order_acquire) == on) {
    return;
  }
  const std::lock_guard<std::mutex> guard(installing);
  if (on && installed == at::INVALID_CALLBACK_HANDLE) {
    installed = at::addGlobalCallback(
        at::RecordFunctionCallback(&observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  } else if (!on && installed != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(installed);
    installed = at::INVALID_CALLBACK_HANDLE;
  }
  is_installed.store(on, std::memory_order_release);
}

void watch_pinned_memory(const void* address, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  uintptr_t known = lowest.load(std::memory_order_relaxed);
  while (begin < known && !lowest.compare_exchange_weak(known, begin)) {
  }
  known = highest.load(std::memory_order_relaxed);
  while (begin + size > known && !highest.compare_exchange_weak(known, begin + size)) {
  }
  watch_host_uses(true);
}

void throw_pending_race() {
  if (C10_LIKELY(!is_pending.load(std::memory_order_relaxed))) {
    return;
  }
  std::string message;
  {
    const std::lock_guard<std::mutex> guard(pending().lock);
    message.swap(pending().message);
    is_pending.store(false, std::memory_order_relaxed);
  }
  if (!message.empty()) {
    translate_error(message.c_str());
    TORCH_CHECK(false, message); // a C++ program, which has no class of its own for it
  }
}

void drop_pending_race() noexcept {
  is_pending.store(false, std::memory_order_relaxed);
}

} // namespace c10::openreg
