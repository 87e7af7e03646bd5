// SPDX-License-Identifier: BSD-3-Clause
#include "shim/memory/block_list.h"

#include <algorithm>

namespace c10::openreg {
namespace {

thread_local BlockListScope* current_scope = nullptr;

} // namespace

BlockListScope::BlockListScope(BlockList* noted, const BlockList* served)
    : noted_(noted),
      served_(served),
      outer_(current_scope) {
  current_scope = this;
  live_.fetch_add(1, std::memory_order_relaxed);
}

BlockListScope::~BlockListScope() {
  current_scope = outer_;
  live_.fetch_sub(1, std::memory_order_relaxed);
}

BlockListScope* BlockListScope::of_thread() noexcept {
  return current_scope;
}

std::optional<c10::DataPtr> BlockListScope::next(DeviceIndex device, size_t size) {
  if (served_ == nullptr || is_over_) {
    return std::nullopt;
  }
  is_over_ = given_ == served_->size() || (*served_)[given_].device != device || (*served_)[given_].size != size;
  if (is_over_) {
    return std::nullopt;
  }
  const ListedBlock& block = (*served_)[given_];
  ++given_;
  const c10::Device place(c10::DeviceType::PrivateUse1, device);
  return c10::DataPtr(block.address, block.address, &c10::detail::deleteNothing, place);
}

void BlockListScope::allocated(DeviceIndex device, size_t size, void* block) {
  if (noted_ != nullptr && block != nullptr) {
    noted_->push_back({device, size, block});
  }
}

bool BlockListScope::has_given(const void* block) const noexcept {
  return served_ != nullptr &&
      std::any_of(served_->begin(), served_->begin() + static_cast<std::ptrdiff_t>(given_), [block](const auto& given) {
           return given.address == block;
         });
}

} // namespace c10::openreg
