/* SPDX-License-Identifier: BSD-3-Clause */
/* shadow.c: cells by address (shadow.h). */
#include "races/shadow.h"

#include <stdlib.h>
#include <string.h>

#include <openreg/races.h>

#include "base/tree.h"

#define GIVEN 1u     /* its uses are those of an earlier owner */
#define UNWRITTEN 2u /* allocated, and not written since */
#define CHUNK_CELLS 256

typedef struct cell {
    openreg_tree_node node; /* by start */
    uint64_t end;
    openreg_epoch write;
    openreg_epoch read;  /* the first; the others are in `more` */
    openreg_epoch *more; /* NULL: none */
    uint32_t more_count;
    uint32_t flags;
    uint32_t freed; /* the origin of the call that freed the block of these uses; 0: not known, or not freed */
} cell;

static openreg_tree cells;
static cell *unused;    /* linked by node.parent */
static cell *latest[8]; /* used last, by address, as uses come again. NULL or in the tree */

static cell *
cell_of(openreg_tree_node *node)
{
    return OPENREG_TREE_OWNER(node, cell, node);
}

static void
drop(cell *old)
{
    openreg_tree_remove(&cells, &old->node);
    free(old->more);
    for (size_t i = 0; i < sizeof latest / sizeof latest[0]; ++i)
        if (latest[i] == old)
            latest[i] = NULL;
    old->node.parent = unused == NULL ? NULL : &unused->node;
    unused = old;
}

/* A new cell without uses. NULL: memory is short; bytes are then left out. */
static cell *
insert(uint64_t start, uint64_t end)
{
    if (unused == NULL) {
        cell *const chunk = calloc(CHUNK_CELLS, sizeof *chunk); /* kept for later ones */
        for (int i = 0; chunk != NULL && i < CHUNK_CELLS; ++i) {
            chunk[i].node.parent = unused == NULL ? NULL : &unused->node;
            unused = &chunk[i];
        }
    }
    cell *const made = unused;
    if (made == NULL)
        return NULL;
    unused = cell_of(made->node.parent);
    memset(made, 0, sizeof *made);
    made->node.key = start;
    made->end = end;
    openreg_tree_insert(&cells, &made->node);
    return made;
}

static cell *
next_of(const cell *of)
{
    return cell_of(openreg_tree_beside(&of->node, 1));
}

static cell **
latest_at(uint64_t address)
{
    return &latest[address / 512 % (sizeof latest / sizeof latest[0])];
}

/* The first cell that ends behind `address`. */
static cell *
first_at(uint64_t address)
{
    cell *const near = *latest_at(address);
    if (near != NULL && near->node.key <= address && address < near->end)
        return near;
    cell *const found = cell_of(openreg_tree_at_most(&cells, address));
    if (found == NULL)
        return cell_of(openreg_tree_at_least(&cells, address));
    return found->end > address ? found : next_of(found);
}

/* Splits a cell at `at`, which is inside, and returns the second part. NULL: memory is short. */
static cell *
cut(cell *whole, uint64_t at)
{
    openreg_epoch *more = NULL;
    if (whole->more_count > 0) {
        more = malloc(whole->more_count * sizeof *more);
        if (more == NULL)
            return NULL;
        memcpy(more, whole->more, whole->more_count * sizeof *more);
    }
    cell *const second = insert(at, whole->end);
    if (second == NULL) {
        free(more);
        return NULL;
    }
    second->flags = whole->flags;
    second->write = whole->write;
    second->read = whole->read;
    second->more = more;
    second->more_count = whole->more_count;
    second->freed = whole->freed;
    whole->end = at;
    return second;
}

/* Splits cells at the bounds of the range. Returns the first that begins in it; NULL: none does. */
static cell *
cut_at_bounds(uint64_t start, uint64_t end)
{
    cell *first = first_at(start);
    if (first != NULL && first->node.key < start)
        first = cut(first, start);
    cell *last = first_at(end);
    if (last != NULL && last->node.key < end && cut(last, end) == NULL)
        return NULL;
    return first != NULL && first->node.key < end ? first : NULL;
}

static bool
is_known(const openreg_epoch *epoch, const openreg_clock *clock)
{
    return epoch->time <= openreg_clock_of(clock, epoch->line);
}

/* Drops the reads in the past of `clock`. */
static void
drop_known_reads(cell *of, const openreg_clock *clock)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < of->more_count; ++i)
        if (!is_known(&of->more[i], clock))
            of->more[kept++] = of->more[i];
    of->more_count = kept;
    if (of->read.time != 0 && is_known(&of->read, clock)) {
        of->read.time = 0;
        if (kept > 0)
            of->read = of->more[--of->more_count];
    }
}

static void
add_read(cell *to, const openreg_shadow_use *use)
{
    drop_known_reads(to, use->clock);
    if (to->read.time == 0) {
        to->read = use->epoch;
        return;
    }
    openreg_epoch *const more = realloc(to->more, (to->more_count + 1) * sizeof *more);
    if (more == NULL)
        return; /* a race with this read will not be found */
    to->more = more;
    more[to->more_count++] = use->epoch;
}

static void
note_conflict(openreg_conflict *conflict, int32_t kind, const openreg_epoch *other, int writes, const cell *in,
              const openreg_shadow_use *use)
{
    if (conflict->kind != 0)
        return;
    const uint64_t start = in->node.key > use->address ? in->node.key : use->address;
    const uint64_t end = in->end < use->address + use->size ? in->end : use->address + use->size;
    const bool is_reuse = (in->flags & GIVEN) != 0;
    *conflict = (openreg_conflict){.kind = is_reuse ? OPENREG_RACE_REUSE : kind,
                                   .other = *other,
                                   .other_writes = writes,
                                   .freed = is_reuse ? in->freed : 0,
                                   .address = start,
                                   .size = end - start};
}

static void
check(const cell *in, const openreg_shadow_use *use, openreg_conflict *conflict)
{
    const bool is_idle = (in->flags & GIVEN) != 0 && !use->writes; /* see update() */
    if (in->write.time != 0 && !is_idle && !is_known(&in->write, use->clock))
        note_conflict(conflict, use->writes ? OPENREG_RACE_WRITE_WRITE : OPENREG_RACE_READ_WRITE, &in->write, 1, in,
                      use);
    if (use->writes && in->read.time != 0) {
        if (!is_known(&in->read, use->clock))
            note_conflict(conflict, OPENREG_RACE_READ_WRITE, &in->read, 0, in, use);
        for (uint32_t i = 0; i < in->more_count; ++i)
            if (!is_known(&in->more[i], use->clock))
                note_conflict(conflict, OPENREG_RACE_READ_WRITE, &in->more[i], 0, in, use);
    }
    if (use->wants_uninitialized && !use->writes && (in->flags & UNWRITTEN) != 0 && conflict->kind == 0) {
        note_conflict(conflict, OPENREG_RACE_UNINITIALIZED, &use->epoch, 0, in, use);
        conflict->kind = OPENREG_RACE_UNINITIALIZED;
    }
}

static bool
is_same(const openreg_epoch *a, const openreg_epoch *b)
{
    return a->time == b->time && a->line == b->line;
}

/* The cell is within the use. */
static void
update(cell *at, const openreg_shadow_use *use)
{
    if (!use->writes) {
        /* A read of memory that its new owner has not written is ignored, unless uninitialized reads are reported: an
         * operator often gets a tensor only for its shape. The earlier owner counts until the first write. */
        if ((at->flags & GIVEN) == 0)
            add_read(at, use);
        return;
    }
    free(at->more);
    at->more = NULL;
    at->more_count = 0;
    at->read.time = 0;
    at->write = use->epoch;
    at->flags = 0;
    at->freed = 0;
}

/* The same line has made this use at the same time: nothing changes, and there is nothing to find. */
static bool
is_repeated(const cell *at, const openreg_shadow_use *use)
{
    if (at->flags != 0)
        return false;
    if (use->writes)
        return is_same(&at->write, &use->epoch) && at->read.time == 0;
    return is_same(&at->read, &use->epoch) && at->read.time != 0 && at->more_count == 0;
}

/* The next piece of the range: a cell that lies in it, made where there is none; NULL: memory is short. */
static cell *
piece_at(uint64_t at, uint64_t end)
{
    cell *found = first_at(at);
    if (found == NULL || found->node.key > at)
        return insert(at, found == NULL || found->node.key > end ? end : found->node.key);
    if (found->node.key < at)
        found = cut(found, at);
    if (found != NULL && found->end > end && cut(found, end) == NULL)
        return NULL;
    return found;
}

void
openreg_shadow_note(const openreg_shadow_use *use, openreg_conflict *conflict)
{
    const uint64_t end = use->address + use->size;
    if (use->checks_only) {
        for (const cell *at = first_at(use->address); at != NULL && at->node.key < end; at = next_of(at))
            check(at, use, conflict);
        return;
    }
    cell *const whole = first_at(use->address);
    if (whole != NULL && whole->node.key <= use->address && whole->end >= end && is_repeated(whole, use)) {
        *latest_at(use->address) = whole;
        return;
    }
    cell *first = NULL; /* of a write, which merges all cells */
    for (uint64_t at = use->address; at < end;) {
        cell *const piece = piece_at(at, end);
        if (piece == NULL)
            return;
        at = piece->end;
        check(piece, use, conflict);
        if (first != NULL && use->writes) {
            first->end = piece->end;
            drop(piece);
            continue;
        }
        update(piece, use);
        first = piece;
    }
    *latest_at(use->address) = first;
}

void
openreg_shadow_free(uint64_t address, uint64_t size, uint32_t origin)
{
    const uint64_t end = address + size;
    for (cell *at = cut_at_bounds(address, end); at != NULL && at->node.key < end; at = next_of(at))
        if ((at->flags & GIVEN) == 0)
            at->freed = origin;
}

void
openreg_shadow_give(uint64_t address, uint64_t size)
{
    const uint64_t end = address + size;
    for (uint64_t at = address; at < end;) {
        cell *const piece = piece_at(at, end);
        if (piece == NULL)
            return;
        piece->flags = UNWRITTEN | (piece->write.time != 0 || piece->read.time != 0 ? GIVEN : 0);
        at = piece->end;
    }
}

void
openreg_shadow_pass(uint64_t address, uint64_t size, const openreg_clock *clock)
{
    const uint64_t end = address + size;
    for (cell *at = cut_at_bounds(address, end); at != NULL && at->node.key < end; at = next_of(at)) {
        drop_known_reads(at, clock);
        if (is_known(&at->write, clock))
            at->write.time = 0;
    }
}

void
openreg_shadow_forget(uint64_t address, uint64_t size)
{
    const uint64_t end = address + size;
    for (cell *at = cut_at_bounds(address, end), *next; at != NULL && at->node.key < end; at = next) {
        next = next_of(at);
        drop(at);
    }
}

void
openreg_shadow_excuse(uint64_t address, uint64_t size)
{
    const uint64_t end = address + size;
    for (cell *at = cut_at_bounds(address, end); at != NULL && at->node.key < end; at = next_of(at))
        at->flags &= ~UNWRITTEN;
}

bool
openreg_shadow_knows(uint64_t address, uint64_t size)
{
    const cell *const found = first_at(address);
    return found != NULL && found->node.key < address + size;
}

void
openreg_shadow_reset(void)
{
    while (cells.root != NULL)
        drop(cell_of(cells.root));
}
