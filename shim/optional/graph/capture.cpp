// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/capture.h"
#include "shim/device/device.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "shim/base/status.h"
#include "shim/base/wait_hook.h"
#include "shim/memory/storage.h"
#include "shim/observe/races.h"
#include "shim/optional/graph/kept_tensors.h"
#include "shim/optional/graph/recorder.h"

namespace c10::openreg {
namespace {

// The later of both positions for each stream.
void merge(Clock& into, const Clock& from) {
  into.resize(std::max(into.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) {
    into[i] = std::max(into[i], from[i]);
  }
}

// Whether the thread runs a node: what that calls is part of it, and of no capture.
thread_local bool runs_node = false;

// A call of the runtime on a captured stream that no capture makes, as a program's in C. PyTorch copies constants to a device
// (torch.tensor([1, 2], device=...)) with the key excluded: they are made at once, and are memory of the program's own.
int judge_call(int32_t device, openreg_stream stream, const char* call) {
  if (c10::impl::tls_is_dispatch_key_excluded(kCapture)) {
    return 0;
  }
  const StreamKey key{static_cast<DeviceIndex>(device), stream};
  if (const auto capture = Captures::instance().of_stream(key)) {
    capture->invalidate(
        std::string(call) + " can't be captured" + place_of_caller() +
        ": it was not called by an operator of PyTorch's, or in a thread or mode that is not part of the capture");
  }
  return 1;
}

void hold(StreamKey key) {
  OPENREG_CHECK(openreg_graph_hold(key.device, key.stream, &judge_call));
}

constexpr const char* kUncaptured =
    "the event was recorded before the capture began, or on a stream that is not part of it";

} // namespace

Capture::Capture(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool)
    : mode_(mode),
      pool_(std::move(pool)),
      undo_(*pool_),
      last_(first) {
  streams_.push_back({first, {0}});
  work_.pools.push_back(pool_);
}

Capture::Stream* Capture::find(StreamKey key) {
  const auto found =
      std::find_if(streams_.begin(), streams_.end(), [&](const Stream& stream) { return stream.key == key; });
  return found == streams_.end() ? nullptr : &*found;
}

// To have joined is work of the stream, so that the first stream must wait for it also where nothing follows.
Capture::Stream& Capture::join(StreamKey key, const Clock& clock) {
  hold(key);
  Stream& stream = streams_.emplace_back(Stream{key, clock});
  stream.clock.resize(streams_.size());
  stream.clock.back() = 1;
  return stream;
}

void Capture::check_valid() const {
  const std::lock_guard<std::mutex> guard(lock_);
  TORCH_CHECK(error_.empty(), "The capture of a graph is invalid: ", error_);
}

void Capture::add(std::shared_ptr<const Node> node, StreamKey stream) {
  const std::lock_guard<std::mutex> guard(lock_);
  Stream* const at = find(stream);
  TORCH_INTERNAL_ASSERT(at != nullptr);
  const auto number = static_cast<uint32_t>(at - streams_.data());
  node->for_each_use([&](const at::Tensor& tensor, bool /*writes*/) {
    if (!tensor.defined() || !tensor.has_storage() || !(tensor.is_privateuseone() || tensor.is_pinned())) {
      return;
    }
    const c10::Storage& storage = tensor.storage();
    if (storage.data() != nullptr && !pool_->has(storage.data())) {
      work_.external.try_emplace(
          storage.unsafeGetStorageImpl(),
          ExternalMemory{
              storage,
              storage.data(),
              storage.nbytes(),
              node->name(),
              races_are_found() ? place_of_caller() : std::string()});
    }
  });
  work_.nodes.push_back({std::move(node), number, at->clock});
  at->clock[number] += 1;
}

void Capture::follow(StreamKey stream) {
  undo_.settle(stream.device);
  StreamKey before{};
  {
    const std::lock_guard<std::mutex> guard(lock_);
    before = std::exchange(last_, stream);
  }
  if (stream == before) {
    return;
  }
  openreg_event event = nullptr;
  OPENREG_CHECK(openreg_event_create(before.device, 0, &event));
  openreg_status status = openreg_event_record(event, before.device, before.stream);
  if (status == OPENREG_OK) {
    status = openreg_stream_wait_event(stream.device, stream.stream, event);
  }
  (void)openreg_event_destroy(event);
  OPENREG_CHECK(status);
}

void Capture::run(std::shared_ptr<const Node> node, StreamKey stream) {
  if (!node->runs_in_captures()) {
    add(std::move(node), stream);
    return;
  }
  const OwnCalls own;
  follow(stream);
  node->for_each_use([this, stream](const at::Tensor& tensor, bool writes) {
    if (writes) {
      undo_.save_written(tensor, stream.device);
    }
  });
  {
    const RaceMute mute(races_are_found());
    const c10::impl::ExcludeDispatchKeyGuard kernels_alone(kAboveNodes);
    const auto over = c10::make_scope_exit([before = std::exchange(runs_node, true)] { runs_node = before; });
    RunScope scope;
    torch::jit::Stack stack;
    node->run(stack, scope);
  }
  add(std::move(node), stream);
}

void Capture::add_call(std::string name, std::function<void()> call, StreamKey stream) {
  add(std::make_shared<CallNode>(std::move(name), std::move(call), std::vector<at::Tensor>{}, stream.device), stream);
}

void Capture::finish() {
  {
    const WaitScope waiting;
    OPENREG_CHECK(openreg_stream_synchronize(last_.device, last_.stream)); // behind which is all that has run
  }
  undo_.restore();
}

void Capture::keep(std::shared_ptr<GraphPool> pool) {
  const std::lock_guard<std::mutex> guard(lock_);
  work_.pools.push_back(std::move(pool));
}

void Capture::add_state(const at::Generator& generator, const at::Tensor& state, StreamKey stream) {
  const auto slot = std::make_shared<at::Tensor>();
  const auto get = [generator = at::Generator(generator), slot]() mutable {
    const std::lock_guard<std::mutex> drawing(generator.mutex());
    *slot = generator.get_state();
  };
  add_call("state of a generator", get, stream);
  const std::lock_guard<std::mutex> guard(lock_);
  states_.emplace_back(state.clone(), slot);
}

void Capture::restore_state(const at::Generator& generator, const at::Tensor& state, StreamKey stream) {
  undo_.save(generator);
  std::shared_ptr<at::Tensor> slot;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const auto& [got, of_replay] : states_) {
      slot = got.equal(state) ? of_replay : slot; // the last of those that are equal
    }
  }
  if (slot == nullptr) {
    refuse(
        "setting the state of a generator",
        "each replay draws from the generator as it is then; only a state that the same capture has got can be set");
  }
  const auto set = [generator = at::Generator(generator), slot]() mutable {
    const std::lock_guard<std::mutex> drawing(generator.mutex());
    generator.set_state(*slot);
  };
  add_call("state of a generator, set", set, stream);
}

void Capture::invalidate(const std::string& why) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (error_.empty()) {
    error_ = why;
  }
}

void Capture::add_move(
    const c10::Storage& to, const void* from, size_t size, const std::string& call, StreamKey stream) {
  void* const target = const_cast<void*>(to.data());
  const auto copy = [target, from, bytes = std::min(to.nbytes(), size), device = stream.device] {
    OPENREG_CHECK(openreg_memcpy_async(device, current_stream_of(device).stream, target, device, from, device, bytes));
  };
  add_call("memory of " + call, copy, stream);
}

void Capture::refuse(const std::string& call, const std::string& why) {
  const std::string text = call + " can't be captured" + place_of_caller() + ": " + why;
  invalidate(text);
  TORCH_CHECK(false, text, ". The capture of the graph is now invalid.");
}

StreamKey current_stream_of(DeviceIndex device) {
  return {device, current_stream(device).id()};
}

Captures& Captures::instance() {
  static auto& captures = *new Captures;
  return captures;
}

std::shared_ptr<Capture> Captures::begin(at::GraphCaptureMode mode, StreamKey first, std::shared_ptr<GraphPool> pool) {
  TORCH_CHECK(
      first.stream != OPENREG_STREAM_DEFAULT,
      "A graph must be captured on a stream other than the default one, for which other streams would wait.");
  if (const auto other = of_stream(first)) {
    other->invalidate("a second capture was begun on its stream" + place_of_caller());
    TORCH_CHECK(false, "The current stream is being captured already; that capture is now invalid.");
  }
  auto capture = std::make_shared<Capture>(mode, first, std::move(pool));
  hold(first);
  const std::lock_guard<std::mutex> guard(lock_);
  active_.push_back(capture);
  capture_watch_pointer.store(this, std::memory_order_release);
  return capture;
}

void Captures::remove(const std::shared_ptr<Capture>& capture) noexcept {
  const auto found = std::find(active_.begin(), active_.end(), capture);
  if (found == active_.end()) {
    return;
  }
  active_.erase(found);
  const std::lock_guard<std::mutex> guard(capture->lock_);
  for (const Capture::Stream& stream : capture->streams_) {
    (void)openreg_graph_hold(stream.key.device, stream.key.stream, nullptr); // lets go, which nothing can refuse
  }
}

CapturedWork Captures::end(const std::shared_ptr<Capture>& capture, StreamKey current) {
  CapturedWork work; // whose end may call the program's code: not under the locks
  const std::lock_guard<std::mutex> guard(lock_);
  remove(capture);
  const std::lock_guard<std::mutex> capture_guard(capture->lock_);
  work = std::move(capture->work_);
  TORCH_CHECK(capture->error_.empty(), "The capture of a graph has failed: ", capture->error_, ".");
  TORCH_CHECK(
      std::this_thread::get_id() == capture->thread_, "The capture of a graph must end in the thread that began it.");
  TORCH_CHECK(
      current == capture->streams_[0].key, "The capture of a graph must end on the stream on which it was begun.");
  const Clock& seen = capture->streams_[0].clock;
  for (size_t i = 1; i < capture->streams_.size(); ++i) {
    TORCH_CHECK(
        i < seen.size() && seen[i] >= capture->streams_[i].clock[i],
        "The capture of a graph has failed: its first stream has not waited for the work of stream ",
        capture->streams_[i].key.stream,
        " of device ",
        static_cast<int>(capture->streams_[i].key.device),
        ", which joined the capture.");
  }
  return work;
}

void Captures::abandon(const std::shared_ptr<Capture>& capture) noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  remove(capture);
}

std::shared_ptr<Capture> Captures::of_stream(StreamKey key) const {
  if (runs_node) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  for (const auto& capture : active_) {
    const std::lock_guard<std::mutex> capture_guard(capture->lock_);
    if (capture->find(key) != nullptr) {
      return capture;
    }
  }
  return nullptr;
}

std::shared_ptr<Capture> Captures::of_memory(const c10::Storage& storage, bool is_written) const {
  const std::lock_guard<std::mutex> guard(lock_);
  for (const auto& capture : active_) {
    if (capture->pool_->owns(storage.data()) || capture->undo_.is_written(storage)) {
      return capture;
    }
    if (is_written) {
      capture->undo_.forget(storage);
    }
  }
  return nullptr;
}

bool Captures::are_none() const noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  return active_.empty();
}

void Captures::follow_moves(const c10::StorageImpl* storage, bool on) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (on) {
    moves_[storage] = "";
  } else {
    moves_.erase(storage);
  }
}

std::string Captures::place_of_move(const c10::StorageImpl* storage) const {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = moves_.find(storage);
  return found != moves_.end() ? found->second : "";
}

void Captures::moves(const c10::StorageImpl& storage) {
  if (!races_are_found()) {
    return;
  }
  std::string place = place_of_caller();
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = moves_.find(&storage);
  if (found != moves_.end()) {
    found->second = std::move(place);
  }
}

bool Captures::is_capturing(DeviceIndex device, openreg_stream stream) const noexcept {
  return of_stream({device, stream}) != nullptr;
}

void Captures::check_device(DeviceIndex device, const char* call) {
  if (runs_node) {
    return;
  }
  std::shared_ptr<Capture> found;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const auto& capture : active_) {
      const bool own = capture->thread_ == std::this_thread::get_id();
      const std::lock_guard<std::mutex> capture_guard(capture->lock_);
      const bool covers =
          std::any_of(capture->streams_.begin(), capture->streams_.end(), [device](const Capture::Stream& stream) {
            return stream.key.device == device;
          });
      if (covers && (own || capture->mode_ == at::GraphCaptureMode::Global)) {
        found = capture;
      }
    }
  }
  if (found != nullptr) {
    found->refuse(call, "its work doesn't run before the graph is replayed");
  }
}

void Captures::check_stream(DeviceIndex device, openreg_stream stream, const char* call) {
  refuse(device, stream, call, "its work doesn't run before the graph is replayed");
}

void Captures::refuse(DeviceIndex device, openreg_stream stream, const char* call, const char* why) {
  if (const auto capture = of_stream({device, stream})) {
    capture->refuse(call, why);
  }
}

void Captures::check_event(openreg_event event, const char* call) {
  std::shared_ptr<Capture> capture;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = events_.find(event);
    if (found == events_.end()) {
      return;
    }
    capture = found->second.capture.lock();
  }
  TORCH_CHECK(capture != nullptr, call, ": the event was recorded in the capture of a graph, and is part of that.");
  capture->refuse(call, "the event was recorded in the capture");
}

bool Captures::record(openreg_event event, DeviceIndex device, openreg_stream stream) {
  const auto capture = of_stream({device, stream});
  const std::lock_guard<std::mutex> guard(lock_);
  if (capture == nullptr) {
    events_.erase(event);
    return false;
  }
  const std::lock_guard<std::mutex> capture_guard(capture->lock_);
  Capture::Stream& at = *capture->find({device, stream});
  events_[event] = {capture, at.clock};
  return true;
}

bool Captures::wait(openreg_event event, DeviceIndex device, openreg_stream stream) {
  const StreamKey key{device, stream};
  const auto waiting = of_stream(key);
  std::shared_ptr<Capture> recorded;
  Clock clock;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = runs_node ? events_.end() : events_.find(event);
    if (found != events_.end()) {
      recorded = found->second.capture.lock();
      TORCH_CHECK(
          recorded != nullptr || waiting != nullptr,
          "A stream can't wait for an event that was recorded in the capture of a graph, which has ended.");
      clock = found->second.clock;
    }
  }
  if (recorded == nullptr && waiting == nullptr) {
    return false;
  }
  if (recorded == nullptr) {
    waiting->refuse("waiting for the event", kUncaptured);
  }
  if (waiting != nullptr && waiting != recorded) {
    waiting->refuse("waiting for the event", "it was recorded in another capture");
  }
  const std::lock_guard<std::mutex> capture_guard(recorded->lock_);
  Capture::Stream* at = recorded->find(key);
  TORCH_CHECK(
      at != nullptr || stream != OPENREG_STREAM_DEFAULT,
      "The default stream can't be part of a capture, which its wait for a captured event would make it.");
  merge((at != nullptr ? *at : recorded->join(key, clock)).clock, clock);
  return true;
}

bool Captures::add_call(DeviceIndex device, openreg_stream stream, CapturedCall call) {
  const auto capture = of_stream({device, stream});
  if (capture == nullptr) {
    return false;
  }
  capture->check_valid();
  KeptTensors tensors(capture->pool());
  std::vector<at::Tensor> kept;
  for (const at::Tensor& tensor : call.tensors) {
    kept.push_back(tensors.keep(tensor));
  }
  auto node = std::make_shared<CallNode>(std::move(call.name), call.bind(kept), kept, device, call.is_local);
  capture->run(std::move(node), {device, stream});
  return true;
}

bool Captures::resize(c10::StorageImpl& storage, size_t size) {
  const StreamKey stream = current_stream_of(storage.device().index());
  const auto capture = of_stream(stream);
  const void* const before = storage.data();
  if (capture == nullptr || (before != nullptr && !capture->pool().has(before))) {
    return false;
  }
  capture->check_valid();
  const OwnCalls own;
  capture->follow(stream);
  const size_t kept = storage.nbytes();
  BlockList blocks;
  {
    const PoolScope scope(capture->pool(), stream.device);
    const auto noted = BlockListScope::note(blocks);
    const RaceMute mute(races_are_found());
    resize_storage(storage, size);
  }
  for (const ListedBlock& block : blocks) {
    capture->pool().note_block(block.address);
  }
  if (before != nullptr && storage.data() != nullptr) {
    const c10::Storage moved(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(&storage));
    capture->add_move(moved, before, kept, "resize_()", stream);
  }
  return true;
}

namespace {

at::Generator as_generator(c10::GeneratorImpl& generator) {
  return at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::unsafe_reclaim_from_nonowning(&generator));
}

at::Tensor as_tensor(const c10::TensorImpl& tensor) {
  auto* const same = const_cast<c10::TensorImpl*>(&tensor);
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(same));
}

} // namespace

void Captures::got_state(c10::GeneratorImpl& generator, const c10::TensorImpl& state) {
  const StreamKey stream = current_stream_of(generator.device().index());
  if (const auto capture = of_stream(stream)) {
    capture->add_state(as_generator(generator), as_tensor(state), stream);
  }
}

void Captures::set_state(c10::GeneratorImpl& generator, const c10::TensorImpl& state) {
  const StreamKey stream = current_stream_of(generator.device().index());
  if (const auto capture = of_stream(stream)) {
    capture->restore_state(as_generator(generator), as_tensor(state), stream);
  }
}

void Captures::forget(openreg_event event) noexcept {
  const std::lock_guard<std::mutex> guard(lock_);
  events_.erase(event);
}

} // namespace c10::openreg
