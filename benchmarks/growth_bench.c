/* SPDX-License-Identifier: BSD-3-Clause */
/* Times what the runtime does as what it keeps grows: blocks, pools, segments, pinned blocks, queued work.
 *
 *   growth_bench [NAME]
 *
 * Prints lines "name/size nanoseconds", each at two sizes or more, so that they show a slope; "replace:malloc/size" is the
 * reference of "replace/size". Each is the least of several rounds. With NAME only the curve of that name. */
#define _GNU_SOURCE
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openreg/allocator.h>
#include <openreg/openreg.h>

enum { ROUNDS = 7 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* The processor's time of this thread: without what the system gave to others in between. */
static double own_time(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void check(int is_fine) {
  if (!is_fine) {
    fprintf(stderr, "growth_bench: %s\n", openreg_last_error()->message);
    exit(1);
  }
}

static double least(double one, double other) {
  return one < other ? one : other;
}

static void print(const char* name, long size, double time) {
  printf("%s/%ld %.3f\n", name, size, time);
  fflush(stdout);
}

static void* take(size_t size) {
  void* block = NULL;
  check(openreg_malloc(0, OPENREG_STREAM_DEFAULT, size, &block) == OPENREG_OK);
  return block;
}

static void give(void* block) {
  check(openreg_free(block) == OPENREG_OK);
}

static void* fresh(size_t size) {
  void* memory = calloc(size, 1);
  if (memory == NULL) {
    fprintf(stderr, "growth_bench: no memory\n");
    exit(1);
  }
  return memory;
}

/* A request of 131 units of 512 bytes behind `count` free blocks of 128 to 130, which a bin of sizes holds too; nothing
 * larger is free. Small segments have 4096 units: 31 pairs of a misfit and a block that stays, and the rest. */
static double misfits(long count) {
  enum { UNIT = 512, PAIRS = 31 };
  void** gaps = fresh((size_t)count * sizeof *gaps);
  void** kept = fresh((size_t)count * 2 * sizeof *kept + 64);
  size_t stay = 0;
  void* fit = take(131 * UNIT);
  kept[stay++] = take(UNIT);
  kept[stay++] = take((4096 - 132) / 2 * UNIT);
  kept[stay++] = take((4096 - 132) / 2 * UNIT);
  for (long i = 0; i < count; ++i) {
    gaps[i] = take((size_t)(128 + i % 2) * UNIT);
    kept[stay++] = take((size_t)(2 - i % 2) * UNIT);
    if (i % PAIRS == PAIRS - 1) kept[stay++] = take((4096 - PAIRS * 130) * UNIT);
  }
  if (count % PAIRS != 0) /* the last segment has no large rest */
    for (long left = 4096 - count % PAIRS * 130; left > 0; left -= 1024) {
      kept = realloc(kept, (stay + 1) * sizeof *kept);
      kept[stay++] = take((size_t)(left > 1024 ? 1024 : left) * UNIT);
    }
  give(fit);
  for (long i = 0; i < count; ++i) give(gaps[i]);
  double best = 1e300;
  for (int round = 0; round < 2 * ROUNDS; ++round) {
    const double start = now();
    fit = take(131 * UNIT);
    best = least(best, now() - start);
    give(fit);
    for (long i = 0; i < count; ++i) gaps[i] = take((size_t)(128 + i % 2) * UNIT);
    for (long i = 0; i < count; ++i) give(gaps[i]);
  }
  while (stay > 0) give(kept[--stay]);
  free(kept);
  free(gaps);
  check(openreg_memory_empty_cache(0) == OPENREG_OK);
  return best;
}

/* Entering and leaving the oldest of `count` private pools. */
static double pools_enter(long count) {
  enum { CALLS = 1000 };
  for (long i = 1; i <= count; ++i)
    check(openreg_memory_pool_retain(0, (openreg_memory_pool_id){0, (uint64_t)i}, 0) == OPENREG_OK);
  const openreg_memory_pool_id oldest = {0, 1};
  double best = 1e300;
  for (int round = 0; round < ROUNDS; ++round) {
    const double start = now();
    for (int i = 0; i < CALLS; ++i) {
      check(openreg_memory_pool_enter(0, oldest) == OPENREG_OK);
      check(openreg_memory_pool_leave(0, oldest) == OPENREG_OK);
    }
    best = least(best, (now() - start) / CALLS);
  }
  for (long i = 1; i <= count; ++i)
    check(openreg_memory_pool_release(0, (openreg_memory_pool_id){0, (uint64_t)i}) == OPENREG_OK);
  return best;
}

/* Making a private pool, using it once and releasing it, beside `count` others that each hold a segment. */
static double pools_live(long count) {
  enum { CALLS = 50 };
  void** blocks = fresh((size_t)count * sizeof *blocks);
  for (long i = 0; i < count; ++i) {
    const openreg_memory_pool_id id = {0, (uint64_t)i + 2};
    check(openreg_memory_pool_retain(0, id, 0) == OPENREG_OK);
    check(openreg_memory_pool_enter(0, id) == OPENREG_OK);
    blocks[i] = take(512);
    check(openreg_memory_pool_leave(0, id) == OPENREG_OK);
  }
  const openreg_memory_pool_id one = {0, 1};
  double best = 1e300;
  for (int round = 0; round < ROUNDS; ++round) {
    const double start = now();
    for (int i = 0; i < CALLS; ++i) {
      check(openreg_memory_pool_retain(0, one, 0) == OPENREG_OK);
      check(openreg_memory_pool_enter(0, one) == OPENREG_OK);
      give(take(512));
      check(openreg_memory_pool_leave(0, one) == OPENREG_OK);
      check(openreg_memory_pool_release(0, one) == OPENREG_OK);
    }
    best = least(best, (now() - start) / CALLS);
  }
  for (long i = 0; i < count; ++i) {
    give(blocks[i]);
    check(openreg_memory_pool_release(0, (openreg_memory_pool_id){0, (uint64_t)i + 2}) == OPENREG_OK);
  }
  free(blocks);
  return best;
}

/* openreg_memory_empty_cache() of `count` segments, a segment. */
static double empty_cache(long count) {
  void** blocks = fresh((size_t)count * 2 * sizeof *blocks);
  double best = 1e300;
  for (int round = 0; round < (count > 5000 ? 3 : ROUNDS); ++round) {
    for (long i = 0; i < 2 * count; ++i) blocks[i] = take(1 << 20);
    for (long i = 0; i < 2 * count; ++i) give(blocks[i]);
    const double start = now();
    check(openreg_memory_empty_cache(0) == OPENREG_OK);
    best = least(best, (now() - start) / (double)count);
  }
  free(blocks);
  return best;
}

/* A pinned block made and freed beside `count` others. */
static double pinned(long count) {
  enum { CALLS = 300 };
  void** blocks = fresh((size_t)count * sizeof *blocks);
  for (long i = 0; i < count; ++i) check(openreg_host_alloc(0, 4096, &blocks[i]) == OPENREG_OK);
  double best = 1e300;
  for (int round = 0; round < ROUNDS; ++round) {
    const double start = now();
    for (int i = 0; i < CALLS; ++i) {
      void* block = NULL;
      check(openreg_host_alloc(0, 4096, &block) == OPENREG_OK);
      check(openreg_host_free(block) == OPENREG_OK);
    }
    best = least(best, (now() - start) / CALLS);
  }
  for (long i = 0; i < count; ++i) check(openreg_host_free(blocks[i]) == OPENREG_OK);
  free(blocks);
  return best;
}

static void lock_once(void* argument) {
  pthread_mutex_lock(argument);
  pthread_mutex_unlock(argument);
}

static void nothing(void* argument) {
  (void)argument;
}

/* The longest of the calls that queue `count` pieces of work on a stream that is held up, in the thread's own time. */
static double queue_stall(long count) {
  double best = 1e300;
  for (int round = 0; round < 2 * ROUNDS; ++round) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&gate);
    openreg_stream stream = OPENREG_STREAM_DEFAULT; /* one that has had no long queue yet */
    check(openreg_stream_from_pool(0, 0, &stream) == OPENREG_OK);
    check(openreg_stream_launch_host_func(0, stream, lock_once, &gate) == OPENREG_OK);
    double longest = 0, before = own_time();
    for (long i = 0; i < count; ++i) {
      check(openreg_stream_launch_host_func(0, stream, nothing, NULL) == OPENREG_OK);
      const double after = own_time();
      longest = after - before > longest ? after - before : longest;
      before = after;
    }
    pthread_mutex_unlock(&gate);
    check(openreg_stream_synchronize(0, stream) == OPENREG_OK);
    best = least(best, longest);
  }
  return best;
}

static uint32_t random_state;

static uint32_t next_random(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state;
}

/* A block at random of `count` of 512 B to 8 KiB is freed, and another of random size takes its place. */
static double replace_with(long count, void* (*take_one)(size_t), void (*give_one)(void*)) {
  enum { CALLS = 200000 };
  void** blocks = fresh((size_t)count * sizeof *blocks);
  random_state = 12345;
  for (long i = 0; i < count; ++i) blocks[i] = take_one(512 + next_random() % 7681);
  double best = 1e300;
  for (int round = 0; round < ROUNDS; ++round) {
    const double start = now();
    for (int i = 0; i < CALLS; ++i) {
      const size_t at = next_random() % (uint32_t)count;
      give_one(blocks[at]);
      blocks[at] = take_one(512 + next_random() % 7681);
    }
    best = least(best, (now() - start) / CALLS);
  }
  for (long i = 0; i < count; ++i) give_one(blocks[i]);
  free(blocks);
  return best;
}

static double replace(long count) {
  print("replace:malloc", count, replace_with(count, malloc, free));
  const double time = replace_with(count, take, give);
  check(openreg_memory_empty_cache(0) == OPENREG_OK);
  return time;
}

static const struct {
  const char* name;
  double (*time)(long count);
  long sizes[3];
} curves[] = {
    {"misfits", misfits, {1000, 10000}},
    {"pools_enter", pools_enter, {100, 1000, 10000}},
    {"pools_live", pools_live, {100, 1000}},
    {"empty_cache", empty_cache, {1000, 10000}},
    {"pinned", pinned, {1000, 100000}},
    {"queue_stall", queue_stall, {10000, 100000}},
    {"replace", replace, {1000, 100000}},
};

int main(int count, char** arguments) {
  /* Or the time in which malloc() gives pages back to the system would be taken for that of openreg_memory_empty_cache(). */
  (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
  /* Device memory and its addresses for every curve; pages that nobody touches cost nothing. */
  (void)setenv("OPENREG_SIM_MEMORY", "64G", 0);
  check(openreg_init() == OPENREG_OK);
  for (size_t i = 0; i < sizeof curves / sizeof curves[0]; ++i) {
    if (count > 1 && strcmp(arguments[1], curves[i].name) != 0) continue;
    for (size_t j = 0; j < 3 && curves[i].sizes[j] > 0; ++j)
      print(curves[i].name, curves[i].sizes[j], curves[i].time(curves[i].sizes[j]));
  }
  return 0;
}
