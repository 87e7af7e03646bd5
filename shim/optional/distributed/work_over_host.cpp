// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/work_over_host.h"

#include <openreg/flight_recorder.h>

#include <utility>

#include "shim/optional/distributed/collective_results.h"

namespace c10::openreg {

std::exception_ptr noticed_failure(const std::exception_ptr& error, const std::string& description) {
  openreg_flight_recorder_alarm();
  return with_context(error, description);
}

bool wait_for_host_work(c10d::Work& host_work, const std::string& description, std::chrono::milliseconds timeout) {
  std::exception_ptr error;
  try {
    return host_work.wait(timeout);
  } catch (...) {
    error = std::current_exception();
  }
  std::rethrow_exception(noticed_failure(error, description));
}

WorkOverHost::WorkOverHost(c10::intrusive_ptr<c10d::Work> host_work, c10d::OpType operation, std::string description)
    : Work(/*rank=*/-1, operation),
      host_work_(std::move(host_work)),
      description_(std::move(description)) {}

int WorkOverHost::sourceRank() const {
  return host_work_->sourceRank();
}

uint64_t WorkOverHost::getSequencenumber() const {
  return host_work_->getSequencenumber();
}

void WorkOverHost::abort() {
  host_work_->abort();
}

bool WorkOverHost::isSuccess() const {
  return exception() == nullptr;
}

} // namespace c10::openreg
