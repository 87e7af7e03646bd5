/* SPDX-License-Identifier: BSD-3-Clause */
// Races between the branches of a captured graph: its forks are streams that nothing orders until they join.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shim/optional/graph/node.h"

namespace c10::openreg {

// What the first race is that is found; "": none. Memory of tensors with gaps is left out.
std::string find_branch_race(const std::vector<PlacedNode>& nodes);

} // namespace c10::openreg
