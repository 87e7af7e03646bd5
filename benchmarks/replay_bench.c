/* SPDX-License-Identifier: BSD-3-Clause */
/* Replays a recorded trace of requests and frees (record_traces.py) through the caching allocator and through malloc().
 *
 *   replay_bench NAME < trace
 *
 * Prints lines "replay_NAME nanoseconds" per operation, the least of several rounds in which it takes turns with its
 * reference "replay_NAME:malloc", and lines "peak_reserved_NAME bytes", "peak_growing_NAME bytes",
 * "peak_allocated_NAME bytes" and "peak_live_NAME bytes": the most that the allocator took from the device, without and
 * with segments that grow, the most that it gave out, and the most that the trace has in use, as asked for. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <openreg/allocator.h>
#include <openreg/openreg.h>

enum { ROUNDS = 25 };

struct trace {
  long long* lines; /* a size, or -(n + 1) for the free of the n-th request */
  size_t count, requests;
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void fail(const char* text) {
  fprintf(stderr, "replay_bench: %s\n", text);
  exit(1);
}

static struct trace read_trace(FILE* file) {
  struct trace trace = {NULL, 0, 0};
  size_t room = 0;
  long long line;
  while (fscanf(file, "%lld", &line) == 1) {
    if (trace.count == room) {
      room = room == 0 ? 4096 : 2 * room;
      trace.lines = realloc(trace.lines, room * sizeof *trace.lines);
      if (trace.lines == NULL) fail("no memory");
    }
    if (line < 0 && (size_t)(-line) > trace.requests) fail("the trace frees what it has not asked for");
    trace.lines[trace.count++] = line;
    trace.requests += line >= 0;
  }
  if (trace.count == 0) fail("the trace is empty");
  return trace;
}

static void* take_openreg(size_t size) {
  void* block = NULL;
  if (openreg_malloc(0, OPENREG_STREAM_DEFAULT, size, &block) != OPENREG_OK) fail(openreg_last_error()->message);
  return block;
}

static void give_openreg(void* block) {
  if (openreg_free(block) != OPENREG_OK) fail(openreg_last_error()->message);
}

/* Nanoseconds of a whole pass; what the trace leaves in use is freed after the clock has stopped. */
static double replay(const struct trace* trace, void** blocks, void* (*take)(size_t), void (*give)(void*)) {
  size_t next = 0;
  const double start = now();
  for (size_t i = 0; i < trace->count; ++i) {
    const long long line = trace->lines[i];
    if (line >= 0) {
      blocks[next++] = take((size_t)line);
    } else {
      give(blocks[-line - 1]);
      blocks[-line - 1] = NULL;
    }
  }
  const double time = now() - start;
  for (size_t i = 0; i < next; ++i) give(blocks[i]);
  return time;
}

/* The most bytes that are in use at once, as asked for. */
static uint64_t peak_live(const struct trace* trace) {
  uint64_t* sizes = calloc(trace->requests + 1, sizeof *sizes);
  if (sizes == NULL) fail("no memory");
  uint64_t live = 0, peak = 0;
  size_t next = 0;
  for (size_t i = 0; i < trace->count; ++i) {
    const long long line = trace->lines[i];
    if (line >= 0)
      live += sizes[next++] = (uint64_t)line;
    else
      live -= sizes[-line - 1];
    peak = live > peak ? live : peak;
  }
  free(sizes);
  return peak;
}

/* The allocator's peaks over a pass from an empty cache. */
static openreg_memory_stats peaks_of(const struct trace* trace, void** blocks, int32_t growing) {
  openreg_allocator_settings settings = {.struct_size = sizeof settings};
  openreg_memory_stats stats = {.struct_size = sizeof stats};
  int failures = openreg_allocator_get_settings(&settings);
  settings.expandable_segments = growing;
  failures += openreg_allocator_set_settings(&settings);
  failures += openreg_memory_empty_cache(0);
  failures += openreg_memory_reset_peak_stats(0);
  (void)replay(trace, blocks, take_openreg, give_openreg);
  failures += openreg_memory_get_stats(0, &stats);
  if (failures != 0) fail(openreg_last_error()->message);
  return stats;
}

int main(int count, char** arguments) {
  if (count != 2) fail("usage: replay_bench NAME < trace");
  if (openreg_init() != OPENREG_OK) fail(openreg_last_error()->message);
  const char* name = arguments[1];
  struct trace trace = read_trace(stdin);
  void** blocks = calloc(trace.requests + 1, sizeof *blocks);
  if (blocks == NULL) fail("no memory");
  const openreg_memory_stats growing = peaks_of(&trace, blocks, 1), stats = peaks_of(&trace, blocks, 0);
  double best = 1e300, best_malloc = 1e300;
  for (int round = 0; round < ROUNDS; ++round) {
    const double time = replay(&trace, blocks, take_openreg, give_openreg);
    const double reference = replay(&trace, blocks, malloc, free);
    best = time < best ? time : best;
    best_malloc = reference < best_malloc ? reference : best_malloc;
  }
  printf("replay_%s %.3f\n", name, best / (double)trace.count);
  printf("replay_%s:malloc %.3f\n", name, best_malloc / (double)trace.count);
  printf("peak_reserved_%s %lld\n", name, (long long)stats.reserved_bytes[0].peak);
  printf("peak_growing_%s %lld\n", name, (long long)growing.reserved_bytes[0].peak);
  printf("peak_allocated_%s %lld\n", name, (long long)stats.allocated_bytes[0].peak);
  printf("peak_live_%s %llu\n", name, (unsigned long long)peak_live(&trace));
  free(blocks);
  free(trace.lines);
  return 0;
}
