/* SPDX-License-Identifier: BSD-3-Clause */
/* cache_stats.h: statistics of a cache. Internal to cache*.c. */
#ifndef OPENREG_SRC_CACHE_STATS_H
#define OPENREG_SRC_CACHE_STATS_H

#include <openreg/allocator.h>

/* X(name): statistics of each kind of pool, and those that exist once. Code that fills or resets statistics uses these
 * lists. */
#define OPENREG_STAT_MAP(X)                                                                                            \
    X(allocation)                                                                                                      \
    X(allocated_bytes)                                                                                                 \
    X(requested_bytes)                                                                                                 \
    X(segment)                                                                                                         \
    X(reserved_bytes)                                                                                                  \
    X(inactive_split)                                                                                                  \
    X(inactive_split_bytes)
#define OPENREG_SINGLE_STAT_MAP(X)                                                                                     \
    X(oversize_allocations)                                                                                            \
    X(oversize_segments)

/* The freed amount is computed as allocated - current + (current at the last reset); the field `freed` holds the last of
 * the three. At index 0 only `peak` is used. */
typedef struct openreg_cache_stats {
#define OPENREG_STAT_MEMBER(name) openreg_stat name[OPENREG_POOLS];
    OPENREG_STAT_MAP(OPENREG_STAT_MEMBER)
#undef OPENREG_STAT_MEMBER
    /* Freed and awaiting a stream. "Active" is this and `allocation`, so on the fast path, where nothing waits, it
     * needs no counters; `peak` here is the peak of the sum while something waited, `allocated` is not used. */
    openreg_stat waiting[OPENREG_POOLS], waiting_bytes[OPENREG_POOLS];
#define OPENREG_STAT_MEMBER(name) openreg_stat name;
    OPENREG_SINGLE_STAT_MAP(OPENREG_STAT_MEMBER)
#undef OPENREG_STAT_MEMBER
    int64_t retries, ooms, driver_allocs, driver_frees, syncs;
} openreg_cache_stats;

/* Of the sum over the pools only the peak is kept; the rest is computed on request. */
static inline int64_t
openreg_stat_current(const openreg_stat stat[OPENREG_POOLS])
{
    return stat[OPENREG_POOL_SMALL].current + stat[OPENREG_POOL_LARGE].current;
}

static inline void
openreg_stat_add(openreg_stat stat[OPENREG_POOLS], int pool, int64_t amount)
{
    const int64_t current = stat[pool].current + amount;
    stat[pool].allocated += amount;
    stat[pool].current = current;
    if (current > stat[pool].peak)
        stat[pool].peak = current;
    const int64_t sum = openreg_stat_current(stat);
    if (sum > stat[OPENREG_POOL_ALL].peak)
        stat[OPENREG_POOL_ALL].peak = sum;
}

static inline void
openreg_stat_subtract(openreg_stat stat[OPENREG_POOLS], int pool, int64_t amount)
{
    stat[pool].current -= amount;
}

/* Adds an amount, which may be negative. */
static inline void
openreg_stat_move(openreg_stat stat[OPENREG_POOLS], int pool, int64_t amount)
{
    if (amount > 0)
        openreg_stat_add(stat, pool, amount);
    else
        openreg_stat_subtract(stat, pool, -amount);
}

/* "oversize" has no statistics by pool. */
static inline void
openreg_stat_count(openreg_stat *stat, int64_t amount)
{
    stat->current += amount;
    if (amount > 0)
        stat->allocated += amount;
    if (stat->current > stat->peak)
        stat->peak = stat->current;
}

#endif
