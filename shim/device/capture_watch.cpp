// SPDX-License-Identifier: BSD-3-Clause
#include "shim/device/capture_watch.h"

#include <array>

namespace c10::openreg {
namespace {

std::atomic<PlaceFinder> place_finder{nullptr};
std::atomic<void (*)()> first_graph_listener{nullptr};

} // namespace

std::atomic<CaptureWatch*> capture_watch_pointer{nullptr};

void set_place_finder(PlaceFinder finder) noexcept {
  place_finder = finder;
}

std::string place_of_caller() {
  std::array<char, 128> text{};
  const PlaceFinder find = place_finder.load();
  return find != nullptr && find(text.data(), text.size()) != 0 ? std::string(" at ") + text.data() : "";
}

void set_first_graph_listener(void (*listener)()) noexcept {
  first_graph_listener = listener;
}

void tell_of_first_graph() {
  if (auto* const listener = first_graph_listener.load()) {
    listener();
  }
}

} // namespace c10::openreg
