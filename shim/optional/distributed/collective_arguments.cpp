// SPDX-License-Identifier: BSD-3-Clause
#include "shim/optional/distributed/collective_arguments.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "shim/memory/storage.h"

namespace c10::openreg {
namespace {

// Maps dtypes to the library's types: `parts` of `type` each.
struct Elements {
  openreg_dtype type;
  int32_t reduction;
  int64_t parts;
};

constexpr openreg_dtype kBytes = {OPENREG_DTYPE_UINT, 8, 1};

constexpr openreg_dtype type_of(unsigned code, unsigned bits) {
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}

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
          "no bit operations. Without the variable tensors are staged through gloo.");
  }
}

Elements reduced_as(at::ScalarType type, const c10d::ReduceOp& op) {
  const int32_t reduction = library_reduction(op);
  const bool is_linear = reduction == OPENREG_COMM_SUM || reduction == OPENREG_COMM_AVERAGE;
  switch (type) {
    case at::kBool: // 0 or 1: a sum is "or", a product is "and"
      if (reduction != OPENREG_COMM_AVERAGE) {
        const bool is_or = reduction == OPENREG_COMM_SUM || reduction == OPENREG_COMM_MAX;
        return {kBytes, is_or ? OPENREG_COMM_MAX : OPENREG_COMM_MIN, 1};
      }
      break;
    case at::kChar:
      return {type_of(OPENREG_DTYPE_INT, 8), reduction, 1};
    case at::kByte:
      return {kBytes, reduction, 1};
    case at::kInt:
      return {type_of(OPENREG_DTYPE_INT, 32), reduction, 1};
    case at::kLong:
      return {type_of(OPENREG_DTYPE_INT, 64), reduction, 1};
    case at::kUInt32:
      return {type_of(OPENREG_DTYPE_UINT, 32), reduction, 1};
    case at::kUInt64:
      return {type_of(OPENREG_DTYPE_UINT, 64), reduction, 1};
    case at::kHalf:
      return {type_of(OPENREG_DTYPE_FLOAT, 16), reduction, 1};
    case at::kBFloat16:
      return {type_of(OPENREG_DTYPE_BFLOAT, 16), reduction, 1};
    case at::kFloat:
      return {type_of(OPENREG_DTYPE_FLOAT, 32), reduction, 1};
    case at::kDouble:
      return {type_of(OPENREG_DTYPE_FLOAT, 64), reduction, 1};
    case at::kFloat8_e4m3fn:
      return {type_of(OPENREG_DTYPE_FLOAT8_E4M3FN, 8), reduction, 1};
    case at::kFloat8_e5m2:
      return {type_of(OPENREG_DTYPE_FLOAT8_E5M2, 8), reduction, 1};
    case at::kComplexFloat:
      if (is_linear) {
        return {type_of(OPENREG_DTYPE_FLOAT, 32), reduction, 2};
      }
      break;
    case at::kComplexDouble:
      if (is_linear) {
        return {type_of(OPENREG_DTYPE_FLOAT, 64), reduction, 2};
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
  what.type = kBytes;
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
