/* SPDX-License-Identifier: BSD-3-Clause */
/* Times the C API: device selection, and the caching allocator with one thread and with two on two devices.
 *
 * Prints a line "name nanoseconds" per figure. Each figure is the least of several rounds, in which it takes turns with
 * its reference: a call of a trivial exported function, and malloc() with free(). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <openreg/openreg.h>

enum { ROUNDS = 15 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Work to be timed: `count` calls on `device`. The result keeps the compiler from dropping them. */
typedef long (*work_fn)(long count, int32_t device, size_t size);

static long call_trivial(long count, int32_t device, size_t size) {
  (void)device, (void)size;
  long sum = 0;
  for (long i = 0; i < count; ++i) sum += openreg_version()[0];
  return sum;
}

static long call_current_device(long count, int32_t device, size_t size) {
  (void)device, (void)size;
  long sum = 0;
  for (long i = 0; i < count; ++i) sum += openreg_current_device();
  return sum;
}

static long call_set_same_device(long count, int32_t device, size_t size) {
  (void)size;
  long failures = 0;
  for (long i = 0; i < count; ++i) failures += openreg_set_device(device);
  return failures;
}

static long call_exchange_and_back(long count, int32_t device, size_t size) {
  (void)size;
  long failures = 0;
  for (long i = 0; i < count; ++i) {
    int32_t previous = -1;
    failures += openreg_exchange_device(1 - device, &previous);
    failures += openreg_exchange_device(previous, &previous);
  }
  return failures;
}

static long call_cache(long count, int32_t device, size_t size) {
  long failures = 0;
  for (long i = 0; i < count; ++i) {
    void* block = NULL;
    failures += openreg_malloc(device, OPENREG_STREAM_DEFAULT, size, &block);
    failures += openreg_free(block);
  }
  return failures;
}

static long call_malloc(long count, int32_t device, size_t size) {
  (void)device;
  long missing = 0;
  for (long i = 0; i < count; ++i) {
    void* volatile block = malloc(size);
    missing += block == NULL;
    free(block);
  }
  return missing;
}

struct job {
  work_fn work;
  long count;
  int32_t device;
  size_t size;
  pthread_barrier_t* barrier;
  double time; /* nanoseconds that the thread's calls took */
  long result;
};

static void* run_job(void* argument) {
  struct job* job = argument;
  if (openreg_set_device(job->device) != OPENREG_OK) job->result = -1;
  job->work(job->count / 10 + 1, job->device, job->size); /* the thread's first calls are not timed */
  pthread_barrier_wait(job->barrier);
  const double start = now();
  job->result += job->work(job->count, job->device, job->size);
  job->time = now() - start;
  return NULL;
}

/* Nanoseconds per call when `threads` threads, each on a device of its own, make `count` calls each. */
static double time_calls(work_fn work, int threads, long count, size_t size) {
  enum { MAX_THREADS = 2 };
  static volatile long sink;
  pthread_t ids[MAX_THREADS];
  struct job jobs[MAX_THREADS];
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, (unsigned)threads);
  for (int i = 0; i < threads; ++i) {
    jobs[i] = (struct job){work, count, i, size, &barrier, 0, 0};
    if (pthread_create(&ids[i], NULL, run_job, &jobs[i]) != 0) {
      fprintf(stderr, "runtime_bench: no thread\n");
      exit(1);
    }
  }
  double longest = 0;
  for (int i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    sink += jobs[i].result;
    longest = jobs[i].time > longest ? jobs[i].time : longest;
  }
  pthread_barrier_destroy(&barrier);
  return longest / (double)count;
}

/* Times two kinds of work in turn and prints the least of each. */
static void compare(
    const char* name,
    work_fn work,
    const char* reference_name,
    work_fn reference,
    int threads,
    long count,
    size_t size) {
  double best = 1e300, best_reference = 1e300;
  for (int round = 0; round < ROUNDS; ++round) {
    const double time = time_calls(work, threads, count, size);
    const double reference_time = time_calls(reference, threads, count, size);
    best = time < best ? time : best;
    best_reference = reference_time < best_reference ? reference_time : best_reference;
  }
  printf("%s/%d %.3f\n", name, threads, best);
  printf("%s:%s/%d %.3f\n", name, reference_name, threads, best_reference);
  fflush(stdout);
}

int main(void) {
  if (openreg_init() != OPENREG_OK || openreg_device_count() < 2) {
    fprintf(stderr, "runtime_bench: needs two devices: %s\n", openreg_last_error()->message);
    return 1;
  }
  for (int threads = 1; threads <= 2; ++threads) {
    compare("current_device", call_current_device, "call", call_trivial, threads, 3000000, 0);
    compare("set_device", call_set_same_device, "call", call_trivial, threads, 3000000, 0);
    compare("exchange_device", call_exchange_and_back, "call", call_trivial, threads, 3000000, 0);
    static const size_t sizes[] = {512, 65536, 1 << 20, 16 << 20, 64 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
      char name[64];
      snprintf(name, sizeof name, "cache_%zu", sizes[i]);
      compare(name, call_cache, "malloc", call_malloc, threads, 100000, sizes[i]);
    }
  }
  return 0;
}
