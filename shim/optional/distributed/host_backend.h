/* SPDX-License-Identifier: BSD-3-Clause */
// A c10d backend for host memory, there or made when it is first used.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "shim/base/export.h"

namespace c10::openreg {

// gloo connects each rank of a group to every other one, and has threads of its own: programs make hundreds of groups, and use
// few. Copies are one backend.
class TORCH_OPENREG_API HostBackend {
 public:
  using Backend = c10d::Backend;
  using Make = std::function<c10::intrusive_ptr<Backend>(std::chrono::milliseconds timeout)>;

  HostBackend(c10::intrusive_ptr<Backend> made); // NOLINT(google-explicit-constructor): it is one

  // `make` is called by the first thread that needs the backend, without the GIL; what it throws the call throws, and the next
  // one tries again.
  HostBackend(int rank, int size, std::chrono::milliseconds timeout, Make make);

  int rank() const;
  int size() const;

  // The backend; threads that come while it is made wait, without the GIL.
  Backend* operator->() const;

  // The backend, or null where nothing has needed it yet.
  Backend* known() const noexcept;

  // Its own, or, until it is made, those of gloo's base with the timeout that it will get.
  c10::intrusive_ptr<Backend::Options> options() const;
  // What is set before it is made it gets then.
  std::chrono::milliseconds timeout() const {
    return options()->timeout;
  }
  void set_timeout(std::chrono::milliseconds timeout) const;
  void set_uid(const std::string& uid) const;

  // Makes the backend unless somebody has begun to.
  void connect() const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

} // namespace c10::openreg
