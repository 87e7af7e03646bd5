// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/driver_calls.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "shim/memory/storage.h"

namespace c10::openreg {
namespace {

// How elements are told to the library: `parts` of `type` each.
struct Elements {
  int32_t type;
  int32_t reduction;
  int64_t parts;
};

int32_t library_reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return OPENREG_COMM_SUM;
    case c10d::ReduceOp::AVG:
      return OPENREG_COMM_AVERAGE;
    case c10d::ReduceOp::PRODUCT:
      return OPENREG_COMM_PRODUCT;
    case c10d::ReduceOp::MIN:
      return OPENREG_COMM_MIN;
    case c10d::ReduceOp::MAX:
      return OPENREG_COMM_MAX;
    default:
      C10_THROW_ERROR(
          NotImplementedError,
          "With OPENREG_COMM=1 collectives are the driver's library's, which has SUM, AVG, PRODUCT, MIN and MAX, but "
          "no "
          "bit operations and no premultiplied sums. Without the variable tensors are staged through gloo.");
  }
}

Elements reduced_as(at::ScalarType type, const c10d::ReduceOp& op) {
  const int32_t reduction = library_reduction(op);
  const bool is_linear = reduction == OPENREG_COMM_SUM || reduction == OPENREG_COMM_AVERAGE;
  switch (type) {
    case at::kBool: // 0 or 1: a sum is "or", a product is "and"
      if (reduction != OPENREG_COMM_AVERAGE) {
        const bool is_or = reduction == OPENREG_COMM_SUM || reduction == OPENREG_COMM_MAX;
        return {OPENREG_COMM_UINT8, is_or ? OPENREG_COMM_MAX : OPENREG_COMM_MIN, 1};
      }
      break;
    case at::kChar:
      return {OPENREG_COMM_INT8, reduction, 1};
    case at::kByte:
      return {OPENREG_COMM_UINT8, reduction, 1};
    case at::kInt:
      return {OPENREG_COMM_INT32, reduction, 1};
    case at::kLong:
      return {OPENREG_COMM_INT64, reduction, 1};
    case at::kUInt32:
      return {OPENREG_COMM_UINT32, reduction, 1};
    case at::kUInt64:
      return {OPENREG_COMM_UINT64, reduction, 1};
    case at::kHalf:
      return {OPENREG_COMM_FLOAT16, reduction, 1};
    case at::kBFloat16:
      return {OPENREG_COMM_BFLOAT16, reduction, 1};
    case at::kFloat:
      return {OPENREG_COMM_FLOAT32, reduction, 1};
    case at::kDouble:
      return {OPENREG_COMM_FLOAT64, reduction, 1};
    case at::kFloat8_e4m3fn:
      return {OPENREG_COMM_FLOAT8_E4M3, reduction, 1};
    case at::kFloat8_e5m2:
      return {OPENREG_COMM_FLOAT8_E5M2, reduction, 1};
    case at::kComplexFloat:
      if (is_linear) {
        return {OPENREG_COMM_FLOAT32, reduction, 2};
      }
      break;
    case at::kComplexDouble:
      if (is_linear) {
        return {OPENREG_COMM_FLOAT64, reduction, 2};
      }
      break;
    default:
      break;
  }
  C10_THROW_ERROR(
      TypeError,
      std::string("With OPENREG_COMM=1 collectives are the driver's library's, which can't reduce ") +
          c10::toString(type) + " in this way. Without the variable tensors are staged through gloo.");
}

} // namespace

openreg_collective moved(int32_t kind, const at::Tensor& from, const at::Tensor& to, uint64_t bytes, int peer) {
  openreg_collective what{};
  what.struct_size = sizeof what;
  what.kind = kind;
  what.send = from.defined() ? from.const_data_ptr() : nullptr;
  what.recv = to.defined() ? writable_data(to) : nullptr;
  what.count = bytes;
  what.type = OPENREG_COMM_UINT8;
  what.peer = peer;
  return what;
}

openreg_collective reduced(
    int32_t kind, const at::Tensor& from, const at::Tensor& to, int64_t count, const c10d::ReduceOp& op, int root) {
  const Elements elements = reduced_as(from.scalar_type(), op);
  auto what = moved(kind, from, to, static_cast<uint64_t>(count * elements.parts), root);
  what.type = elements.type;
  what.reduction = elements.reduction;
  return what;
}

} // namespace c10::openreg
