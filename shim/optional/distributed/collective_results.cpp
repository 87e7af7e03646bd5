// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/collective_results.h"
#include "shim/device/device.h"

#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cctype>
#include <condition_variable>
#include <mutex>
#include <sstream>

#include "shim/base/status.h"

namespace c10::openreg {

using c10::ivalue::Future;

namespace {

struct Flights {
  std::mutex lock;
  std::condition_variable changed;
  size_t count = 0;
};

Flights& flights() {
  static auto* const all = new Flights; // threads of the host's backend may outlive static objects
  return *all;
}

} // namespace

std::vector<at::Tensor> tensors_of(const StagedOutputs& outputs) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(outputs.size());
  for (const auto& output : outputs) {
    tensors.push_back(output.tensor);
  }
  return tensors;
}

c10::intrusive_ptr<Future> make_future(const std::vector<at::Tensor>& results) {
  std::vector<c10::Device> devices;
  for (const auto& result : results) {
    if (result.is_privateuseone()) {
      devices.push_back(result.device());
    }
  }
  return c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::move(devices));
}

c10::intrusive_ptr<Future> future_of(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

std::string name_of(c10d::OpType operation) {
  switch (operation) { // where c10d has another
    case c10d::OpType::ALLREDUCE:
      return "all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "all_reduce_coalesced";
    case c10d::OpType::ALLGATHER:
      return "all_gather";
    case c10d::OpType::ALLTOALL:
      return "all_to_all";
    case c10d::OpType::ALLTOALL_BASE:
      return "all_to_all_single";
    case c10d::OpType::_ALLGATHER_BASE:
      return "all_gather_into_tensor";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "reduce_scatter_tensor";
    default: {
      std::string name = c10d::opTypeToString(operation);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      return name;
    }
  }
}

std::string description_of(c10d::OpType operation, int rank, int size, const std::vector<SeenTensor>& tensors) {
  std::ostringstream text;
  text << name_of(operation) << " in rank " << rank << " of " << size << ": ";
  constexpr size_t kNamed = 8;
  for (size_t i = 0; i < std::min(tensors.size(), kNamed); i++) {
    const auto& [type, device, sizes] = tensors[i];
    text << (i == 0 ? "" : ", ") << c10::getDtypeNames(type).first << '[';
    for (size_t j = 0; j < sizes.size(); j++) {
      text << (j == 0 ? "" : ", ") << sizes[j];
    }
    text << "] on " << device;
  }
  if (tensors.size() > kNamed) {
    text << " and " << tensors.size() - kNamed << " more";
  }
  return text.str();
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    return known.what_without_backtrace();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "unknown error";
  }
}

std::exception_ptr with_context(const std::exception_ptr& error, const std::string& context) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistError&) {
    return error;
  } catch (const std::exception&) {
    return std::make_exception_ptr(
        c10::Error(c10::SourceLocation{__func__, __FILE__, __LINE__}, text_of(error) + "\nIn " + context + "."));
  } catch (...) {
    return error;
  }
}

ResultsInFlight::ResultsInFlight() {
  const std::lock_guard<std::mutex> guard(flights().lock);
  flights().count++;
}

ResultsInFlight::~ResultsInFlight() {
  const std::lock_guard<std::mutex> guard(flights().lock);
  flights().count--;
  flights().changed.notify_all();
}

bool settle_results_in_flight(std::chrono::duration<double> longest) {
  std::unique_lock<std::mutex> guard(flights().lock);
  return flights().changed.wait_for(guard, longest, [] { return flights().count == 0; });
}

CurrentStreams::CurrentStreams(const Streams& streams) {
  for (const auto& [device, stream] : streams) {
    const openreg_stream before = current_stream(device).id();
    OPENREG_CHECK(openreg_set_current_stream(device, stream));
    befores_.emplace_back(device, before);
  }
}

CurrentStreams::~CurrentStreams() {
  for (auto before = befores_.rbegin(); before != befores_.rend(); ++before) {
    (void)openreg_set_current_stream(before->first, before->second);
  }
}

} // namespace c10::openreg
