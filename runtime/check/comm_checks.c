/* SPDX-License-Identifier: BSD-3-Clause */
/* comm_checks.c: the extension openreg.comm: one rank alone, and up to four ranks in this process, a device and a
 * thread each. Ranks in several processes: comm_process_checks.c. */
#include <pthread.h>
#include <string.h>

#include "behind_runtime.h"
#include "comm_ranks.h"
#include "fixtures.h"

#define RANKS 2 /* of most checks */
#define ROOM CHECK_COMM_ROOM
#define SAMPLE 256 /* bytes */

static void
table_is_whole(check_context *c)
{
    (void)check_comm(c);
    REQUIRE(c->table.extension(c->instance, OPENREG_COMM_NAME, OPENREG_COMM_VERSION + 900) == NULL,
            "extension() gave a table of openreg.comm for version %u", OPENREG_COMM_VERSION + 900);
}

static void
one_rank_is_enough(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, 1);
    for (int k = CHECK_ALL_REDUCE; k < CHECK_MESSAGES; ++k)
        for (int32_t reduction = 0; reduction < (k <= CHECK_REDUCE_SCATTER ? CHECK_COMM_REDUCTIONS : 1); ++reduction)
            for (int in_place = 0; in_place < (k < CHECK_ALL_TO_ALL ? 2 : 1); ++in_place)
                check_ranks_follow(ranks, (check_plan){(check_comm_kind)k, CHECK_COMM_FLOAT32, reduction, 0, 1001,
                                                       in_place != 0, false, 0});
    check_ranks_end(ranks);
}

typedef struct wrong_init {
    check_rank *rank;
    int32_t number, size;
} wrong_init;

static void
refuse_init(void *argument)
{
    const wrong_init *const wrong = argument;
    const check_rank *const r = wrong->rank;
    openreg_driver_comm const before = (openreg_driver_comm)(void *)wrong->rank;
    openreg_driver_comm out = before;
    REFUSES("init", r->comm->init(r->c->instance, r->dev, wrong->number, wrong->size, r->id, &out));
    REQUIRE(out == before, "init() failed and wrote its out-parameter");
}

static void
wrong_ranks_are_refused(check_context *c)
{
    static wrong_init wrong[] = {{NULL, 0, 0}, {NULL, -1, 1}, {NULL, 1, 1}, {NULL, RANKS, RANKS}, {NULL, 0, -1}};
    check_rank *const ranks = check_ranks_prepare(c, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        wrong[i].rank = ranks;
        REQUIRE(check_returns_within(CHECK_SOON, refuse_init, &wrong[i]), "init() of rank %d of %d did not return",
                wrong[i].number, wrong[i].size);
    }
    check_rank_init(ranks); /* nobody has joined */
    check_ranks_follow(ranks, (check_plan){.count = 3});
    check_ranks_end(ranks);
}

static void
init_waits_for_all(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, 1);
    unsigned char first[OPENREG_COMM_ID_MAX];
    memcpy(first, ranks[0].id, sizeof first);
    check_rank_destroy(&ranks[0]);
    (void)check_ranks_prepare(c, RANKS);
    REQUIRE(memcmp(first, ranks[0].id, sizeof first) != 0, "unique_id() gave the same id twice");
    for (int32_t i = RANKS - 1; i >= 0; --i) {
        check_rank_start(&ranks[i], check_rank_init);
        check_sleep(i > 0 ? 100 : 0);
        REQUIRE(i == 0 || !atomic_load(&ranks[i].is_done), "init() of rank %d returned before rank 0 called it", i);
    }
    for (int32_t i = 0; i < RANKS; ++i)
        (void)pthread_join(ranks[i].thread, NULL);
    check_ranks_follow(ranks, (check_plan){.count = 3});
    check_ranks_end(ranks);
}

/* A kind of call with each type, reduction and root that it has, and with uneven parts where it has parts. */
static void
follow_kind(check_rank *ranks, check_comm_kind kind, bool has_uneven)
{
    const int32_t size = ranks[0].size;
    const bool reduces = kind <= CHECK_REDUCE_SCATTER, has_root = kind == CHECK_REDUCE || kind == CHECK_BROADCAST,
               has_parts = has_uneven && (kind == CHECK_ALL_GATHER || kind == CHECK_ALL_TO_ALL);
    for (int32_t type = 0; type < CHECK_COMM_TYPES; ++type)
        for (int32_t reduction = 0; reduction < (reduces ? CHECK_COMM_REDUCTIONS : 1); ++reduction)
            for (int32_t root = 0; root < (has_root ? size : 1); ++root)
                for (int uneven = 0; uneven < (has_parts ? 2 : 1); ++uneven)
                    if ((reduction != OPENREG_COMM_AVERAGE || size != 3) && /* a third is no exact number */
                        (kind != CHECK_EXCHANGE || type == CHECK_COMM_FLOAT32))
                        check_ranks_follow(ranks,
                                           (check_plan){kind, type, reduction, root, 61, false, uneven != 0, root});
}

/* The kind of call that the check is named after. */
static void
kind_is_right(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, RANKS);
    follow_kind(ranks, check_comm_kind_named(c->check->name + strlen("comm.")), false);
    check_ranks_end(ranks);
}

/* Checks that call some kinds with counts of all magnitudes. */
static const struct {
    const char *check;
    check_comm_kind first, last;
    bool has_types, has_roots, in_place, uneven;
    uint64_t least, most, factor; /* counts of elements: each is the one before by the factor, and one more */
} sweeps[] = {{"comm.messages", CHECK_MESSAGES, CHECK_MESSAGES, false, true, false, false, 1, 100000, 17},
              {"comm.group", CHECK_EXCHANGE, CHECK_EXCHANGE, false, false, false, false, 3, 100000, 31},
              {"comm.uneven", CHECK_ALL_GATHER, CHECK_ALL_TO_ALL, true, false, false, true, 0, 10000, 71},
              {"comm.in_place", CHECK_ALL_REDUCE, CHECK_ALL_GATHER, false, true, true, false, 5, 100000, 97}};

static void
sizes_are_right(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, RANKS);
    size_t i = 0;
    while (strcmp(sweeps[i].check, c->check->name) != 0)
        ++i;
    for (int32_t type = 0; type < CHECK_COMM_TYPES; ++type)
        for (int k = (int)sweeps[i].first; k <= (int)sweeps[i].last; ++k)
            for (int32_t root = 0; root < (sweeps[i].has_roots ? RANKS : 1); ++root)
                for (uint64_t n = sweeps[i].least; n < sweeps[i].most; n = n * sweeps[i].factor + 1)
                    if (sweeps[i].has_types || type == CHECK_COMM_FLOAT32)
                        check_ranks_follow(ranks, (check_plan){(check_comm_kind)k, type, OPENREG_COMM_SUM, root, n,
                                                               sweeps[i].in_place, sweeps[i].uneven, 0});
    check_ranks_end(ranks);
}

static void
more_ranks_are_right(check_context *c)
{
    check_skip_if(c->devices < 3, "more than two ranks take more than two devices");
    for (int32_t size = 3; size <= c->devices && size <= CHECK_COMM_MOST; ++size) {
        check_rank *const ranks = check_ranks_connect(c, size);
        for (int k = CHECK_ALL_REDUCE; k < CHECK_MESSAGES; ++k)
            follow_kind(ranks, (check_comm_kind)k, true);
        check_ranks_end(ranks);
    }
}

static void
ids_have_their_size(check_context *c)
{
    static unsigned char id[OPENREG_COMM_ID_MAX + 64], before[sizeof id];
    uint32_t again = 0;
    memset(before, 0x5a, sizeof before);
    memcpy(id, before, sizeof id);
    const uint32_t size = check_comm_id(c, c->dev, id);
    CALL("id_size", check_comm(c)->id_size(c->instance, &again));
    REQUIRE(size == again, "id_size() gave %u bytes, and then %u", (unsigned)size, (unsigned)again);
    REQUIRE(memcmp(id, before, size) != 0, "unique_id() succeeded and wrote no id");
    REQUIRE(memcmp(id + size, before + size, sizeof id - size) == 0, "unique_id() wrote beyond the %u bytes of an id",
            (unsigned)size);
}

static void
counts_are_exact(check_context *c)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 0, 63, 65, 1021, 50021};
    check_rank *const ranks = check_ranks_connect(c, RANKS);
    for (int k = 0; k < CHECK_COMM_KINDS; ++k)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i)
            for (int shift = 0; shift < 2; ++shift)
                check_ranks_follow(ranks, (check_plan){.kind = (check_comm_kind)k, .count = counts[i], .shift = shift});
    for (int32_t type = 0; type < CHECK_COMM_TYPES; ++type)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i)
            check_ranks_follow(ranks,
                               (check_plan){CHECK_ALL_REDUCE, type, OPENREG_COMM_MAX, 0, counts[i], false, false, 1});
    check_ranks_end(ranks);
}

/* One rank asks, so work that were queued would wait for its peer. */
static void
unknown_is_unsupported(check_context *c)
{
    static const struct {
        openreg_dtype type;
        int32_t reduction;
    } wrong[] = {{{250, 8, 1}, 0},
                 {{OPENREG_DTYPE_FLOAT, 24, 1}, 0},
                 {{OPENREG_DTYPE_FLOAT, 32, 2}, 0},
                 {{OPENREG_DTYPE_FLOAT, 32, 1}, CHECK_COMM_REDUCTIONS + 900},
                 {{OPENREG_DTYPE_FLOAT, 32, 1}, -1}};
    check_rank *const ranks = check_ranks_connect(c, RANKS), *const r = &ranks[1];
    memset(r->staging, 0xa5, SAMPLE);
    check_write(c, r->dev, r->recv, r->staging, SAMPLE);
    for (size_t i = 0; i < 2 * sizeof wrong / sizeof wrong[0]; ++i) { /* alone, and behind one that is supported */
        openreg_collective list[2];
        list[0] = list[1] = (openreg_collective){.struct_size = sizeof list[0],
                                                 .kind = OPENREG_COLLECTIVE_ALL_REDUCE,
                                                 .send = r->send,
                                                 .recv = r->recv,
                                                 .count = 8,
                                                 .type = {OPENREG_DTYPE_FLOAT, 32, 1}};
        openreg_collective *const bad = &list[i % 2];
        bad->type = wrong[i / 2].type;
        bad->reduction = wrong[i / 2].reduction;
        check_begin_call("queue");
        check_failed_with("queue", OPENREG_E_UNSUPPORTED,
                          r->comm->queue(c->instance, r->handle, r->stream, list, 1 + i % 2));
    }
    check_sync(c, r->dev, r->stream);
    check_read(c, r->dev, r->seen, r->recv, SAMPLE);
    check_is_value(r->seen, SAMPLE, 0xa5, "memory given with a type that there is not");
    check_ranks_follow(ranks, (check_plan){.count = 33});
    check_ranks_end(ranks);
}

static void
call_and_copy(check_rank *r)
{
    check_context *const c = r->c;
    const uint64_t size = check_plan_size(r, r->plan, r->number, true);
    check_succeeded("queue", check_plan_call(r, r->plan, r->send, r->recv));
    MUST(c, copy, c->instance, r->dev, r->stream, r->recv + ROOM / 2, r->dev, r->recv, r->dev, size);
    check_copy(c, r->dev, r->stream, r->seen, -1, r->recv + ROOM / 2, r->dev, size);
    check_plan_output(r, r->plan, r->wanted, NULL);
    REQUIRE(memcmp(r->seen, r->wanted, size) == 0,
            "rank %d: with a copy of the input before all_reduce() on its stream, and of the result behind it, other "
            "bytes came out",
            r->number);
}

static void
streams_are_in_order(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, RANKS);
    check_ranks_follow(ranks, check_simple_plan);
    for (int32_t i = 0; i < RANKS; ++i) {
        check_rank *const r = &ranks[i];
        r->plan = &check_simple_plan;
        memset(r->seen, 0, ROOM);
        check_write(c, r->dev, r->send, r->seen, ROOM); /* wrong until a copy that comes late */
        check_write(c, r->dev, r->recv, r->seen, ROOM);
        check_plan_input(r, &check_simple_plan, i, r->staging);
    }
    for (int32_t i = 0; i < RANKS; ++i) {
        check_delay(c, i, ranks[i].stream, 80);
        MUST(c, copy, c->instance, i, ranks[i].stream, ranks[i].send, i, ranks[i].staging, -1,
             check_plan_size(&ranks[i], &check_simple_plan, i, false));
    }
    check_in_each_rank(ranks, call_and_copy);
    check_ranks_end(ranks);
}

static void
call_simply(check_rank *r)
{
    check_succeeded("queue", check_plan_call(r, &check_simple_plan, r->send, r->recv));
}

static void
calls_return(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, RANKS);
    check_ranks_follow(ranks, check_simple_plan); /* what a vendor's library does at its first call is done */
    check_gate *const gate = check_gate_close(c, 0, ranks[0].stream);
    check_gate_await_reached(gate);
    for (int32_t i = 0; i < RANKS; ++i) {
        check_plan_input(&ranks[i], &check_simple_plan, i, ranks[i].staging);
        MUST(c, copy, c->instance, i, ranks[i].stream, ranks[i].send, i, ranks[i].staging, -1,
             check_plan_size(&ranks[i], &check_simple_plan, i, false));
    }
    for (int32_t i = 0; i < RANKS; ++i)
        check_rank_start(&ranks[i], call_simply);
    for (int32_t i = 0; i < RANKS; ++i)
        REQUIRE(check_await(&ranks[i].is_done, CHECK_SOON),
                "while the stream of rank 0 was held, all_reduce() did not return in both ranks");
    check_gate_open(gate);
    for (int32_t i = 0; i < RANKS; ++i) {
        (void)pthread_join(ranks[i].thread, NULL);
        check_sync(c, i, ranks[i].stream);
        check_plan_output(&ranks[i], &check_simple_plan, ranks[i].wanted, NULL);
        const uint64_t size = check_plan_size(&ranks[i], &check_simple_plan, i, true);
        check_read(c, i, ranks[i].seen, ranks[i].recv, size);
        REQUIRE(memcmp(ranks[i].seen, ranks[i].wanted, size) == 0,
                "rank %d: the result of an all_reduce() that waited for a stream is wrong", i);
    }
    check_ranks_end(ranks);
}

/* Alone: the call may wait for its peer, and then the work does. */
static void
call_alone(check_rank *r)
{
    (void)check_plan_call(r, &check_simple_plan, r->send, r->recv);
}

static void
ask_for_error(void *argument)
{
    const check_rank *const r = argument;
    CALL("get_error", r->comm->get_error(r->c->instance, r->handle));
}

static void
errors_are_told_at_once(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, RANKS);
    check_ranks_follow(ranks, check_simple_plan);
    for (int32_t i = 0; i < RANKS; ++i)
        ask_for_error(&ranks[i]);
    check_rank_start(&ranks[0], call_simply);
    check_sleep(50);
    REQUIRE(check_returns_within(CHECK_SOON, ask_for_error, &ranks[0]),
            "get_error() did not return while the communicator's work waited for a peer");
    check_rank_start(&ranks[1], call_simply);
    (void)pthread_join(ranks[0].thread, NULL);
    (void)pthread_join(ranks[1].thread, NULL);
    for (int32_t i = 0; i < RANKS; ++i) {
        check_sync(c, i, ranks[i].stream);
        ask_for_error(&ranks[i]);
    }
    check_ranks_end(ranks);
}

static void
abort_ends_waiting(check_context *c)
{
    check_rank *const ranks = check_ranks_connect(c, RANKS);
    check_ranks_follow(ranks, check_simple_plan);
    check_rank_start(&ranks[0], call_alone);
    check_sleep(100);
    for (int32_t i = 0; i < RANKS; ++i) {
        REQUIRE(check_returns_within(2 * CHECK_SOON, check_rank_abort, &ranks[i]), "abort() did not return");
        REQUIRE(check_sync_returns(c, i, ranks[i].stream, NULL),
                "after abort() of rank %d its stream did not go on: work on it waits for a peer that never comes", i);
    }
    REQUIRE(check_await(&ranks[0].is_done, CHECK_SOON),
            "after abort() a call of all_reduce() still waited for its peer");
    (void)pthread_join(ranks[0].thread, NULL);
    for (int32_t i = 0; i < RANKS; ++i) {
        check_rank *const r = &ranks[i];
        for (int32_t kind = OPENREG_COLLECTIVE_ALL_REDUCE; kind <= OPENREG_COLLECTIVE_RECV; ++kind)
            REFUSES("queue", check_queue(r, kind, r->send, r->recv, 1, CHECK_COMM_FLOAT32, 1 - i));
        REFUSES("get_error", r->comm->get_error(c->instance, r->handle));
        check_rank_abort(r);
        check_pattern(r->staging, ROOM, 7);
        MUST(c, copy, c->instance, i, r->stream, r->recv, i, r->staging, -1, ROOM);
        check_copy(c, i, r->stream, r->seen, -1, r->recv, i, ROOM);
        check_is_pattern(r->seen, ROOM, 7, "a copy on the stream of an aborted communicator");
        check_rank_destroy(r);
    }
    check_ranks_follow(check_ranks_connect(c, RANKS), check_simple_plan); /* the devices can have a new one */
    check_ranks_end(ranks);
}

static void
nothing_is_left(check_context *c)
{
    const openreg_comm *const comm = check_comm(c);
    CALL("destroy", comm->destroy(c->instance, NULL));
    const int32_t size = c->devices < RANKS ? 1 : RANKS;
    check_counts before = {.files = 0};
    for (int i = 0; i <= 5; ++i) {
        check_rank *const ranks = check_ranks_connect(c, size);
        check_ranks_follow(ranks, check_simple_plan);
        check_ranks_end(ranks);
        if (i == 0)
            before = check_count_now(); /* what is made once is there */
    }
    check_nothing_is_left(before, "each init() and destroy()");
}

#define ALONE CHECK_COMM
#define BOTH (CHECK_COMM | CHECK_TWO_DEVICES)

static const check_case cases[] = {
    {"comm.table", "extension", ALONE,
     "comm.h: sizeof(openreg_comm), OPENREG_COMM_VERSION as compiled into the driver; every function is required.",
     "Answer NULL for versions that the driver does not know.", table_is_whole},
    {"comm.alone", "extension", ALONE,
     "comm.h: communicators connect `size` ranks, rank 0 <= rank < size; a rank may send to itself in a group.",
     "A size of 1 is valid: what is sent is the result.", one_rank_is_enough},
    {"comm.id", "extension", ALONE | CHECK_EACH,
     "comm.h: bytes of an id: 1 to OPENREG_COMM_ID_MAX, constant from open() to close(); unique_id() writes them.",
     "Answer the size of what the vendor calls an id, an address or root info.", ids_have_their_size},
    {"comm.ranks", "extension", ALONE, "comm.h: init() of a rank that is not 0 <= rank < size is E_INVALID.",
     "Compare before anything waits for peers.", wrong_ranks_are_refused},
    {"comm.init", "extension", BOTH,
     "comm.h: unique_id() makes the id of one communicator; init() returns when every rank has called it.",
     "Wait for all ranks at the end of init().", init_waits_for_all},
    {"comm.all_reduce", "extension", BOTH, "comm.h: recv[i] in every rank: the reduction of send[i] of all.",
     "The message names type and reduction. AVERAGE divides; integers are not computed as double.", kind_is_right},
    {"comm.reduce", "extension", BOTH, "comm.h: the same in rank `peer` alone; recv may be NULL in others.",
     "Write nothing in others.", kind_is_right},
    {"comm.broadcast", "extension", BOTH,
     "comm.h: recv in every rank: send of rank `peer`; send may be NULL in others.", "The root's recv is written too.",
     kind_is_right},
    {"comm.all_gather", "extension", BOTH, "comm.h: recv has a part for each rank: its send.",
     "`count` is that of one rank.", kind_is_right},
    {"comm.reduce_scatter", "extension", BOTH,
     "comm.h: send has a part of `count` for each rank, whose recv is its reduction.", "`count` is that of one part.",
     kind_is_right},
    {"comm.all_to_all", "extension", BOTH, "comm.h: part r of send becomes this rank's part of recv in rank r.",
     "By messages in a group, also to itself.", kind_is_right},
    {"comm.uneven", "extension", BOTH,
     "comm.h: where parts differ in size, counts have an element for each rank, in place of `count`, read during the "
     "call.",
     "Copy the arrays; the place of a part is the sum of the counts before it; 0 is one of them.", sizes_are_right},
    {"comm.many", "extension", BOTH,
     "comm.h: communicators connect `size` ranks: every kind of call is what it is with two, with three and four.",
     "A rank that is not the first or the last; a root above 1; the order of parts.", more_ranks_are_right},
    {"comm.messages", "extension", BOTH, "comm.h: to rank `peer`, which receives from this one.",
     "Messages of two ranks arrive in the order in which they were given.", sizes_are_right},
    {"comm.group", "extension", BOTH,
     "comm.h: the collectives of one call of queue() run as one, so that no part waits for another's end; the distance "
     "of two is the struct_size of the first.",
     "Use openreg_collective_at(), and the library's group around them.", sizes_are_right},
    {"comm.in_place", "extension", BOTH,
     "comm.h: recv == send is valid where both have the same size; for ALL_GATHER send may be this rank's part of "
     "recv, for REDUCE_SCATTER recv may be this rank's part of send.",
     "Write nothing before all ranks have read.", sizes_are_right},
    {"comm.counts", "extension", BOTH,
     "comm.h: counts are in elements of `type`; 0 elements are valid, and every rank gives 0 then.",
     "The message names the byte. Nothing is written outside the result.", counts_are_exact},
    {"comm.unsupported", "extension", BOTH,
     "comm.h: a type or reduction that the vendor's library lacks is E_UNSUPPORTED, and nothing of the call is queued.",
     "Look at all of a group before any of it is queued.", unknown_is_unsupported},
    {"comm.stream", "extension", BOTH,
     "comm.h: it begins when the stream's other work has ended, and its result is there for what is queued behind it.",
     "Queue on the stream of the call, also where that is NULL; read `send` when the stream comes to it.",
     streams_are_in_order},
    {"comm.returns", "extension host_func", BOTH | CHECK_GATE,
     "comm.h: the calls return without waiting for the work of peers' streams.",
     "A call queues; it may wait for peers to call, and for no stream.", calls_return},
    {"comm.get_error", "extension", BOTH,
     "comm.h: OPENREG_OK, or what has gone wrong in the background. Doesn't wait; may be called while another thread "
     "is in a function of the same communicator.",
     "Hold no lock while waiting for a peer.", errors_are_told_at_once},
    {"comm.abort", "extension", BOTH,
     "comm.h: abort() ends what is queued, and calls that wait; the streams go on; other functions fail with "
     "E_INVALID. Twice is allowed.",
     "Work that waits for a peer checks for abort() while it waits.", abort_ends_waiting},
    {"comm.leaks", "extension", ALONE, "comm.h: destroy() frees the communicator; NULL is accepted.",
     "Join the communicator's threads, and close its connections.", nothing_is_left},
};
const check_group check_comm_group = CHECK_GROUP(2, cases);
