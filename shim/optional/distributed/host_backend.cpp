// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/host_backend.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "shim/base/wait_hook.h"

namespace c10::openreg {

// A thread releases the GIL before it takes the lock: the thread that makes the backend holds the lock and needs the GIL.
struct HostBackend::State {
  State(int of_rank, int of_size) : rank(of_rank), size(of_size) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  ~State() {
    const WaitScope waiting; // gloo waits for its threads, which may want the GIL
    backend.reset();
    make = nullptr;
  }

  // With the lock.
  Backend* made() {
    if (backend == nullptr) {
      has_begun = true;
      backend = make(options->timeout);
      if (!uid.empty()) {
        backend->setGroupUid(uid);
      }
      make = nullptr;
      known.store(backend.get(), std::memory_order_release);
    }
    return backend.get();
  }

  const int rank;
  const int size;
  std::mutex lock;                              // of what follows
  c10::intrusive_ptr<Backend::Options> options; // until it is made
  std::string uid;
  Make make;
  bool has_begun = false; // with making it, perhaps in vain
  c10::intrusive_ptr<Backend> backend;
  std::atomic<Backend*> known{nullptr}; // the same, once it is made
};

HostBackend::HostBackend(c10::intrusive_ptr<Backend> made)
    : state_(std::make_shared<State>(made->getRank(), made->getSize())) {
  state_->known = made.get();
  state_->backend = std::move(made);
}

HostBackend::HostBackend(int rank, int size, std::chrono::milliseconds timeout, Make make)
    : state_(std::make_shared<State>(rank, size)) {
  state_->options = c10::make_intrusive<Backend::Options>("gloo", timeout);
  state_->make = std::move(make);
}

int HostBackend::rank() const {
  return state_->rank;
}

int HostBackend::size() const {
  return state_->size;
}

HostBackend::Backend* HostBackend::operator->() const {
  if (auto* const here = known()) {
    return here;
  }
  const WaitScope waiting; // for the other ranks
  const std::lock_guard<std::mutex> guard(state_->lock);
  return state_->made();
}

HostBackend::Backend* HostBackend::known() const noexcept {
  return state_->known.load(std::memory_order_acquire);
}

c10::intrusive_ptr<HostBackend::Backend::Options> HostBackend::options() const {
  if (auto* const here = known()) {
    return here->getBackendOptions();
  }
  const WaitScope waiting;
  const std::lock_guard<std::mutex> guard(state_->lock);
  return state_->backend != nullptr ? state_->backend->getBackendOptions() : state_->options;
}

void HostBackend::set_timeout(std::chrono::milliseconds timeout) const {
  const WaitScope waiting;
  const std::lock_guard<std::mutex> guard(state_->lock);
  if (state_->backend != nullptr) {
    state_->backend->setTimeout(timeout);
  } else {
    state_->options->timeout = timeout;
  }
}

void HostBackend::set_uid(const std::string& uid) const {
  const WaitScope waiting;
  const std::lock_guard<std::mutex> guard(state_->lock);
  state_->uid = uid;
  if (state_->backend != nullptr) {
    state_->backend->setGroupUid(uid);
  }
}

void HostBackend::connect() const {
  const WaitScope waiting;
  const std::lock_guard<std::mutex> guard(state_->lock);
  if (!state_->has_begun) {
    state_->made();
  }
}

} // namespace c10::openreg
