// SPDX-License-Identifier: BSD-3-Clause
// The tree of base/tree.h against std::multimap, and how deep it gets. Holds the runtime's objects.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <vector>

extern "C" {
#include "base/tree.h"
}

namespace {

using Nodes = std::vector<openreg_tree_node>;

int depth_of(const openreg_tree_node* node) {
  return node == nullptr ? 0 : 1 + std::max(depth_of(node->child[0]), depth_of(node->child[1]));
}

openreg_tree_node* first_of(const openreg_tree& tree) { return openreg_tree_at_least(&tree, 0); }

std::vector<uint64_t> keys_of(const openreg_tree& tree) {
  std::vector<uint64_t> keys;
  for (const openreg_tree_node* at = first_of(tree); at != nullptr; at = openreg_tree_beside(at, 1))
    keys.push_back(at->key);
  return keys;
}

// Inserting, removing, replacing and searching give what an ordered map gives, with keys that are equal too.
TEST(TreeTest, IsAnOrderedMap) {
  std::mt19937 random(5);
  Nodes nodes(600);
  std::vector<size_t> unused(nodes.size());
  for (size_t i = 0; i < unused.size(); ++i) unused[i] = i;
  std::multimap<uint64_t, openreg_tree_node*> model;
  openreg_tree tree = {};
  for (int step = 0; step < 60000; ++step) {
    const uint64_t key = random() % 400 + 1;
    const unsigned action = random() % 4;
    if (action < 2 && unused.size() > 1) {
      openreg_tree_node* node = &nodes[unused.back()];
      unused.pop_back();
      node->key = key;
      openreg_tree_insert(&tree, node);
      model.emplace(key, node);
    } else if (!model.empty()) {
      auto found = std::next(model.begin(), static_cast<long>(random() % model.size()));
      if (action == 2) {
        openreg_tree_remove(&tree, found->second);
        unused.push_back(static_cast<size_t>(found->second - nodes.data()));
        model.erase(found);
      } else {
        openreg_tree_node* next = &nodes[unused.back()];
        unused.back() = static_cast<size_t>(found->second - nodes.data());
        openreg_tree_replace(&tree, found->second, next);
        found->second = next;
      }
    }
    const auto above = model.lower_bound(key), behind = model.upper_bound(key);
    const openreg_tree_node *at_least = openreg_tree_at_least(&tree, key), *at_most = openreg_tree_at_most(&tree, key);
    ASSERT_EQ(at_least == nullptr, above == model.end());
    ASSERT_EQ(at_most == nullptr, behind == model.begin());
    ASSERT_EQ(at_least != nullptr ? at_least->key : 0, above != model.end() ? above->first : 0);
    ASSERT_EQ(at_most != nullptr ? at_most->key : 0, behind != model.begin() ? std::prev(behind)->first : 0);
    if (step % 500 != 0) continue;
    std::vector<uint64_t> keys;
    for (const auto& [one, node] : model) keys.push_back(one);
    ASSERT_EQ(keys_of(tree), keys);
  }
}

// A key that is there is found, and not inserted twice.
TEST(TreeTest, FindsOrInserts) {
  Nodes nodes(3);
  openreg_tree tree = {};
  EXPECT_EQ(openreg_tree_find_or_insert(&tree, &nodes[0], 7), nullptr);
  EXPECT_EQ(openreg_tree_find_or_insert(&tree, &nodes[1], 9), nullptr);
  EXPECT_EQ(openreg_tree_find_or_insert(&tree, &nodes[2], 7), &nodes[0]);
  EXPECT_EQ(keys_of(tree), (std::vector<uint64_t>{7, 9}));
}

// Keys that come in order make no list of it, nor does a long time of taking the least and adding a greater one: 10^5
// nodes are at most 60 deep (the expected depth is about 40, the least possible 17).
TEST(TreeTest, StaysShallow) {
  constexpr size_t kCount = 100000;
  Nodes nodes(kCount);
  openreg_tree tree = {};
  for (size_t i = 0; i < kCount; ++i) {
    nodes[i].key = i;
    openreg_tree_insert(&tree, &nodes[i]);
  }
  EXPECT_LE(depth_of(tree.root), 60);
  for (size_t i = 0; i < 2 * kCount; ++i) {
    openreg_tree_node* least = first_of(tree);
    ASSERT_EQ(least->key, i);
    openreg_tree_remove(&tree, least);
    least->key = kCount + i;
    openreg_tree_insert(&tree, least);
  }
  EXPECT_LE(depth_of(tree.root), 60);
}

}  // namespace
