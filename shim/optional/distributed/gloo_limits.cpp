// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/gloo_limits.h"
#include "shim/base/device_name.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <array>

namespace c10::openreg {
namespace {

bool is_carried(at::ScalarType type, bool has_complex) {
  constexpr std::array kTypes = {
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte, at::kBool, at::kInt, at::kLong};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end() ||
      (has_complex && (type == at::kComplexFloat || type == at::kComplexDouble));
}

const char* name_of_reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::AVG:
      return "AVG";
    case c10d::ReduceOp::PRODUCT:
      return "PRODUCT";
    case c10d::ReduceOp::MIN:
      return "MIN";
    case c10d::ReduceOp::MAX:
      return "MAX";
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    case c10d::ReduceOp::BXOR:
      return "BXOR";
    default:
      return "PREMUL_SUM";
  }
}

} // namespace

void GlooLimits::see(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return;
  }
  if (!first_.has_value()) {
    first_ = tensor.device();
  }
  TORCH_CHECK(
      tensor.device().type() == first_->type(),
      "The tensors of a collective must all be of ",
      device_name(),
      " or all of the CPU, but they are on ",
      *first_,
      " and ",
      tensor.device(),
      ".");
  TORCH_CHECK_TYPE(
      !tensor.is_privateuseone() || is_carried(tensor.scalar_type(), has_complex_),
      "Invalid scalar type\nCollectives of ",
      device_name(),
      " tensors are carried out by gloo, which has no ",
      c10::getDtypeNames(tensor.scalar_type()).first,
      " here. send() and recv() take any type; so does a collective that moves data for tensor.view(torch.uint8).");
}

void GlooLimits::see(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    see(tensor);
  }
}

void GlooLimits::see(const std::vector<std::vector<at::Tensor>>& lists) {
  for (const auto& tensors : lists) {
    see(tensors);
  }
}

void require_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (!tensor.defined() || !tensor.is_privateuseone()) {
    return;
  }
  const auto type = tensor.scalar_type();
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return;
    case c10d::ReduceOp::AVG:
      TORCH_CHECK(
          !c10::isIntegralType(type, /*includeBool=*/true),
          "result type Float can't be cast to the desired output type ",
          c10::toString(type),
          "\nReduceOp.AVG is for floating-point and complex tensors.");
      return;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::MAX:
      TORCH_CHECK(!c10::isComplexType(type), "Cannot use ReduceOp.", name_of_reduction(op), " with complex dtype");
      return;
    case c10d::ReduceOp::BAND:
    case c10d::ReduceOp::BOR:
    case c10d::ReduceOp::BXOR:
      TORCH_CHECK(
          c10::isIntegralType(type, /*includeBool=*/true),
          "Cannot use ReduceOp.",
          name_of_reduction(op),
          " with non-integral dtype");
      return;
    default:
      TORCH_CHECK(false, "Cannot use ReduceOp.", name_of_reduction(op), " with Gloo");
  }
}

void require_reduction(const std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op) {
  for (const auto& tensor : tensors) {
    require_reduction(tensor, op);
  }
}

void require_one_type(const at::Tensor& first, const std::vector<at::Tensor>& others) {
  for (const auto& other : others) {
    TORCH_CHECK_TYPE(
        !first.is_privateuseone() || first.scalar_type() == other.scalar_type(),
        "The tensors of a collective must have one type, but there are ",
        first.scalar_type(),
        " and ",
        other.scalar_type());
  }
}

void require_own(int64_t given, int64_t kept, const char* what, const char* where) {
  TORCH_CHECK(
      given == kept,
      "The ",
      what,
      " of a rank must have as many elements as the ",
      where,
      " that is its own: ",
      kept,
      ", and not ",
      given);
}

void require_peer(const std::vector<at::Tensor>& tensors, int peer, int own, int size) {
  TORCH_CHECK(
      tensors.empty() || !tensors.front().is_privateuseone() || (peer >= 0 && peer < size && peer != own),
      "Rank ",
      own,
      " of ",
      size,
      " can't send to or receive from rank ",
      peer,
      " of its group.");
}

void require_parts(const at::Tensor& tensor, const std::vector<int64_t>& parts, int size) {
  if (!tensor.is_privateuseone()) {
    return;
  }
  TORCH_CHECK(
      std::all_of(parts.begin(), parts.end(), [](int64_t part) { return part >= 0; }),
      "Split sizes must not be negative");
  c10d::checkSplitSizes(parts, tensor, size);
}

} // namespace c10::openreg
