// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/graph/branch_races.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace c10::openreg {
namespace {

// `earlier` was captured before `later`.
bool is_ordered(const PlacedNode& earlier, const PlacedNode& later) {
  const uint32_t stream = earlier.stream;
  return stream == later.stream || (stream < later.before.size() && later.before[stream] > earlier.before[stream]);
}

bool conflict(const std::vector<Node::Use>& one, const std::vector<Node::Use>& other) {
  return std::any_of(one.begin(), one.end(), [&other](const Node::Use& a) {
    return std::any_of(other.begin(), other.end(), [&a](const Node::Use& b) {
      return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
    });
  });
}

} // namespace

std::string find_branch_race(const std::vector<PlacedNode>& nodes) {
  if (std::all_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.stream == 0; })) {
    return "";
  }
  std::vector<std::vector<Node::Use>> uses;
  uses.reserve(nodes.size());
  for (size_t later = 0; later < nodes.size(); ++later) {
    uses.push_back(nodes[later].node->uses());
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const PlacedNode &a = nodes[earlier], &b = nodes[later];
      if (!is_ordered(a, b) && conflict(uses[earlier], uses[later])) {
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
    }
  }
  return "";
}

} // namespace c10::openreg
