/* SPDX-License-Identifier: BSD-3-Clause */
/* gpu_nccl.h: the part of NCCL's C API that gpu_comm.c calls, declared here, as its header is seldom installed. RCCL has the
 * same functions, types and numbers. Source: nccl.h of NCCL 2.28.9 (https://docs.nvidia.com/deeplearning/nccl,
 * "NCCL API"); NCCL keeps its ABI within major version 2. Enumerations are passed as int, as compilers do. Internal to
 * drivers/gpu. */
#ifndef OPENREG_DRIVERS_GPU_NCCL_H
#define OPENREG_DRIVERS_GPU_NCCL_H

#include <stddef.h>

#include "gpu_names.h"

#if defined(OPENREG_GPU_HIP) && defined(__HIP_PLATFORM_AMD__)
#define GPU_NCCL_TEXT "RCCL"
#define GPU_NCCL_LIBRARY "librccl.so.1"
#else
#define GPU_NCCL_TEXT "NCCL"
#define GPU_NCCL_LIBRARY "libnccl.so.2"
#endif

/* ncclGetVersion()'s numbers, from 2.9 on: major * 10000 + minor * 100 + patch. */
#define GPU_NCCL_OLDEST 21000      /* bfloat16 and averages */
#define GPU_NCCL_WITH_FLOAT8 22400 /* the 8-bit types */

/* ncclResult_t */
#define GPU_NCCL_SUCCESS 0
#define GPU_NCCL_INVALID_ARGUMENT 4
#define GPU_NCCL_INVALID_USAGE 5
#define GPU_NCCL_REMOTE_ERROR 6
#define GPU_NCCL_IN_PROGRESS 7

/* ncclDataType_t, whose numbers are places in gpu_comm.c's list, and ncclRedOp_t, which has the numbers of comm.h. */
#define GPU_NCCL_TYPES 12
#define GPU_NCCL_FLOAT8 10 /* the first of the 8-bit types */
#define GPU_NCCL_REDUCTIONS 5

typedef struct ncclComm *openreg_nccl_comm;
typedef struct openreg_nccl_id {
    char internal[128];
} openreg_nccl_id; /* passed by value */

/* X(name, result, parameters) */
/* clang-format off */
#define OPENREG_GPU_NCCL_FUNCTIONS(X) \
    X(GetVersion, int, (int *version)) \
    X(GetUniqueId, int, (openreg_nccl_id *id)) \
    X(CommInitRank, int, (openreg_nccl_comm *comm, int size, openreg_nccl_id id, int rank)) \
    X(CommDestroy, int, (openreg_nccl_comm comm)) \
    X(CommAbort, int, (openreg_nccl_comm comm)) \
    X(CommGetAsyncError, int, (openreg_nccl_comm comm, int *result)) \
    X(GetErrorString, const char *, (int result)) \
    X(AllReduce, int, (const void *send, void *recv, size_t count, int type, int reduction, openreg_nccl_comm comm, GPU(Stream_t) stream)) \
    X(Reduce, int, (const void *send, void *recv, size_t count, int type, int reduction, int root, openreg_nccl_comm comm, GPU(Stream_t) stream)) \
    X(Broadcast, int, (const void *send, void *recv, size_t count, int type, int root, openreg_nccl_comm comm, GPU(Stream_t) stream)) \
    X(AllGather, int, (const void *send, void *recv, size_t count, int type, openreg_nccl_comm comm, GPU(Stream_t) stream)) \
    X(ReduceScatter, int, (const void *send, void *recv, size_t count, int type, int reduction, openreg_nccl_comm comm, GPU(Stream_t) stream)) \
    X(Send, int, (const void *send, size_t count, int type, int peer, openreg_nccl_comm comm, GPU(Stream_t) stream)) \
    X(Recv, int, (void *recv, size_t count, int type, int peer, openreg_nccl_comm comm, GPU(Stream_t) stream)) \
    X(GroupStart, int, (void)) \
    X(GroupEnd, int, (void))
/* clang-format on */

#define OPENREG_GPU_NCCL_MEMBER(name, result, parameters) result(*name) parameters;
typedef struct openreg_nccl_functions {
    OPENREG_GPU_NCCL_FUNCTIONS(OPENREG_GPU_NCCL_MEMBER)
    const char *(*GetLastError)(openreg_nccl_comm comm); /* since 2.13; NULL before */
} openreg_nccl_functions;

#endif
