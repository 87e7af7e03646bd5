/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/kernels.h: operators that a driver runs itself. The driver extension "openreg.kernels", version 1. Valid C11
 * and C++17.
 *
 * A driver that has kernels of its own returns a table of them from extension() of its openreg_driver (driver.h), for
 * the name OPENREG_KERNELS_NAME and the version OPENREG_KERNELS_VERSION:
 *
 *   static const openreg_kernel list[] = {
 *       {.name = "aten::mm", .schema = "aten::mm(Tensor self, Tensor mat2) -> Tensor", .run = my_mm}};
 *   static const openreg_kernels kernels = {.struct_size = sizeof kernels, .version = OPENREG_KERNELS_VERSION,
 *                                           .kernel_size = sizeof list[0], .count = 1, .list = list};
 *
 * An operator of the list runs on the driver's own devices, on device memory, with nothing copied. Every other
 * operator, and every call that a kernel refuses, runs as it would without the table.
 *
 * Names    Operator and overload as PyTorch writes them: "aten::mm", "aten::add.Tensor", "mylibrary::scale". Autograd
 *          comes first: the operators that a derivative calls are looked up by their own names. An operator that PyTorch
 *          composes of others ("aten::linear", "aten::matmul") never reaches a driver: list the others ("aten::mm",
 *          "aten::addmm"). Such names, and unknown ones, are reported once by a warning and not used.
 * Schemas  Arguments come in the order of the operator's schema, which changes between versions of PyTorch. `schema` is
 *          the text that the kernel was written for, as torch.ops.aten.add.Tensor._schema prints it. If the running
 *          PyTorch's differs in names, types, order or results, one warning says so and the operator runs the ordinary
 *          way. int and SymInt count as one type. PyTorch's may have further arguments at the end, with defaults: the
 *          kernel doesn't get them, and a call with another value for one runs the ordinary way. NULL: not compared.
 *          That is safe only for a kernel that finds its arguments by name (openreg_find_argument()), or that is
 *          compiled along with the PyTorch it runs under.
 * Forms    A kernel of the functional form serves the in-place and the out= form too: "aten::add.Tensor" is called for
 *          add_.Tensor and add.out. An operator that programs call only in another form is listed by the name of that
 *          form: "aten::zero_".
 * Results  PyTorch's shape functions determine shapes, strides and types before the call; new results are allocated on
 *          the stream of the call, contents undefined. Operators whose results are views of their arguments, or not
 *          tensors, are not served; neither are operators with a random generator. The kernel is not called if its
 *          results have no elements.
 *
 * Rules of driver.h hold (threads, errors, ownership, what is never done). Besides:
 *   Streams   A kernel queues its work on openreg_kernel_call.stream of device openreg_kernel_call.dev, in order, and
 *             may return before it has ended. It need not wait: its inputs were written earlier on that stream, or the
 *             program has ordered the streams by events.
 *   Lifetime  The call, its values, tensors, shapes, strides, lists and texts are valid until the kernel returns. The
 *             memory of tensors stays valid for work queued on the call's stream; a kernel that uses another stream of
 *             its own must make the call's stream wait for it.
 *   Scratch   call->workspace(call, size) returns `size` bytes of device memory from the device's cache, aligned as
 *             mem_alloc()'s, contents undefined. NULL: out of memory. Then the kernel computes without, refuses, or
 *             returns OPENREG_E_NOMEM, for which set_error() is optional: the runtime knows the reason. The memory
 *             is valid for work that is queued on the call's stream before the kernel returns; later work on that
 *             stream may reuse it. workspace() may call mem_alloc(), so the kernel must not hold a lock that
 *             mem_alloc() takes. It may be called any number of times, from the kernel's thread.
 *   Refusing  OPENREG_E_UNSUPPORTED: "not for these types, layouts or values". The kernel must not have written
 *             anything nor queued work; set_error() is optional here. The call then runs the ordinary way.
 *   Errors    Any other code is an error of the program, 'aten::mm: driver "x": text (CODE)': torch.OutOfMemoryError
 *             for OPENREG_E_NOMEM, else RuntimeError. A failure of work that was queued is reported by the next query
 *             or sync of the stream, as always.
 *
 * Changes are appended only: fields go to the end of a structure and are found by its size.
 *   1  first version
 */
#ifndef OPENREG_KERNELS_H
#define OPENREG_KERNELS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <openreg/driver.h>
#include <openreg/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_KERNELS_NAME "openreg.kernels"
#define OPENREG_KERNELS_VERSION 1u

#define OPENREG_TENSOR_DEVICE_TYPE 12 /* DLPack's kDLExtDev */

/* DLPack's DLTensor, field by field; openreg_as_dltensor() below converts it where dlpack.h is included too. A tensor
 * without dimensions has ndim 0 and one element. Strides count elements, may be 0 (an expanded dimension), are never
 * negative, and are always given. */
typedef struct openreg_tensor {
    void *data;          /* device address of the first element; NULL only without elements */
    int32_t device_type; /* OPENREG_TENSOR_DEVICE_TYPE */
    int32_t device_id;   /* openreg_kernel_call.dev */
    int32_t ndim;
    openreg_dtype dtype;
    const int64_t *shape;   /* ndim sizes; NULL if ndim is 0 */
    const int64_t *strides; /* ndim strides */
    uint64_t byte_offset;   /* 0: `data` includes it */
} openreg_tensor;

/* Kinds of value. A Scalar of the schema may come as any kind of number. So may a Tensor: a CPU tensor without
 * dimensions, such as the 2 in x * 2, comes as its number. */
#define OPENREG_VALUE_NONE 0    /* None, an undefined tensor, or an argument that was not given */
#define OPENREG_VALUE_TENSOR 1  /* tensor */
#define OPENREG_VALUE_TENSORS 2 /* tensors[count]; NULL: None */
#define OPENREG_VALUE_BOOL 3    /* integer 0 or 1, real */
#define OPENREG_VALUE_INT 4     /* integer, real */
#define OPENREG_VALUE_FLOAT 5   /* real */
#define OPENREG_VALUE_COMPLEX 6 /* real, imaginary */
#define OPENREG_VALUE_STRING 7  /* text[count], NUL-terminated UTF-8 */
#define OPENREG_VALUE_BOOLS 8   /* integers[count], each 0 or 1 */
#define OPENREG_VALUE_INTS 9    /* integers[count] */
#define OPENREG_VALUE_FLOATS 10 /* reals[count] */
#define OPENREG_VALUE_DTYPE 11  /* dtype */

/* One argument or result. Fields that its kind does not name are zero. */
typedef struct openreg_value {
    int32_t kind; /* OPENREG_VALUE_* */
    openreg_dtype dtype;
    uint64_t count;
    int64_t integer;
    double real; /* also set for an integer or a bool */
    double imaginary;
    const openreg_tensor *tensor;
    const openreg_tensor *const *tensors;
    const int64_t *integers;
    const double *reals;
    const char *text;
} openreg_value;

typedef struct openreg_kernel openreg_kernel;

typedef struct openreg_kernel_call {
    uint32_t struct_size;
    int32_t dev;                  /* ordinal of the device */
    openreg_driver_stream stream; /* of that device */
    const openreg_kernel *kernel; /* the entry that led here */
    const char *name;             /* the operator that was called: "aten::add_" for a kernel of "aten::add.Tensor" */
    /* In the order of the operator's schema, and named by argument_names; tensors that an out= form writes are at
     * the end. Pointers, so that a value may get more fields. */
    const openreg_value *const *arguments;
    /* The results, which the kernel writes: new tensors, or the arguments that the form writes. */
    const openreg_value *const *results;
    const char *const *argument_names; /* argument_count names, of the schema */
    uint32_t argument_count, result_count;
    void *(*workspace)(const struct openreg_kernel_call *call, uint64_t size); /* bytes; see "Scratch" */
    void *scratch;                                                             /* the runtime's */
} openreg_kernel_call;

/* Element i of each result depends only on elements i of the arguments. With this flag tensor arguments come expanded to
 * the shape of the first result, and an argument may share a result's memory, at the same elements (x.add_(y)). Without
 * it results share no memory with arguments, and the in-place form runs the ordinary way. */
#define OPENREG_KERNEL_ELEMENTWISE (UINT64_C(1) << 0)

struct openreg_kernel {
    const char *name; /* static, "namespace::operator" or "namespace::operator.overload" */
    openreg_status (*run)(openreg_instance, const openreg_kernel_call *call);
    uint64_t flags;     /* OPENREG_KERNEL_* */
    const char *schema; /* static; the schema that PyTorch's must match, see "Schemas". NULL: not compared */
};

/* What extension() returns: constant until close(). */
typedef struct openreg_kernels {
    uint32_t struct_size, version; /* sizeof(openreg_kernels), OPENREG_KERNELS_VERSION as compiled into the driver */
    uint32_t kernel_size;          /* sizeof(openreg_kernel) as compiled into the driver: the distance of two entries */
    uint32_t count;
    const openreg_kernel *list; /* names are unique */
} openreg_kernels;

static_assert(sizeof(openreg_tensor) == 48u, "openreg_tensor is DLPack's DLTensor");

/* Sizes of the first version, frozen for ever. */
#define OPENREG_VALUE_SIZE_1 80u
#define OPENREG_KERNEL_CALL_SIZE_1 80u
#define OPENREG_KERNEL_SIZE_1 32u
#define OPENREG_KERNELS_SIZE_1 24u
static_assert(sizeof(openreg_value) == OPENREG_VALUE_SIZE_1 &&
                  sizeof(openreg_kernel_call) == OPENREG_KERNEL_CALL_SIZE_1 &&
                  sizeof(openreg_kernel) == OPENREG_KERNEL_SIZE_1 && sizeof(openreg_kernels) == OPENREG_KERNELS_SIZE_1,
              "append a field, then freeze its size");

/* ---------------------------------------------------------------------------------------------------------- helpers */

/* The tensor of argument `i`, or NULL if it isn't one. */
OPENREG_HELPER const openreg_tensor *
openreg_tensor_argument(const openreg_kernel_call *call, uint64_t i)
{
    return i < call->argument_count ? call->arguments[i]->tensor : NULL;
}

/* The argument of that name, or NULL if the operator has none. */
OPENREG_HELPER const openreg_value *
openreg_find_argument(const openreg_kernel_call *call, const char *name)
{
    for (uint32_t i = 0; i < call->argument_count; ++i)
        if (strcmp(call->argument_names[i], name) == 0)
            return call->arguments[i];
    return NULL;
}

/* 1 if argument `i` is a bool, an int or a float: then its `real` is its value. */
OPENREG_HELPER int
openreg_is_real_argument(const openreg_kernel_call *call, uint64_t i)
{
    return i < call->argument_count && call->arguments[i]->kind >= OPENREG_VALUE_BOOL &&
           call->arguments[i]->kind <= OPENREG_VALUE_FLOAT;
}

OPENREG_HELPER int
openreg_has_dtype(const openreg_tensor *tensor, uint8_t code, uint8_t bits)
{
    return tensor->dtype.code == code && tensor->dtype.bits == bits && tensor->dtype.lanes == 1;
}

OPENREG_HELPER int64_t
openreg_element_count(const openreg_tensor *tensor)
{
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; ++i)
        count *= tensor->shape[i];
    return count;
}

/* 1 if the elements lie one after the other, the last dimension fastest, or there are none. */
OPENREG_HELPER int
openreg_is_contiguous(const openreg_tensor *tensor)
{
    int64_t expected = 1;
    if (openreg_element_count(tensor) == 0)
        return 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected)
            return 0;
        expected *= tensor->shape[i];
    }
    return 1;
}

#ifdef DLPACK_DLPACK_H_ /* dlpack.h was included before */
static_assert(sizeof(DLTensor) == sizeof(openreg_tensor) &&
                  offsetof(DLTensor, device) == offsetof(openreg_tensor, device_type) &&
                  offsetof(DLTensor, dtype) == offsetof(openreg_tensor, dtype) &&
                  offsetof(DLTensor, shape) == offsetof(openreg_tensor, shape) &&
                  offsetof(DLTensor, strides) == offsetof(openreg_tensor, strides) &&
                  offsetof(DLTensor, byte_offset) == offsetof(openreg_tensor, byte_offset),
              "openreg_tensor is DLPack's DLTensor");

/* For libraries that take DLPack's tensors. `shape` and `strides` belong to the runtime and must not be written. */
OPENREG_HELPER DLTensor
openreg_as_dltensor(const openreg_tensor *tensor)
{
    DLTensor same;
    memcpy(&same, tensor, sizeof same);
    return same;
}
#endif

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_KERNELS_H */
