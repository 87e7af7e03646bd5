// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/branch_races.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace c10::openreg {
namespace {

// Memory of a tensor without gaps.
struct Use {
  uintptr_t begin;
  uintptr_t end;
  bool writes;
};

// A compiled kernel's use of its tensors isn't known: it is taken for reading.
std::vector<Use> uses_of(const Node& node) {
  std::vector<Use> found;
  const bool is_known = dynamic_cast<const CallNode*>(&node) == nullptr;
  node.for_each_use([&](const at::Tensor& tensor, bool writes) {
    if (tensor.defined() && tensor.has_storage() && tensor.numel() > 0 && tensor.is_non_overlapping_and_dense()) {
      const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
      found.push_back({begin, begin + tensor.nbytes(), writes && is_known});
    }
  });
  return found;
}

// `earlier` was captured before `later`.
bool is_ordered(const PlacedNode& earlier, const PlacedNode& later) {
  const uint32_t stream = earlier.stream;
  return stream == later.stream || (stream < later.before.size() && later.before[stream] > earlier.before[stream]);
}

bool conflict(const std::vector<Use>& one, const std::vector<Use>& other) {
  return std::any_of(one.begin(), one.end(), [&other](const Use& a) {
    return std::any_of(other.begin(), other.end(), [&a](const Use& b) {
      return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
    });
  });
}

std::string description(const PlacedNode& a, const PlacedNode& b) {
  return c10::str(
      "nothing orders ",
      a.node->name(),
      " on stream ",
      a.stream,
      " of the capture and ",
      b.node->name(),
      " on stream ",
      b.stream,
      ", which use the same memory, and one of them writes it");
}

} // namespace

std::string find_branch_race(const std::vector<PlacedNode>& nodes) {
  if (std::all_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.stream == 0; })) {
    return "";
  }
  std::vector<std::vector<Use>> uses;
  uses.reserve(nodes.size());
  std::vector<std::vector<size_t>> streams; // their nodes
  for (size_t later = 0; later < nodes.size(); ++later) {
    const PlacedNode& b = nodes[later];
    uses.push_back(uses_of(*b.node));
    for (const auto& stream : streams) {
      for (auto at = stream.rbegin(); at != stream.rend() && !is_ordered(nodes[*at], b); ++at) {
        if (conflict(uses[*at], uses[later])) {
          return description(nodes[*at], b);
        }
      }
    }
    streams.resize(std::max<size_t>(streams.size(), b.stream + size_t{1}));
    streams[b.stream].push_back(later);
  }
  return "";
}

} // namespace c10::openreg
