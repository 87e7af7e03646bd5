/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_check.c: the caching allocator's own invariants (cache_check.h). */
#include "cache_check.h"

#include <stdarg.h>
#include <stdio.h>

#include "driver/device_table.h"
#include "memory/cache_internal.h"

typedef struct walk {
  struct openreg_cache* cache;
  char* text;
  size_t size;
  int is_wrong;
  int64_t live[OPENREG_POOLS], live_bytes[OPENREG_POOLS], requested[OPENREG_POOLS]; /* allocated and awaiting */
  int64_t segments[OPENREG_POOLS], reserved[OPENREG_POOLS];
  int64_t split[OPENREG_POOLS], split_bytes[OPENREG_POOLS];
  int64_t waiting, oversize;
  int64_t free, hot;          /* blocks met in segments, less those met in lists */
  uint64_t free_sum, hot_sum; /* of their addresses, likewise */
} walk;

__attribute__((format(printf, 2, 3))) static void blame(walk* in, const char* format, ...) {
  va_list arguments;
  if (in->is_wrong) return;
  in->is_wrong = 1;
  va_start(arguments, format);
  (void)vsnprintf(in->text, in->size, format, arguments);
  va_end(arguments);
}

#define CHECK(in, condition, ...)               \
  do {                                          \
    if (!(condition)) blame((in), __VA_ARGS__); \
  } while (0)

static void see_block(walk* in, const openreg_segment* segment, const openreg_block* block) {
  const int kind = segment->pool->kind;
  const uint64_t offset = (uint64_t)(block->address - segment->start);
  const openreg_block* const next = block->next;
  CHECK(in, block->segment == segment, "block %p names another segment", (void*)block->address);
  CHECK(in, block->size > 0 && block->size % OPENREG_BLOCK_UNIT == 0, "block %p has %llu bytes", (void*)block->address,
        (unsigned long long)block->size);
  CHECK(in, openreg_block_index_at(segment->index, offset) == block, "block %p is not in the index",
        (void*)block->address);
  CHECK(in, next == NULL || (next->previous == block && next->address == block->address + block->size),
        "block %p and the next one don't meet", (void*)block->address);
  CHECK(in, next == NULL || block->state != OPENREG_BLOCK_FREE || next->state != OPENREG_BLOCK_FREE,
        "block %p and the next one are both free", (void*)block->address);
  switch (block->state) {
    case OPENREG_BLOCK_FREE:
      in->free++;
      in->free_sum += (uintptr_t)block->address;
      if (block->previous != NULL || next != NULL) {
        in->split[kind]++;
        in->split_bytes[kind] += (int64_t)block->size;
      }
      return;
    case OPENREG_BLOCK_HOT:
      in->hot++;
      in->hot_sum += (uintptr_t)block->address;
      return;
    case OPENREG_BLOCK_AWAITING_FREE:
      in->waiting += block->waiting > 0;
      break;
    default:
      break;
  }
  in->live[kind]++;
  in->live_bytes[kind] += (int64_t)block->size;
  CHECK(in, block->u.used.requested <= block->size, "block %p has %llu bytes for a request of %llu",
        (void*)block->address, (unsigned long long)block->size, (unsigned long long)block->u.used.requested);
  in->requested[kind] +=
      block->waiting > 0 && block->state == OPENREG_BLOCK_AWAITING_FREE ? 0 : (int64_t)block->u.used.requested;
}

static void see_segment(walk* in, const openreg_segment* segment) {
  const int kind = segment->pool->kind;
  uint64_t size = 0;
  const openreg_segment* growing = LIST_FIRST(&segment->pool->growing);
  CHECK(in, segment->first != NULL && segment->first->previous == NULL && segment->first->address == segment->start,
        "segment %p does not begin with its first block", (void*)segment->start);
  CHECK(in, *segment->all.le_prev == segment, "the list of segments is broken");
  CHECK(in, segment->room == 0 || segment->size <= segment->room, "segment %p is beyond its room",
        (void*)segment->start);
  for (; segment->room > 0 && growing != segment; growing = LIST_NEXT(growing, growing))
    if (growing == NULL) {
      blame(in, "segment %p is not among those that grow", (void*)segment->start);
      break;
    }
  for (const openreg_block* block = segment->first; block != NULL && !in->is_wrong; block = block->next) {
    see_block(in, segment, block);
    size += block->size;
  }
  CHECK(in, size == segment->size, "the blocks of segment %p have %llu bytes, and it has %llu", (void*)segment->start,
        (unsigned long long)size, (unsigned long long)segment->size);
  in->segments[kind]++;
  in->reserved[kind] += (int64_t)segment->size;
  in->oversize += segment->oversize;
}

static void see_listed(walk* in, const openreg_pool* pool, const openreg_block* block, int is_free) {
  CHECK(in, block->segment->pool == pool, "block %p is in another pool's list", (void*)block->address);
  CHECK(in, block->state == (is_free ? OPENREG_BLOCK_FREE : OPENREG_BLOCK_HOT), "block %p of state %d is in a list",
        (void*)block->address, block->state);
  if (is_free) {
    unsigned row, bin;
    openreg_bin_of(block->size, &row, &bin);
    CHECK(in, row == block->row && bin == block->bin, "block %p is in the wrong bin", (void*)block->address);
    in->free--;
    in->free_sum -= (uintptr_t)block->address;
  } else {
    in->hot--;
    in->hot_sum -= (uintptr_t)block->address;
  }
}

/* A list whose bit isn't set is not looked at, here or by the allocator: its blocks are found missing. */
static void see_bin(walk* in, const openreg_pool* pool, unsigned row, unsigned bin) {
  if (row < OPENREG_EXACT_ROWS) {
    for (const openreg_block* at = pool->free.exact[row][bin]; at != NULL && !in->is_wrong; at = at->u.free.next)
      see_listed(in, pool, at, 1);
    return;
  }
  openreg_tree_node* node = openreg_tree_at_least(&pool->free.sized[row - OPENREG_EXACT_ROWS][bin], 0);
  for (; node != NULL && !in->is_wrong; node = openreg_tree_beside(node, 1))
    for (const openreg_block* at = openreg_block_of_node(node); at != NULL && !in->is_wrong; at = at->u.free.next) {
      CHECK(in, at->size == node->key, "block %p of %llu bytes is listed with %llu", (void*)at->address,
            (unsigned long long)at->size, (unsigned long long)node->key);
      see_listed(in, pool, at, 1);
    }
}

static void see_pool(walk* in, const openreg_pool* pool) {
  for (unsigned row = 0; row < OPENREG_BIN_ROWS; ++row)
    for (unsigned bin = 0; bin < 32; ++bin)
      if ((pool->free.rows >> row & 1) != 0 && (pool->free.bins[row] >> bin & 1) != 0) see_bin(in, pool, row, bin);
  if (pool->hot != NULL) see_listed(in, pool, pool->hot, 0);
  for (unsigned place = 0; place < OPENREG_WARM_SIZES; ++place)
    for (const openreg_block* at = pool->warm[place]; at != NULL && !in->is_wrong; at = at->u.used.warm)
      see_listed(in, pool, at, 0);
}

static void see_private(walk* in, const openreg_private_pool* pool) {
  int64_t segments = 0, reserved = 0;
  for (const openreg_segment* at = LIST_FIRST(&pool->own_segments); at != NULL; at = LIST_NEXT(at, own)) {
    CHECK(in, at->pool->owner->private_pool == pool, "segment %p is in another private pool", (void*)at->start);
    segments++;
    reserved += (int64_t)at->size;
  }
  CHECK(in, segments <= pool->segments, "a private pool has %lld segments and counts %lld", (long long)segments,
        (long long)pool->segments);
  CHECK(in, reserved == openreg_stat_current(pool->reserved), "a private pool has %lld bytes and counts %lld",
        (long long)reserved, (long long)openreg_stat_current(pool->reserved));
}

static void compare(walk* in, const char* name, int64_t counted, int64_t found) {
  CHECK(in, counted == found, "%s: %lld are counted, %lld found", name, (long long)counted, (long long)found);
}

static void see_cache(walk* in) {
  const openreg_cache_stats* const stats = &in->cache->stats;
  for (const openreg_segment* at = LIST_FIRST(&in->cache->segments); at != NULL && !in->is_wrong;
       at = LIST_NEXT(at, all))
    see_segment(in, at);
  for (const openreg_stream_pools* at = LIST_FIRST(&in->cache->streams); at != NULL && !in->is_wrong;
       at = LIST_NEXT(at, all)) {
    see_pool(in, &at->small);
    see_pool(in, &at->large);
  }
  for (const openreg_private_pool* at = LIST_FIRST(&in->cache->private_pools); at != NULL && !in->is_wrong;
       at = LIST_NEXT(at, all))
    see_private(in, at);
  compare(in, "free blocks outside of lists", 0, in->free);
  compare(in, "hot blocks outside of lists", 0, in->hot);
  CHECK(in, in->free_sum == 0 && in->hot_sum == 0, "lists hold other blocks than segments do");
  compare(in, "waiting blocks", in->cache->waiting_blocks, in->waiting);
  compare(in, "oversize segments", stats->oversize_segments.current, in->oversize);
  for (int kind = OPENREG_POOL_SMALL; kind <= OPENREG_POOL_LARGE; ++kind) {
    compare(in, "blocks", stats->allocation[kind].current + stats->waiting[kind].current, in->live[kind]);
    compare(in, "bytes", stats->allocated_bytes[kind].current + stats->waiting_bytes[kind].current,
            in->live_bytes[kind]);
    compare(in, "requested bytes", stats->requested_bytes[kind].current, in->requested[kind]);
    compare(in, "segments", stats->segment[kind].current, in->segments[kind]);
    compare(in, "reserved bytes", stats->reserved_bytes[kind].current, in->reserved[kind]);
    compare(in, "inactive split blocks", stats->inactive_split[kind].current, in->split[kind]);
    compare(in, "inactive split bytes", stats->inactive_split_bytes[kind].current, in->split_bytes[kind]);
  }
}

int openreg_cache_check(int32_t device, char* text, size_t size) {
  const openreg_device_table* const table = openreg_device_table_peek();
  if (table == NULL || device < 0 || device >= table->count) return 1;
  walk in = {.cache = table->devices[device]->cache, .text = text, .size = size};
  openreg_fast_lock_acquire(&in.cache->lock);
  see_cache(&in);
  openreg_fast_lock_release(&in.cache->lock);
  return !in.is_wrong;
}
