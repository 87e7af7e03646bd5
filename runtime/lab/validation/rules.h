/* SPDX-License-Identifier: BSD-3-Clause */
/* rules.h: the rules that the layer of OPENREG_VALIDATE checks, in the words of driver.h, ipc.h, vmm.h, comm.h and
 * graph.h (a test compares them). Internal. */
#ifndef OPENREG_SRC_VALIDATION_RULES_H
#define OPENREG_SRC_VALIDATION_RULES_H

/* X(name, text) */
/* clang-format off */
#define OPENREG_RULE_MAP(X) \
    /* kept by the driver: errors */ \
    X(ERROR_ONCE, "A slot returns OPENREG_OK, or calls host->set_error() exactly once and returns the same code") \
    X(NO_OUTPUT_ON_FAILURE, "On failure nothing has changed and no out-parameter has been written") \
    X(ELAPSED_EVENTS, "E_INVALID unless both are created with OPENREG_EVENT_TIMING on one device, recorded and complete") \
    /* devices */ \
    X(COUNT_CONSTANT, "Number of devices, >= 0, constant from open() to close()") \
    X(STRUCT_SIZE, "the driver writes no byte beyond that size") \
    X(ACTIVE, "*out = 1 if the device has a live context") \
    X(MEMORY_INFO, "Free and total bytes of the device, free <= total") \
    /* memory */ \
    X(ALIGNMENT, "of mem_alloc()'s addresses, a power of two; 0: as malloc()") \
    X(NO_OVERLAP, "No two live allocations of a process overlap") \
    X(HOST_MEMORY, "Pinned host memory, usable by every device of this driver") \
    X(ALIAS_DISTANCE, "the host's address of a device address, at a constant distance inside one allocation") \
    X(RESERVATION, "multiples of it, and so is the address of a reservation") \
    X(GRANULARITY, "Bytes of the smallest piece that can be mapped: a power of two, constant from open() to close()") \
    X(MAPPED, "memory already, in part or as a whole") \
    X(IPC_HANDLE, "Bytes of a handle: 1 to OPENREG_IPC_HANDLE_MAX, constant from open() to close()") \
    X(OPENED_MEMORY, "The allocation's address in this process") \
    /* streams and events */ \
    X(STREAM_HANDLE, "NULL is the device's default stream") \
    X(EVENT_HANDLE, "a marker; recording again replaces it") \
    X(STREAM_DONE, "*done = 1 if all work queued so far has ended, else 0") \
    X(STREAM_WAITS, "Waits for all work queued so far") \
    X(DEVICE_WAITS, "Returns when all work of the device has ended") \
    X(EVENT_DONE, "*done = 1 if the latest record is complete, or there is none") \
    X(EVENT_WAITS, "Waits for the latest record; returns at once if there is none") \
    X(ELAPSED, "Nanoseconds from start to end") \
    /* host functions */ \
    X(FUNCTION_ONCE, "it runs once, when the work queued before has ended") \
    X(FUNCTION_THREAD, "It runs on a thread of the driver's or of the vendor's") \
    /* extensions */ \
    X(EXTENSION_TABLE, "led by uint32_t struct_size, version; valid until close(); of at least `version`") \
    X(COMM_ID, "Bytes of an id: 1 to OPENREG_COMM_ID_MAX, constant from open() to close()") \
    X(COMM_HANDLE, "driver-owned, from init() to destroy()") \
    /* graphs */ \
    X(CAPTURE_BEGIN, "E_CAPTURE: the default stream, which can't be captured, or a stream that is captured already") \
    X(CAPTURE_END, "there is none, the stream has joined another's, the capture is invalid, a joined stream is not waited for, or it is another thread than begin()'s and the mode is not relaxed") \
    X(CAPTURE_ENDS, "Ends the capture that began on the stream, whatever it returns") \
    X(CAPTURE_INVALID, "With OPENREG_E_CAPTURE, after which the capture is invalid: query, sync and stream_destroy of a captured stream") \
    X(CAPTURE_STATUS, "*out = OPENREG_CAPTURE_NONE, _ACTIVE or _INVALIDATED") \
    X(CAPTURE_MODE, "Exchanges this thread's mode, by which its calls of other work are judged") \
    X(GRAPH_HANDLE, "driver-owned, from end() to destroy_graph()") \
    X(GRAPH_EXEC_HANDLE, "from instantiate() to destroy_exec()") \
    X(GRAPH_FITS, "Gives later launches the arguments of a graph with the same nodes and edges") \
    /* kept by the caller */ \
    X(DEVICE_EXISTS, "`dev` is an ordinal of this driver, 0 <= dev < device_count; -1 means the host, only in copy()") \
    X(SIZE_NOT_ZERO, "A size of 0 is valid, succeeds and does nothing (mem_alloc() is never called with 0)") \
    X(STREAM_ARGUMENTS, "A new stream, `flags` 0, priority between priority_high and priority_low of the device") \
    X(COPY_HOST, "host memory, pinned or not; never both") \
    X(COPY_OVERLAP, "Ranges don't overlap; both stay alive, and the source unchanged, until the copy has completed") \
    X(ALLOCATION_ALIVE, "copy(), fill() and host_alias() get any address inside an allocation, mem_free() what mem_alloc() returned") \
    X(HANDLE_ALIVE, "the runtime passes back exactly what the driver returned") \
    X(EVENT_DEVICE, "`dev` is that of event_create() in all of them") \
    X(DESTROY_UNUSED, "never calls a destroy slot while another call uses the same handle") \
    X(FREED_BEFORE_CLOSE, "The runtime has freed all memory and handles before") \
    X(COMM_RANK, "each a device of one process; rank 0 <= rank < size") \
    X(GRAPH_DEVICE, "Queues all of its nodes on a stream of the device that the capture began on") \
    X(GRAPH_FLAGS, "`flags`: 0") \
    X(GRAPH_MEMORY, "Memory and handles that a node uses are not freed or closed until the graph is destroyed") \
    X(FUNCTION_CALLS_NOTHING, "with no lock of the driver held, and calls no slot")
/* clang-format on */

#define OPENREG_RULE_ENUMERATOR(name, text) OPENREG_RULE_##name,
typedef enum openreg_rule { OPENREG_RULE_MAP(OPENREG_RULE_ENUMERATOR) OPENREG_RULE_COUNT } openreg_rule;
#define OPENREG_RULE_FIRST_OF_CALLER OPENREG_RULE_DEVICE_EXISTS /* from here on the caller has broken it */

#endif
