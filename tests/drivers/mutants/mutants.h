/* SPDX-License-Identifier: BSD-3-Clause */
/* mutants.h: the simulated devices with one defect planted, to show that openreg-check finds it. Valid C and C++.
 *
 * The variable OPENREG_MUTANT names the defect; without it the driver is right. A defect is planted in the wrapper around
 * one slot of the simulated devices' table. */
#ifndef OPENREG_TESTS_DRIVERS_MUTANTS_H
#define OPENREG_TESTS_DRIVERS_MUTANTS_H

/* X(defect, checks that find it, separated by spaces). Each check has to find one. A defect whose name begins with
 * "runtime_" comes with a table without host_alias, so that the runtime copies by the driver; one that begins with
 * "unpinned_" with a table without host_alloc. */
/* clang-format off */
#define OPENREG_MUTANTS(X) \
    /* the table */ \
    X(query_new_table, "table.query") \
    X(query_thread, "table.query") \
    X(name_upper, "table.name") \
    X(half_group, "table.groups") \
    X(flag_unknown, "table.flags") \
    X(flag_of_device, "table.flags") \
    X(alias_missing, "table.flags") \
    X(size_of_later, "table.size") \
    X(table_changes, "table.constant") \
    /* life */ \
    X(open_leaks_file, "lifecycle.repeated runtime.shutdown") \
    X(open_leaks_thread, "lifecycle.repeated") \
    X(open_leaks_memory, "lifecycle.repeated") \
    X(first_use_leaks, "lifecycle.repeated") \
    X(opens_differently, "lifecycle.again") \
    X(option_refused, "lifecycle.unknown_option") \
    X(option_hides, "lifecycle.unknown_option") \
    X(option_unnamed, "lifecycle.bad_option") \
    X(option_other_code, "lifecycle.bad_option") \
    X(option_zero, "lifecycle.bad_option") \
    X(option_prefix, "lifecycle.bad_option") \
    X(option_unused, "lifecycle.bad_option") \
    X(count_by_state, "lifecycle.count") \
    X(count_one_more, "lifecycle.count_unopened") \
    X(count_spoils_fork, "lifecycle.count_fork") \
    X(describe_other_name, "lifecycle.describe") \
    X(describe_beyond, "lifecycle.describe_capacity") \
    X(describe_all, "lifecycle.describe") \
    X(describe_leaks_memory, "lifecycle.describe_repeated") \
    X(describe_leaks_thread, "lifecycle.describe_repeated") \
    /* the process */ \
    X(prints, "process.output") \
    X(handler, "process.handlers") \
    X(thread_unmasked, "process.thread_signals") \
    X(interrupted, "process.interrupted") \
    X(exit_aborts, "process.exit") \
    X(fork_breaks_parent, "process.fork_parent") \
    X(fork_safe_claimed, "process.fork_child") \
    /* errors */ \
    X(error_on_success, "errors.success") \
    X(nomem_code, "errors.memory memory.exhaustion runtime.out_of_memory") \
    X(nomem_silent, "errors.memory") \
    X(nomem_twice, "errors.memory") \
    X(nomem_writes, "errors.memory") \
    X(nomem_two_codes, "errors.memory") \
    X(nomem_swallowed, "errors.memory") \
    X(host_nomem_code, "errors.host_memory") \
    X(elapsed_always, "errors.elapsed") \
    X(elapsed_waits, "errors.elapsed_pending") \
    X(elapsed_any_device, "errors.elapsed_devices") \
    X(zero_refused, "errors.zero_size") \
    /* information */ \
    X(alignment_odd, "info.fields runtime.devices") \
    X(priorities_swapped, "info.fields") \
    X(name_empty, "info.fields") \
    X(most_refused, "info.fields") \
    X(most_unsaid, "info.fields") \
    X(info_overruns, "info.size") \
    X(info_of_first, "info.devices") \
    X(info_changes, "info.constant") \
    X(memory_swapped, "info.memory") \
    X(memory_constant, "info.memory_use") \
    X(memory_of_first, "info.memory_devices") \
    X(total_in_kib, "info.totals") \
    X(active_never, "info.active") \
    X(active_by_asking, "info.active_asks") \
    X(bind_redirects, "info.bind") \
    X(native_same, "info.native_stream") \
    X(extension_any, "info.extension") \
    /* the vendor's library */ \
    X(vendor_error_dropped, "probe.errors") \
    X(vendor_error_mute, "probe.errors") \
    X(vendor_error_forgotten, "probe.errors") \
    X(vendor_device_left, "probe.device") \
    /* memory */ \
    X(misaligned, "memory.alignment") \
    X(flags_ignored, "memory.description") \
    X(alignment_ignored, "memory.description") \
    X(overlaps, "memory.disjoint runtime.allocator") \
    X(free_clobbers, "memory.contents") \
    X(oom_loses, "memory.exhaustion") \
    X(free_early, "memory.free_waits") \
    X(free_own_device, "memory.free_waits_devices") \
    X(alloc_late, "memory.ready") \
    X(alias_off, "memory.alias_distance") \
    X(alias_other, "memory.alias_contents") \
    X(unfenced, "memory.fence") \
    X(host_overlaps, "host_memory.contents") \
    X(host_for_first, "host_memory.devices") \
    /* copies and fills */ \
    X(to_last_byte, "copy.to_device") \
    X(to_overrun, "copy.to_device") \
    X(from_last_byte, "copy.from_device") \
    X(from_offset, "copy.from_device") \
    X(pinned_short, "copy.to_device_pinned") \
    X(pinned_overrun, "copy.from_device_pinned") \
    X(words_alone, "copy.on_device") \
    X(peer_swapped, "copy.between_devices") \
    X(peer_nothing, "copy.between_devices") \
    X(peer_early, "copy.between_devices") \
    X(peer_no_wait, "copy.between_devices") \
    X(within_nothing, "copy.within") \
    X(size_26_bits, "copy.large") \
    X(pinned_64_mib, "copy.large") \
    X(peer_64_mib, "copy.large") \
    X(fill_64_mib, "fill.large") \
    X(tail_to, "copy.tails") \
    X(tail_from_pinned, "copy.tails") \
    X(tail_other_device, "copy.tails") \
    X(tail_peer, "copy.peer_tails") \
    X(tail_peer_back, "copy.peer_tails") \
    X(offset_32_bits, "wide.offsets") \
    X(offset_32_bits_fill, "wide.offsets") \
    X(size_32_bits_to, "wide.sizes") \
    X(size_32_bits_from, "wide.sizes") \
    X(size_32_bits_fill, "wide.sizes") \
    X(size_32_bits_device, "wide.on_device") \
    X(reorders, "copy.order") \
    X(idle_overtakes, "copy.order fill.order") \
    X(fill_words, "fill.bytes") \
    X(fill_signed, "fill.bytes") \
    X(fill_other_stream, "fill.order") \
    /* streams */ \
    X(stream_twice, "stream.handles") \
    X(stream_null_refused, "stream.handles") \
    X(sync_not, "stream.sync") \
    X(sync_default_not, "stream.sync_default") \
    X(device_sync_not, "stream.device_sync") \
    X(device_sync_default, "stream.device_sync") \
    X(device_sync_16, "stream.device_sync") \
    X(query_done, "stream.query stream.query_pending") \
    X(query_never_done, "stream.query stream.query_pending") \
    X(default_waits, "stream.apart") \
    X(destroy_drops, "stream.destroy") \
    X(destroy_drops_func, "stream.destroy") \
    X(destroy_drops_fill, "stream.destroy") \
    X(wait_not, "stream.wait stream.wait_devices") \
    X(wait_not_devices, "stream.wait_devices") \
    X(wait_unrecorded, "stream.wait_unrecorded") \
    X(wait_latest, "stream.wait_replaced") \
    X(unpinned_wait_latest, "stream.wait_replaced") \
    X(unpinned_wait_dropped, "stream.wait_replaced") \
    X(unpinned_func_apart, "host_func.order") \
    X(wait_sometimes, "stream.messages") \
    /* events */ \
    X(event_done, "event.query event.query_pending") \
    X(event_never_done, "event.query") \
    X(event_sync_not, "event.sync") \
    X(unrecorded_pending, "event.unrecorded") \
    X(event_sync_more, "event.sync_exact") \
    X(event_first_record, "event.latest") \
    X(event_one_flag, "event.replaced") \
    X(event_twice, "event.handles") \
    X(event_null_refused, "event.handles") \
    X(event_busy, "event.destroy") \
    X(elapsed_us, "event.elapsed runtime.events") \
    X(elapsed_ms, "event.elapsed") \
    X(elapsed_submitted, "event.elapsed") \
    X(elapsed_backwards, "event.elapsed_order") \
    /* host functions */ \
    X(func_early, "host_func.once runtime.host_func") \
    X(func_twice, "host_func.once") \
    X(func_detached, "host_func.order host_func.waits") \
    X(func_inline, "host_func.thread") \
    X(func_locked, "host_func.unlocked") \
    /* threads */ \
    X(racy_copy, "thread.model") \
    X(func_of_stream, "thread.one_stream") \
    X(racy_event, "thread.handles") \
    X(list_unlocked, "thread.meeting") \
    X(copy_in_words, "thread.neighbours") \
    X(error_shared, "thread.errors") \
    X(sync_locked, "thread.waiting") \
    /* leaks */ \
    X(event_leaked, "leak.events") \
    X(stream_leaked, "leak.streams") \
    X(busy_kept_to_close, "leak.streams") \
    X(host_leaked, "leak.host_memory") \
    X(host_abort, "runtime.pinned") \
    X(alloc_leaks, "leak.memory") \
    X(free_forgets, "leak.device_memory") \
    X(copy_leaks, "leak.work") \
    X(to_leaks, "leak.copies") \
    X(from_leaks, "leak.copies") \
    X(from_odd_leaks, "leak.copies") \
    X(small_rarely, "leak.copies leak.peer_copies") \
    X(pinned_to_leaks, "leak.copies") \
    X(pinned_from_leaks, "leak.copies") \
    X(large_leaks, "leak.copies") \
    X(peer_leaks, "leak.peer_copies") \
    X(peer_back_leaks_device, "leak.peer_copies") \
    X(record_leaks, "leak.records") \
    X(stream_query_leaks, "leak.asks") \
    X(event_query_leaks, "leak.asks") \
    X(event_elapsed_leaks, "leak.asks") \
    X(host_func_leaks, "leak.host_funcs") \
    X(func_rarely, "leak.host_funcs") \
    X(func_twice_rarely, "leak.host_funcs") \
    X(refusal_leaks, "leak.refused") \
    X(host_refusal_leaks, "leak.refused") \
    X(elapsed_refusal_leaks, "leak.refused") \
    X(open_refusal_leaks, "leak.refused") \
    X(streams_abort, "leak.exhaustion") \
    X(events_other_code, "leak.exhaustion") \
    /* extensions */ \
    X(ipc_offset, "ipc.memory") \
    X(ipc_own, "ipc.memory") \
    X(ipc_any, "ipc.handles") \
    X(ipc_empty, "ipc.altered") \
    X(ipc_beyond, "ipc.altered") \
    X(ipc_size_short, "ipc.size") \
    X(vmm_loses, "vmm.memory") \
    X(vmm_odd_step, "vmm.granularity") \
    X(vmm_end_only, "vmm.memory") \
    X(vmm_first_piece, "vmm.parts") \
    X(vmm_one_call, "vmm.parts") \
    X(vmm_what_there_is, "vmm.parts") \
    X(vmm_fills_up, "vmm.parts") \
    X(vmm_early, "vmm.waits") \
    X(vmm_release_early, "vmm.waits") \
    X(vmm_any_size, "vmm.ranges") \
    X(vmm_maps_twice, "vmm.ranges") \
    X(vmm_keeps, "vmm.accounts") \
    /* collectives */ \
    X(comm_hole, "comm.table") \
    X(comm_any_version, "comm.table") \
    X(comm_alone_nothing, "comm.alone") \
    X(comm_any_rank, "comm.ranks") \
    X(comm_id_twice, "comm.init") \
    X(comm_init_early, "comm.init") \
    X(comm_average_sums, "comm.all_reduce comm.reduce comm.reduce_scatter") \
    X(comm_signed, "comm.all_reduce") \
    X(comm_doubles, "comm.all_reduce") \
    X(comm_refuses_late, "comm.all_reduce") \
    X(comm_reduce_first, "comm.reduce") \
    X(comm_reduce_everywhere, "comm.reduce") \
    X(comm_broadcast_first, "comm.broadcast comm.in_place") \
    X(comm_broadcast_but_root, "comm.broadcast") \
    X(comm_gather_reversed, "comm.all_gather") \
    X(comm_scatter_first, "comm.reduce_scatter") \
    X(comm_to_all_own, "comm.all_to_all") \
    X(comm_message_short, "comm.messages") \
    X(comm_group_first, "comm.group") \
    X(comm_group_half, "comm.unsupported") \
    X(comm_uneven_even, "comm.uneven") \
    X(comm_uneven_first, "comm.uneven") \
    X(comm_id_changes, "comm.id") \
    X(comm_id_overruns, "comm.id") \
    X(comm_group_serial, "comm.group") \
    X(comm_in_place_clears, "comm.in_place") \
    X(comm_words, "comm.counts") \
    X(comm_overruns, "comm.counts") \
    X(comm_zero_refused, "comm.counts") \
    X(comm_type_any, "comm.unsupported") \
    X(comm_other_stream, "comm.stream") \
    X(comm_reads_early, "comm.stream") \
    X(comm_ends_late, "comm.stream") \
    X(comm_call_waits, "comm.returns") \
    X(comm_error_waits, "comm.get_error") \
    X(comm_error_always, "comm.get_error") \
    X(comm_abort_hangs, "comm.abort") \
    X(comm_abort_forgotten, "comm.abort") \
    X(comm_abort_once, "comm.abort") \
    X(comm_null_refused, "comm.leaks") \
    X(comm_leaks_thread, "comm.leaks") \
    X(comm_leaks_file, "comm.leaks") \
    X(comm_many_two, "comm.many") \
    X(comm_many_roots, "comm.many") \
    X(comm_id_local, "comm.processes") \
    X(comm_peer_internal, "comm.peer") \
    X(comm_peer_passes, "comm.peer") \
    X(comm_peer_holds, "comm.peer") \
    /* graphs */ \
    X(graph_runs_at_once, "graph.nothing_runs") \
    X(graph_copies_contents, "graph.replay") \
    X(graph_reversed, "graph.nodes") \
    X(graph_own_stream, "graph.stream") \
    X(graph_empty_refused, "graph.empty") \
    X(graph_func_once, "graph.host_func") \
    X(graph_func_at_capture, "graph.host_func") \
    X(graph_one_for_all, "graph.two") \
    X(graph_destroy_drops, "graph.destroy") \
    X(graph_launches_overlap, "graph.launches") \
    X(graph_fork_apart, "graph.fork") \
    X(graph_unjoined_any, "graph.unjoined") \
    X(graph_isolation_any, "graph.isolation") \
    X(graph_merge_any, "graph.merge") \
    X(graph_begin_default, "graph.begin") \
    X(graph_begin_twice, "graph.begin") \
    X(graph_thread_any, "graph.thread") \
    X(graph_sync_any, "graph.sync") \
    X(graph_refusal_valid, "graph.sync") \
    X(graph_stuck, "graph.sync") \
    X(graph_query_any, "graph.query") \
    X(graph_event_any, "graph.event") \
    X(graph_device_any, "graph.device_sync") \
    X(graph_no_memory, "graph.memory") \
    X(graph_update_ignored, "graph.update") \
    X(graph_update_any, "graph.update_differs") \
    X(graph_leaks, "graph.leaks") \
    /* kernels */ \
    X(kernel_name_twice, "kernel.table") \
    X(kernel_schema, "kernel.table") \
    X(kernel_workspace, "kernel.values") \
    X(kernel_alpha, "kernel.values") \
    X(kernel_strides, "kernel.strides") \
    X(kernel_beside, "kernel.strides") \
    X(kernel_bound_device, "kernel.values kernel.layers") \
    X(kernel_first_device, "kernel.values kernel.products") \
    X(kernel_clears, "kernel.in_place") \
    X(kernel_types, "kernel.refusals") \
    X(kernel_refuses_late, "kernel.refusals") \
    X(kernel_mm_two_types, "kernel.refusals") \
    X(kernel_index_any_type, "kernel.refusals") \
    X(kernel_stream, "kernel.stream") \
    X(kernel_in_place_nothing, "kernel.in_place") \
    X(kernel_int64_halves, "kernel.values") \
    X(kernel_mm_transposed, "kernel.strides") \
    X(kernel_four_dims, "kernel.shapes") \
    X(kernel_eight_dims, "kernel.shapes") \
    X(kernel_int_scalar, "kernel.shapes") \
    X(kernel_number_outside, "kernel.shapes") \
    X(kernel_uint_signed, "kernel.shapes") \
    X(kernel_scalar_double, "kernel.shapes") \
    X(kernel_offset, "kernel.shapes") \
    X(kernel_nothing, "kernel.shapes") \
    X(kernel_nan, "kernel.special") \
    X(kernel_inner_zero, "kernel.products") \
    X(kernel_mm_256, "kernel.products") \
    X(kernel_mm_tile, "kernel.products") \
    X(kernel_mm_halves, "kernel.products") \
    X(kernel_bias_row, "kernel.products") \
    X(kernel_bias_number, "kernel.products") \
    X(kernel_beta, "kernel.products") \
    X(kernel_sum_one_dim, "kernel.reductions") \
    X(kernel_sum_256, "kernel.reductions") \
    X(kernel_many, "kernel.large") \
    X(kernel_groups, "kernel.large") \
    X(kernel_sum_groups, "kernel.large") \
    X(kernel_offset_32_bits, "kernel.wide") \
    X(kernel_index_32_bits, "kernel.wide") \
    X(kernel_sum_halves, "kernel.sums") \
    X(kernel_gradient, "kernel.shapes") \
    X(kernel_unused, "kernel.shapes") \
    X(kernel_softmax_last, "kernel.layers") \
    X(kernel_softmax_over, "kernel.layers") \
    X(kernel_softmax_8, "kernel.layers") \
    X(kernel_softmax_reads, "kernel.layers") \
    X(kernel_pool_padding, "kernel.windows") \
    X(kernel_pool_square, "kernel.windows") \
    X(kernel_pool_place, "kernel.windows") \
    X(kernel_cat_over, "kernel.moves") \
    X(kernel_cat_first, "kernel.moves") \
    X(kernel_cat_64, "kernel.moves") \
    X(kernel_index_dense, "kernel.indices") \
    X(kernel_leaks, "kernel.leaks") \
    X(first_kernel_leaks, "kernel.leaks") \
    X(kernel_shared, "kernel.threads") \
    X(kernel_first_stream, "kernel.streams") \
    X(kernel_softmax_any_type, "kernel.refusals") \
    X(kernel_refusal_writes, "kernel.layers") \
    /* where calls fail by plan */ \
    X(frees_in_a_row, "fault.out_of_memory") \
    X(byte_in_word, "fault.error") \
    X(destroy_unsynced_leaks, "fault.device_lost lifecycle.busy_streams") \
    /* behind the runtime */ \
    X(runtime_last_byte, "runtime.copy") \
    X(runtime_pinned_short, "runtime.pinned") \
    X(runtime_wait_not, "runtime.streams") \
    X(runtime_racy_copy, "runtime.threads")

/* X(oddity, checks that could take it for a defect): the driver is right. */
#define OPENREG_ODD(X) \
    X(odd_first_calls, "leak.work") \
    X(odd_first_opens, "lifecycle,runtime.shutdown") \
    X(odd_host_memory, "copy.order,copy.tails,leak.copies,stream.wait,event.replaced,memory.free,runtime.pinned,host_func.order") \
    X(odd_queues, "copy.order,leak.work,leak.peer,memory,thread.model,thread.one,lifecycle.busy,runtime.streams,runtime.events,runtime.host_func") \
    X(odd_priorities, "info,stream.handles,runtime.streams") \
    X(odd_frees, "lifecycle.busy,memory,leak.memory,leak.device,errors,runtime.allocator,runtime.out,fault.out") \
    X(odd_lock, "thread.model,thread.one,thread.waiting,stream.wait,event.query,leak.work") \
    X(odd_slow, "lifecycle.busy,thread.one,errors,stream.wait,event.elapsed,leak.memory,runtime.copy") \
    X(odd_cache, "memory,info.memory,leak.memory,leak.device,errors.memory,runtime.allocator,runtime.out,fault.out") \
    X(odd_kernels, "kernel.table,kernel.refusals") \
    X(odd_kernels_of_first, "kernel") \
    X(odd_most, "info,memory,copy,errors,leak.memory,leak.device,leak.refused,kernel,runtime,fault,wide") \
    X(odd_alignment, "info,memory.alignment,memory.disjoint,copy.on_device,kernel.values,kernel.shapes,runtime.devices,runtime.allocator")

/* Of kernels that the checks in C have no reference for: level 3 finds them, and tests/python/tools/test_check_level3.py
 * says by which check. */
#define OPENREG_MUTANTS_OF_LEVEL_3(X) \
    X(kernel_out_nothing, "")
/* clang-format on */

#define OPENREG_MUTANT_VARIABLE "OPENREG_MUTANT"

#endif
