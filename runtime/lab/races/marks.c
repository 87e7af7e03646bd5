/* SPDX-License-Identifier: BSD-3-Clause */
/* marks.c: clocks of marks, in a tree (marks.h). */
#include "races/marks.h"

#include <stdlib.h>

#include "base/tree.h"

typedef struct race_mark {
    openreg_tree_node node; /* by number */
    openreg_clock clock;
} race_mark;

static openreg_tree marks;

static race_mark *
find(uint64_t number)
{
    openreg_tree_node *const node = openreg_tree_at_most(&marks, number);
    return node != NULL && node->key == number ? OPENREG_TREE_OWNER(node, race_mark, node) : NULL;
}

static void
forget(race_mark *mark)
{
    openreg_tree_remove(&marks, &mark->node);
    openreg_clock_free(&mark->clock);
    free(mark);
}

bool
openreg_marks_add(uint64_t number, const openreg_clock *clock)
{
    race_mark *const mark = calloc(1, sizeof *mark);
    if (mark == NULL)
        return false;
    if (!openreg_clock_copy(&mark->clock, clock)) {
        openreg_clock_free(&mark->clock);
        free(mark);
        return false;
    }
    mark->node.key = number;
    openreg_tree_insert(&marks, &mark->node);
    return true;
}

const openreg_clock *
openreg_marks_find(uint64_t number)
{
    const race_mark *const mark = find(number);
    return mark != NULL ? &mark->clock : NULL;
}

void
openreg_marks_remove(uint64_t number)
{
    race_mark *const mark = find(number);
    if (mark != NULL)
        forget(mark);
}

void
openreg_marks_reset(void)
{
    while (marks.root != NULL)
        forget(OPENREG_TREE_OWNER(marks.root, race_mark, node));
}
