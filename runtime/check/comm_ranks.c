/* SPDX-License-Identifier: BSD-3-Clause */
/* comm_ranks.c: ranks of openreg.comm, and calls with known results (comm_ranks.h). */
#include "comm_ranks.h"

#include <string.h>

#include "fixtures.h"

#define MOST CHECK_COMM_MOST
#define ROOM CHECK_COMM_ROOM
#define GUARD 256 /* bytes on both sides that no call may write */
#define GUARD_VALUE 0xa5

/* ------------------------------------------------------------------------------------------------------------ elements */

typedef struct number_format {
    const char *name;
    openreg_dtype type;
    int exponent, mantissa; /* bits, of floating point */
} number_format;

static const number_format formats[CHECK_COMM_TYPES] = {
    {"float32", {OPENREG_DTYPE_FLOAT, 32, 1}, 8, 23},    {"int8", {OPENREG_DTYPE_INT, 8, 1}, 0, 0},
    {"uint8", {OPENREG_DTYPE_UINT, 8, 1}, 0, 0},         {"int32", {OPENREG_DTYPE_INT, 32, 1}, 0, 0},
    {"uint32", {OPENREG_DTYPE_UINT, 32, 1}, 0, 0},       {"int64", {OPENREG_DTYPE_INT, 64, 1}, 0, 0},
    {"uint64", {OPENREG_DTYPE_UINT, 64, 1}, 0, 0},       {"float16", {OPENREG_DTYPE_FLOAT, 16, 1}, 5, 10},
    {"float64", {OPENREG_DTYPE_FLOAT, 64, 1}, 11, 52},   {"bfloat16", {OPENREG_DTYPE_BFLOAT, 16, 1}, 8, 7},
    {"e4m3", {OPENREG_DTYPE_FLOAT8_E4M3FN, 8, 1}, 4, 3}, {"e5m2", {OPENREG_DTYPE_FLOAT8_E5M2, 8, 1}, 5, 2},
};
static const char *const reductions[CHECK_COMM_REDUCTIONS] = {"sum", "product", "max", "min", "average"};

static bool
is_unsigned(const number_format *format)
{
    return format->type.code == OPENREG_DTYPE_UINT;
}

/* A whole number that the format has exactly, as its bits. */
static uint64_t
bits_of(const number_format *format, int64_t value)
{
    const uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (format->exponent == 0 || value == 0)
        return (uint64_t)value;
    const int power = 63 - __builtin_clzll(magnitude);
    const uint64_t rest = magnitude - (UINT64_C(1) << power),
                   fraction = power <= format->mantissa ? rest << (format->mantissa - power)
                                                        : rest >> (power - format->mantissa),
                   biased = (uint64_t)(power + (1 << (format->exponent - 1)) - 1);
    return (value < 0 ? UINT64_C(1) << (format->exponent + format->mantissa) : 0) | biased << format->mantissa |
           fraction;
}

/* The first bytes are the low ones: every machine that the runtime is built for is little-endian. */
static void
put_element(unsigned char *at, const number_format *format, int64_t value)
{
    const uint64_t bits = bits_of(format, value);
    memcpy(at, &bits, format->type.bits / 8);
}

/* What rank `number` has at place i: so that every reduction of two ranks, and of four, is exact in every format, in any
 * order; of three all but the average. Integers now and then have high bits, which arithmetic in double or of the other sign
 * would spoil. */
static int64_t
value_at(const number_format *format, int32_t reduction, int32_t number, int32_t size, uint64_t i)
{
    static const signed char pairs[][2] = {{1, 3},  {2, 4}, {4, 2}, {-1, 3}, {3, 1},   {5, 1}, {2, 2},
                                           {6, -2}, {0, 2}, {6, 2}, {1, 1},  {-4, -2}, {4, 4}, {8, 2}};
    static const signed char more[][MOST] = {{2, 2, 2, 2},  {1, 3, 2, 2},  {4, 1, 1, 2}, {-1, -3, -2, -2},
                                             {3, -1, 1, 1}, {4, -2, 1, 1}, {1, 1, 1, 1}, {0, 2, 4, 2},
                                             {6, 2, -2, 2}, {2, 2, -4, 4}, {1, 5, 0, 2}, {1, 1, 1, 5}};
    const bool is_pair = size <= 2;
    const size_t count = is_pair ? sizeof pairs / sizeof pairs[0] : sizeof more / sizeof more[0];
    const int top = format->type.bits - 1;
    const uint64_t place = i % (count + 1);
    if (place < count) {
        const int64_t value = is_pair ? pairs[place][number] : more[place][number];
        return is_unsigned(format) && value < 0 ? (is_pair ? -value : value + 4) : value;
    }
    if (format->exponent != 0 || reduction == OPENREG_COMM_PRODUCT)
        return 2;
    if (is_unsigned(format))
        return number == 0 ? (int64_t)((UINT64_C(1) << top) + 2) : 2;
    return (INT64_C(1) << (top - (is_pair ? 2 : 3))) + 1 + 2 * number;
}

static int64_t
reduced_at(const number_format *format, int32_t reduction, int32_t size, uint64_t i)
{
    int64_t result = value_at(format, reduction, 0, size, i);
    for (int32_t number = 1; number < size; ++number) {
        const int64_t value = value_at(format, reduction, number, size, i);
        const bool is_more = is_unsigned(format) ? (uint64_t)value > (uint64_t)result : value > result;
        if (reduction == OPENREG_COMM_PRODUCT)
            result *= value;
        else if (reduction == OPENREG_COMM_MAX || reduction == OPENREG_COMM_MIN)
            result = is_more == (reduction == OPENREG_COMM_MAX) ? value : result;
        else
            result = (int64_t)((uint64_t)result + (uint64_t)value);
    }
    if (reduction == OPENREG_COMM_AVERAGE)
        result = is_unsigned(format) ? (int64_t)((uint64_t)result / (uint64_t)size) : result / size;
    return result;
}

/* --------------------------------------------------------------------------------------------------------------- plans */

static const struct {
    const char *name;
    int32_t kind;
    bool reduces, sends_parts, receives_parts; /* the size of `send` and `recv` is that of all ranks' parts */
} kinds[CHECK_COMM_KINDS] = {
    [CHECK_ALL_REDUCE] = {"all_reduce", OPENREG_COLLECTIVE_ALL_REDUCE, true, false, false},
    [CHECK_REDUCE] = {"reduce", OPENREG_COLLECTIVE_REDUCE, true, false, false},
    [CHECK_REDUCE_SCATTER] = {"reduce_scatter", OPENREG_COLLECTIVE_REDUCE_SCATTER, true, true, false},
    [CHECK_BROADCAST] = {"broadcast", OPENREG_COLLECTIVE_BROADCAST, false, false, false},
    [CHECK_ALL_GATHER] = {"all_gather", OPENREG_COLLECTIVE_ALL_GATHER, false, false, true},
    [CHECK_ALL_TO_ALL] = {"all_to_all", OPENREG_COLLECTIVE_ALL_TO_ALL, false, true, true},
    [CHECK_EXCHANGE] = {"a group of messages", OPENREG_COLLECTIVE_SEND, false, true, true},
    [CHECK_MESSAGES] = {"a message", OPENREG_COLLECTIVE_RECV, false, true, true},
};

check_comm_kind
check_comm_kind_named(const char *name)
{
    int kind = 0;
    while (kind < CHECK_COMM_KINDS && strcmp(kinds[kind].name, name) != 0)
        ++kind;
    REQUIRE(kind < CHECK_COMM_KINDS, "internal: no kind of call is named %s", name);
    return (check_comm_kind)kind;
}

const check_plan check_simple_plan = {.count = 2000};

static uint64_t
bytes_of(const check_plan *p, uint64_t count)
{
    return count * formats[p->type].type.bits / 8;
}

/* Elements that one rank gives another. */
static uint64_t
part_of(const check_plan *p, int32_t from, int32_t to)
{
    if (!p->uneven)
        return p->count;
    return p->count + (uint64_t)(p->kind == CHECK_ALL_GATHER ? from : 2 * from + to);
}

uint64_t
check_plan_size(const check_rank *r, const check_plan *p, int32_t number, bool gets)
{
    uint64_t count = 0;
    for (int32_t other = 0; other < ((gets ? kinds[p->kind].receives_parts : kinds[p->kind].sends_parts) ? r->size : 1);
         ++other)
        count += gets ? part_of(p, other, number) : part_of(p, number, other);
    return bytes_of(p, count);
}

void
check_plan_input(const check_rank *r, const check_plan *p, int32_t number, unsigned char *to)
{
    const number_format *const format = &formats[p->type];
    const uint64_t sent = check_plan_size(r, p, number, false);
    if (!kinds[p->kind].reduces) {
        check_pattern(to, sent, (uint64_t)number + 1);
        return;
    }
    for (uint64_t i = 0; i < sent / (format->type.bits / 8); ++i)
        put_element(to + bytes_of(p, i), format, value_at(format, p->reduction, number, r->size, i));
}

void
check_plan_output(const check_rank *r, const check_plan *p, unsigned char *to, unsigned char *room)
{
    const number_format *const format = &formats[p->type];
    const uint64_t first = p->kind == CHECK_REDUCE_SCATTER ? (uint64_t)r->number * p->count : 0;
    if ((p->kind == CHECK_REDUCE && r->number != p->root) || (p->kind == CHECK_MESSAGES && r->number == p->root))
        return;
    for (uint64_t i = 0; kinds[p->kind].reduces && i < p->count; ++i)
        put_element(to + bytes_of(p, i), format, reduced_at(format, p->reduction, r->size, first + i));
    for (int32_t number = 0; !kinds[p->kind].reduces && number < r->size; ++number) {
        const uint64_t size = bytes_of(p, part_of(p, number, r->number));
        uint64_t before = 0;
        for (int32_t other = 0; other < r->number; ++other)
            before += bytes_of(p, part_of(p, number, other));
        check_plan_input(r, p, number, room);
        if (p->kind == CHECK_ALL_GATHER || p->kind == CHECK_ALL_TO_ALL || p->kind == CHECK_EXCHANGE) {
            memcpy(to, room + (p->kind == CHECK_ALL_GATHER ? 0 : before), size);
            to += size;
        } else if (number == p->root) {
            memcpy(to, room, check_plan_size(r, p, r->number, true));
        }
    }
}

static openreg_collective
collective(int32_t kind, const void *send, void *recv, uint64_t count, int32_t type, int32_t reduction, int32_t peer)
{
    return (openreg_collective){.struct_size = sizeof(openreg_collective),
                                .kind = kind,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .type = formats[type].type,
                                .reduction = reduction,
                                .peer = peer};
}

static openreg_status
queue(const check_rank *r, const openreg_collective *list, uint32_t n)
{
    return r->comm->queue(r->c->instance, r->handle, r->stream, list, n);
}

openreg_status
check_queue(const check_rank *r, int32_t kind, const void *send, void *recv, uint64_t count, int32_t type, int32_t peer)
{
    const openreg_collective what = collective(kind, send, recv, count, type, 0, peer);
    return queue(r, &what, 1);
}

/* One element of a later, longer descriptor: the distance is that of the first one's size. */
typedef struct later {
    openreg_collective known;
    uint64_t unknown[2];
} later;

static void
exchange(const check_rank *r, const check_plan *p, const char *send, char *recv)
{
    later list[2 * MOST];
    memset(list, 0x5a, sizeof list);
    for (int32_t peer = 0; peer < r->size; ++peer) {
        const uint64_t offset = bytes_of(p, p->count) * (uint64_t)peer;
        list[2 * peer].known = collective(OPENREG_COLLECTIVE_SEND, send + offset, NULL, p->count, p->type, 0, peer);
        list[2 * peer + 1].known = collective(OPENREG_COLLECTIVE_RECV, NULL, recv + offset, p->count, p->type, 0, peer);
        list[2 * peer].known.struct_size = list[2 * peer + 1].known.struct_size = sizeof list[0];
    }
    CALL("queue", queue(r, &list[0].known, 2 * (uint64_t)r->size));
}

static void
exchange_messages(const check_rank *r, const check_plan *p, const char *send, char *recv)
{
    for (int32_t i = 0; i < r->size; ++i) {
        const uint64_t offset = bytes_of(p, p->count) * (uint64_t)i;
        if (r->number == p->root)
            CALL("queue", check_queue(r, OPENREG_COLLECTIVE_SEND, send + offset, NULL, p->count, p->type, 1 - p->root));
        else
            CALL("queue", check_queue(r, OPENREG_COLLECTIVE_RECV, NULL, recv + offset, p->count, p->type, p->root));
    }
}

openreg_status
check_plan_call(const check_rank *r, const check_plan *p, const void *send, void *recv)
{
    uint64_t sent[MOST], received[MOST];
    if (p->kind == CHECK_EXCHANGE || p->kind == CHECK_MESSAGES) {
        (p->kind == CHECK_EXCHANGE ? exchange : exchange_messages)(r, p, send, recv);
        return OPENREG_OK;
    }
    openreg_collective what = collective(kinds[p->kind].kind, send, recv, p->count, p->type, p->reduction, p->root);
    for (int32_t i = 0; i < r->size; ++i) {
        sent[i] = part_of(p, r->number, i);
        received[i] = part_of(p, i, r->number);
    }
    if (p->uneven) {
        what.count = 0;
        what.recv_counts = received;
        what.send_counts = p->kind == CHECK_ALL_TO_ALL ? sent : NULL;
    }
    const openreg_status status = TRY("queue", queue(r, &what, 1));
    memset(sent, 0x5a, sizeof sent); /* they were to be read during the call */
    memset(received, 0x5a, sizeof received);
    return status;
}

void
check_plan_run(check_rank *r, const check_plan *p)
{
    check_context *const c = r->c;
    const uint64_t front = GUARD + bytes_of(p, (uint64_t)p->shift), part = bytes_of(p, p->count) * (uint64_t)r->number,
                   sent = check_plan_size(r, p, r->number, false), received = check_plan_size(r, p, r->number, true);
    const bool gathers = p->in_place && p->kind == CHECK_ALL_GATHER,
               scatters = p->in_place && p->kind == CHECK_REDUCE_SCATTER;
    const uint64_t from = front + (gathers ? part : 0), to = front + (scatters ? part : 0),
                   size = front + (sent > received ? sent : received) + GUARD;
    REQUIRE(size <= ROOM, "a plan of this program has no room");
    memset(r->staging, GUARD_VALUE, size);
    memcpy(r->wanted, r->staging, size);
    char *const send = p->in_place ? r->recv : r->send;
    check_write(c, r->dev, r->recv, r->staging, size);
    check_plan_input(r, p, r->number, r->staging + from);
    check_write(c, r->dev, send, r->staging, size);
    if (p->in_place)
        memcpy(r->wanted, r->staging, size);
    const bool gives = p->kind != CHECK_BROADCAST || p->in_place || r->number == p->root;
    const bool gets = p->kind != CHECK_REDUCE || p->in_place || p->shift == 0 || r->number == p->root;
    const openreg_status status = check_plan_call(r, p, gives ? send + from : NULL, gets ? r->recv + to : NULL);
    if (status != OPENREG_E_UNSUPPORTED)
        check_succeeded(kinds[p->kind].name, status);
    check_sync(c, r->dev, r->stream);
    check_read(c, r->dev, r->seen, r->recv, size);
    if (status == OPENREG_OK) {
        check_plan_output(r, p, r->wanted + to, r->staging);
        ++r->served;
    }
    for (uint64_t i = 0; i < size; ++i) {
        const bool is_result = i >= to && i < to + received;
        if (scatters && status == OPENREG_OK && !is_result && i >= front && i < front + sent)
            continue; /* what was given in the other parts */
        REQUIRE(r->seen[i] == r->wanted[i],
                "%s() of %llu elements %s%s%s%s, rank %d of %d%s: byte %lld of %llu is 0x%02x, not 0x%02x%s",
                kinds[p->kind].name, (unsigned long long)p->count, formats[p->type].name,
                kinds[p->kind].reduces ? ", " : "", kinds[p->kind].reduces ? reductions[p->reduction] : "",
                p->in_place ? ", in place"
                : p->uneven ? ", uneven"
                            : "",
                r->number, r->size, status == OPENREG_OK ? "" : " returned UNSUPPORTED", (long long)i - (long long)to,
                (unsigned long long)received, r->seen[i], r->wanted[i], is_result ? "" : ": outside the result");
    }
    if (p->in_place)
        return;
    check_plan_input(r, p, r->number, memset(r->staging + from, 0, sent));
    check_read(c, r->dev, r->seen, send + from, sent);
    REQUIRE(memcmp(r->seen, r->staging + from, sent) == 0, "%s() of %llu elements changed what it was given to send",
            kinds[p->kind].name, (unsigned long long)p->count);
}

/* --------------------------------------------------------------------------------------------------------------- ranks */

const openreg_comm *
check_comm(check_context *c)
{
    return check_extension(c, OPENREG_COMM_NAME, OPENREG_COMM_VERSION, OPENREG_COMM_SIZE_1);
}

static void *
run_rank(void *argument)
{
    check_rank *const r = argument;
    r->function(r);
    atomic_store(&r->is_done, true);
    return NULL;
}

void
check_rank_start(check_rank *r, check_rank_function *function)
{
    r->function = function;
    atomic_store(&r->is_done, false);
    check_start_thread(&r->thread, run_rank, r);
}

void
check_in_each_rank(check_rank *ranks, check_rank_function *function)
{
    for (int32_t i = 0; i < ranks[0].size; ++i)
        check_rank_start(&ranks[i], function);
    for (int32_t i = 0; i < ranks[0].size; ++i)
        (void)pthread_join(ranks[i].thread, NULL);
}

void
check_rank_init(check_rank *r)
{
    CALL("init", r->comm->init(r->c->instance, r->dev, r->number, r->size, r->id, &r->handle));
    REQUIRE(r->handle != NULL, "init() succeeded and gave no handle");
}

void
check_rank_destroy(check_rank *r)
{
    CALL("destroy", r->comm->destroy(r->c->instance, r->handle));
    r->handle = NULL;
}

void
check_rank_abort(void *rank)
{
    const check_rank *const r = rank;
    CALL("abort", r->comm->abort(r->c->instance, r->handle));
}

uint32_t
check_comm_id(check_context *c, int32_t dev, unsigned char *id)
{
    uint32_t size = 0;
    const openreg_comm *const comm = check_comm(c);
    CALL("id_size", comm->id_size(c->instance, &size));
    REQUIRE(size > 0 && size <= OPENREG_COMM_ID_MAX, "id_size() gave %u bytes", (unsigned)size);
    CALL("unique_id", comm->unique_id(c->instance, dev, id));
    return size;
}

void
check_rank_prepare(check_context *c, check_rank *r, int32_t number, int32_t size, const unsigned char *id)
{
    r->c = c;
    r->comm = check_comm(c);
    r->id = id;
    r->number = r->dev = number;
    r->size = size;
    r->served = 0;
    if (r->send != NULL)
        return;
    r->stream = check_stream(c, r->dev);
    r->send = check_alloc(c, r->dev, ROOM);
    r->recv = check_alloc(c, r->dev, ROOM);
    r->staging = check_host_alloc(c, ROOM, true);
    r->wanted = check_host_alloc(c, ROOM, true);
    r->seen = check_host_alloc(c, ROOM, true);
}

check_rank *
check_ranks_prepare(check_context *c, int32_t size)
{
    static check_rank ranks[MOST];
    static unsigned char id[OPENREG_COMM_ID_MAX];
    (void)check_comm_id(c, 0, id);
    for (int32_t i = 0; i < size; ++i)
        check_rank_prepare(c, &ranks[i], i, size, id);
    return ranks;
}

check_rank *
check_ranks_connect(check_context *c, int32_t size)
{
    check_rank *const ranks = check_ranks_prepare(c, size);
    check_in_each_rank(ranks, check_rank_init);
    REQUIRE(size == 1 || ranks[0].handle != ranks[1].handle, "init() gave two ranks the same handle");
    return ranks;
}

static void
follow_plan(check_rank *r)
{
    check_plan_run(r, r->plan);
}

void
check_ranks_follow(check_rank *ranks, check_plan wanted)
{
    for (int32_t i = 0; i < ranks[0].size; ++i)
        ranks[i].plan = &wanted;
    check_in_each_rank(ranks, follow_plan);
    for (int32_t i = 1; i < ranks[0].size; ++i)
        REQUIRE(ranks[0].served == ranks[i].served, "%s() of type %s is UNSUPPORTED in some ranks alone",
                kinds[wanted.kind].name, formats[wanted.type].name);
}

void
check_ranks_end(check_rank *ranks)
{
    REQUIRE(ranks[0].served > 0, "every call was OPENREG_E_UNSUPPORTED");
    check_in_each_rank(ranks, check_rank_destroy);
}
