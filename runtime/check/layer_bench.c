/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_bench.c: see layer_bench.h. */
#include "layer_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures.h"

#define FAR 1e-4 /* of float32: sums of 64 products */

int64_t
check_layer_between(check_layer *l, int64_t least, int64_t most)
{
    return least + check_bench_below(&l->b, most - least + 1);
}

bool
check_layer_toss(check_layer *l)
{
    return check_bench_below(&l->b, 2) == 0;
}

bool
check_layer_is(const check_layer *l, const char *name)
{
    return strcmp(l->b.kernel->name, name) == 0;
}

double
check_layer_rounded(const check_layer *l, double number)
{
    return l->dtype.bits == 32 ? (double)(float)number : number;
}

openreg_value *
check_layer_value(check_layer *l, const char *name, int32_t kind)
{
    REQUIRE(l->argument_count < CHECK_VALUES, "internal: too many arguments");
    openreg_value *const value = &l->arguments[l->argument_count];
    l->names[l->argument_count++] = name;
    *value = (openreg_value){.kind = kind};
    return value;
}

static double *
add_tensor(check_layer *l, openreg_dtype dtype, int32_t ndim, const int64_t *shape, stride_kind strides)
{
    REQUIRE(l->tensors < CHECK_PLACES, "internal: too many tensors");
    check_bench_lay(&l->b, l->tensors, ndim, shape, strides, dtype);
    const int64_t count = openreg_element_count(&l->b.places[l->tensors++].tensor);
    return calloc((size_t)count + 1, sizeof(double));
}

double *
check_layer_tensor(check_layer *l, const char *name, openreg_dtype dtype, int32_t ndim, const int64_t *shape)
{
    const int place = l->tensors;
    const stride_kind strides = l->layout == CHECK_STRIDED ? (stride_kind)check_layer_between(l, PERMUTED, EXPANDED)
                                : l->layout == CHECK_ANY   ? (stride_kind)check_layer_between(l, CONTIGUOUS, EXPANDED)
                                : l->has_strides           ? (stride_kind)check_layer_between(l, CONTIGUOUS, GAPPED)
                                                           : CONTIGUOUS;
    double *const values = add_tensor(l, dtype, ndim, shape, strides);
    const check_tensor *const t = &l->b.places[place];
    l->values[place] = values;
    l->inputs = l->tensors;
    for (int64_t i = 0; i < openreg_element_count(&t->tensor); ++i) {
        values[i] = (double)check_layer_between(l, -16, 16) / (check_is_float(dtype) ? 4 : 1);
        check_number_store(check_tensor_broadcast_at(t, t, i), dtype, values[i]);
    }
    for (int64_t i = 0; i < openreg_element_count(&t->tensor) && strides == EXPANDED;
         ++i) /* the last that went there */
        values[i] = check_number_load(check_tensor_broadcast_at(t, t, i), dtype);
    if (name != NULL)
        check_layer_value(l, name, OPENREG_VALUE_TENSOR)->tensor = &l->b.places[place].tensor;
    return values;
}

double *
check_layer_maybe_tensor(check_layer *l, const char *name, bool is_there, int32_t ndim, const int64_t *shape)
{
    if (is_there)
        return check_layer_tensor(l, name, l->dtype, ndim, shape);
    (void)check_layer_value(l, name, OPENREG_VALUE_NONE);
    return NULL;
}

double *
check_layer_written(check_layer *l)
{
    const int place = l->tensors - 1;
    const size_t bytes = (size_t)openreg_element_count(&l->b.places[place].tensor) * sizeof(double);
    l->wanted[place] = malloc(bytes + 1);
    memcpy(l->wanted[place], l->values[place], bytes);
    return l->wanted[place];
}

void
check_layer_tensors(check_layer *l, const char *name, int count)
{
    openreg_value *const value = check_layer_value(l, name, OPENREG_VALUE_TENSORS);
    value->tensors = l->list;
    value->count = (uint64_t)count;
    for (int i = 0; i < count; ++i)
        l->list[i] = &l->b.places[l->tensors - count + i].tensor;
}

void
check_layer_int(check_layer *l, const char *name, int64_t number)
{
    openreg_value *const value = check_layer_value(l, name, OPENREG_VALUE_INT);
    value->integer = number;
    value->real = (double)number;
    check_append(l->more, sizeof l->more, ", %s %g", name, (double)number);
}

void
check_layer_bool(check_layer *l, const char *name, bool truth)
{
    check_layer_int(l, name, truth);
    l->arguments[l->argument_count - 1].kind = OPENREG_VALUE_BOOL;
}

void
check_layer_real(check_layer *l, const char *name, double number)
{
    check_layer_value(l, name, OPENREG_VALUE_FLOAT)->real = number;
    check_append(l->more, sizeof l->more, ", %s %g", name, number);
}

void
check_layer_ints(check_layer *l, const char *name, int count, const int64_t *numbers)
{
    int64_t *const kept = l->integers[l->argument_count];
    openreg_value *const value = check_layer_value(l, name, OPENREG_VALUE_INTS);
    value->integers = kept;
    value->count = (uint64_t)count;
    for (int i = 0; i < count; ++i) {
        kept[i] = numbers[i];
        check_append(l->more, sizeof l->more, ", %s %g", i == 0 ? name : "and", (double)numbers[i]);
    }
}

double *
check_layer_result(check_layer *l, openreg_dtype dtype, int32_t ndim, const int64_t *shape)
{
    const int place = l->tensors;
    const bool is_strided = l->layout == CHECK_STRIDED || (l->layout == CHECK_ANY && check_layer_between(l, 0, 3) == 0);
    double *const wanted = add_tensor(l, dtype, ndim, shape,
                                      is_strided ? (stride_kind)check_layer_between(l, PERMUTED, GAPPED) : CONTIGUOUS);
    l->wanted[place] = wanted;
    check_layer_result_is(l, place);
    return wanted;
}

void
check_layer_gradients(check_layer *l, const bool *mask, const int32_t *ndims, const int64_t *const *shapes,
                      double **out)
{
    check_layer_ints(l, "output_mask", 3, (const int64_t[]){mask[0], mask[1], mask[2]});
    l->arguments[l->argument_count - 1].kind = OPENREG_VALUE_BOOLS;
    for (int i = 0; i < 3; ++i) {
        out[i] = mask[i] ? check_layer_result(l, l->dtype, ndims[i], shapes[i]) : NULL;
        if (!mask[i])
            l->results[l->result_count++] = (openreg_value){.kind = OPENREG_VALUE_NONE};
    }
}

void
check_layer_result_is(check_layer *l, int place)
{
    l->results[l->result_count++] = (openreg_value){.kind = OPENREG_VALUE_TENSOR, .tensor = &l->b.places[place].tensor};
}

void
check_layer_set_up(check_layer *l, check_context *c, int32_t dev)
{
    memset(l, 0, sizeof *l);
    check_bench_set_up(&l->b, c, dev);
}

static void
drop_numbers(check_layer *l)
{
    for (int i = 0; i < CHECK_PLACES; ++i) {
        free(l->values[i]);
        free(l->wanted[i]);
        l->values[i] = l->wanted[i] = NULL;
    }
}

void
check_layer_take_down(check_layer *l)
{
    drop_numbers(l);
    check_bench_take_back(&l->b);
    check_host_free(l->b.c, l->b.before, false);
    for (int i = 0; i < CHECK_PLACES; ++i) {
        check_free(l->b.c, l->b.dev, l->b.places[i].memory);
        check_host_free(l->b.c, l->b.places[i].host, false);
    }
}

bool
check_layer_begin(check_layer *l, const openreg_kernel *kernel, openreg_dtype dtype)
{
    const check_layer_operator *const op = check_layer_find(kernel->name);
    if (op == NULL)
        return false;
    drop_numbers(l);
    l->b.kernel = kernel;
    l->b.dtype = l->dtype = dtype;
    l->argument_count = l->result_count = 0;
    l->tensors = l->inputs = 0;
    l->terms = 0;
    l->more[0] = '\0';
    l->has_strides = l->layout == CHECK_MIXED && check_bench_below(&l->b, 3) == 0;
    op->build(l);
    l->b.dtype = l->dtype;
    check_bench_describe(&l->b, l->inputs, l->more);
    int64_t elements = 0;
    for (uint64_t i = 0; i < l->result_count; ++i)
        elements += l->results[i].tensor != NULL ? openreg_element_count(l->results[i].tensor) : 0;
    return elements > 0; /* the runtime makes no call without any */
}

/* The bytes of every tensor as they are before the call. */
void
check_layer_write(check_layer *l)
{
    for (int i = 0; i < l->tensors; ++i) {
        check_tensor *const t = &l->b.places[i];
        memset(t->host, CHECK_UNTOUCHED, t->used);
        for (int64_t k = 0; l->values[i] != NULL && k < openreg_element_count(&t->tensor); ++k)
            check_number_store(check_tensor_broadcast_at(t, t, k), t->tensor.dtype, l->values[i][k]);
        check_write(l->b.c, l->b.dev, t->memory, t->host, t->used);
    }
}

/* Layers add up much; elements, and products and sums of small numbers, are as near as they are in other checks. */
static bool
is_close(const check_layer *l, double seen, double wanted, openreg_dtype dtype)
{
    const char *const kernel = l->b.kernel->name;
    if (dtype.bits == 16 || !check_is_float(dtype) || isnan(wanted) || isinf(wanted) ||
        check_elementwise_find(kernel) != NULL || check_layer_is_product(kernel) ||
        check_reduction_find(kernel) != NULL)
        return check_is_close(seen, wanted, dtype);
    return fabs(seen - wanted) <= (dtype.bits == 64 ? 1e-10 : FAR) * (fabs(wanted) + 1 + l->terms / 64);
}

/* Compares a place with what is wanted there, if anything, and all bytes beside with those before. */
static void
compare_place(check_layer *l, int i, const char *what, bool is_refused)
{
    check_bench *const b = &l->b;
    check_tensor *const t = &b->places[i];
    const int64_t count = openreg_element_count(&t->tensor);
    memcpy(b->before, t->host, t->used);
    check_read(b->c, b->dev, t->host, t->memory, t->used);
    for (int64_t k = 0; l->wanted[i] != NULL && !is_refused && k < count; ++k) {
        unsigned char *const at = check_tensor_broadcast_at(t, t, k);
        const double seen = check_number_load(at, t->tensor.dtype);
        REQUIRE(is_close(l, seen, l->wanted[i][k], t->tensor.dtype), "%s, %s: element %lld of %s is %g, not %g",
                b->kernel->name, b->text, (long long)k, what, seen, l->wanted[i][k]);
        memcpy(at, b->before + (at - t->host), t->tensor.dtype.bits / 8);
    }
    const bool is_same = memcmp(b->before, t->host, t->used) == 0;
    REQUIRE(is_same || !is_refused, "%s, %s: it refused, and has written to %s", b->kernel->name, b->text, what);
    REQUIRE(is_same, "%s, %s: it has written to %s%s", b->kernel->name, b->text, what,
            l->wanted[i] != NULL ? " beside its elements" : ", which it reads alone");
}

bool
check_layer_end(check_layer *l, openreg_status status)
{
    check_bench *const b = &l->b;
    char what[40];
    check_sync(b->c, b->dev, b->stream);
    check_bench_take_back(b);
    for (int i = 0; i < l->tensors; ++i) {
        (void)snprintf(what, sizeof what, "%s %d", i < l->inputs ? "tensor" : "result",
                       i < l->inputs ? i : i - l->inputs);
        compare_place(l, i, what, status == OPENREG_E_UNSUPPORTED);
    }
    ++b->tried;
    b->served += status == OPENREG_OK;
    return status == OPENREG_OK;
}

bool
check_layer_call(check_layer *l)
{
    check_layer_write(l);
    return check_layer_end(l, check_layer_repeat(l));
}

openreg_status
check_layer_repeat(check_layer *l)
{
    check_bench_take_back(&l->b);
    return check_bench_queue(&l->b, l->arguments, l->argument_count, l->names, l->results, l->result_count);
}

bool
check_layer_serve(check_layer *l, const openreg_kernel *kernel)
{
    bool is_served = false;
    for (int k = 0; k < 24 && !is_served; ++k)
        if (check_layer_begin(l, kernel, check_dtypes[k % CHECK_DTYPES])) {
            check_layer_write(l);
            is_served = check_layer_repeat(l) == OPENREG_OK;
        }
    return is_served;
}

int32_t
check_kernel_device(check_context *c)
{
    static int32_t device = -1;
    const uint64_t random = c->random; /* calls are the same whatever was tried */
    for (int32_t dev = c->devices - 1; device < 0 && dev >= 0; --dev) {
        static check_layer l;
        const openreg_kernel *kernel;
        check_layer_set_up(&l, c, dev);
        for (uint64_t i = 0; device < 0 && (kernel = check_kernel_at(check_kernels(c), i)) != NULL; ++i)
            device = check_layer_serve(&l, kernel) ? dev : -1;
        check_sync(c, dev, NULL);
        check_layer_take_down(&l);
        c->random = random;
    }
    if (device < 0)
        device = c->devices - 1;
    return device;
}

/* The operators of each check, and how often each is called: matrices with every layout and type. */
static const struct {
    const char *check;
    const check_layer_operator *operators;
    bool is_matrix;
    int rounds;
} plans[] = {
    {"kernel.layers", check_row_layers, false, 24},       {"kernel.windows", check_window_layers, false, 24},
    {"kernel.moves", check_move_layers, false, 24},       {"kernel.indices", check_index_layers, false, 24},
    {"kernel.products", check_product_layers, true, 240}, {"kernel.reductions", check_reduction_layers, true, 160}};
#define PLANS (sizeof plans / sizeof plans[0])

/* Products are also of halves, which a kernel may not add up in. */
static openreg_dtype
dtype_of(int round, const check_layer_operator *operators, bool is_matrix)
{
    static const openreg_dtype halves[] = {{OPENREG_DTYPE_FLOAT, 16, 1}, {OPENREG_DTYPE_BFLOAT, 16, 1}};
    if (operators == check_product_layers && round % 6 > 3)
        return halves[round % 6 - 4];
    return check_dtypes[is_matrix ? round % CHECK_DTYPES : round % 4 == 3 ? 2 : 0];
}

void
check_layer_run(check_context *c)
{
    /* Sizes beyond a vector, a subgroup and one or several work groups, in some of the rounds. */
    static const int64_t lengths[] = {1025, 257, 65, 33, 9};
    enum { LENGTHS = sizeof lengths / sizeof lengths[0] };
    static check_layer l;
    const openreg_kernel *kernel;
    size_t p = 0;
    while (strcmp(plans[p].check, c->check->name) != 0)
        ++p;
    check_layer_set_up(&l, c, check_kernel_device(c));
    l.layout = plans[p].is_matrix ? CHECK_ANY : CHECK_MIXED;
    for (uint64_t i = 0; (kernel = check_kernel_at(check_kernels(c), i)) != NULL; ++i) {
        const check_layer_operator *const op = check_layer_find(kernel->name);
        const check_layer_operator *listed = plans[p].operators;
        while (listed->name != NULL && op != listed)
            ++listed;
        if (listed->name == NULL)
            continue;
        for (int round = 0; round < plans[p].rounds; ++round) {
            l.b.longest = round % 3 == 2 && round < 60 ? lengths[(size_t)round / 3 % LENGTHS] : 0;
            if (check_layer_begin(&l, kernel, dtype_of(round, plans[p].operators, plans[p].is_matrix)))
                (void)check_layer_call(&l);
        }
        check_bench_require_served(&l.b);
    }
    check_bench_skip_untried(l.b.tried);
}

/* aten::add and others by the element. */
static void
build_elements(check_layer *l)
{
    const check_elementwise *const op = check_elementwise_find(l->b.kernel->name);
    static const openreg_dtype boolean = {OPENREG_DTYPE_BOOL, 8, 1};
    int64_t shape[4];
    const int32_t ndim = (int32_t)check_layer_between(l, 0, 4);
    const int64_t count = check_bench_shape(&l->b, ndim, 5, shape);
    const bool is_expanded = (l->b.kernel->flags & OPENREG_KERNEL_ELEMENTWISE) != 0;
    const double *values[CHECK_VALUES] = {NULL};
    bool is_one[CHECK_VALUES] = {false};
    const char *const *const names = check_bench_names(&l->b, op->names);
    for (int i = 0; op->kinds[i] != '\0'; ++i)
        switch (op->kinds[i]) {
        case 'T':
        case 'N':
            values[i] = check_layer_tensor(l, names[i], l->dtype, ndim, shape);
            break;
        case 'V':
            values[i] = check_layer_tensor(l, names[i], l->dtype, is_expanded ? ndim : 0, shape);
            is_one[i] = !is_expanded;
            break;
        case 'M': {
            double *const mask = check_layer_tensor(l, names[i], boolean, ndim, shape);
            for (int64_t k = 0; k < count; ++k)
                mask[k] = mask[k] > 0;
            values[i] = mask;
            break;
        }
        case 'G':
            *check_layer_value(l, names[i],
                               0) = (openreg_value){.kind = OPENREG_VALUE_STRING, .text = "none", .count = 4};
            break;
        default:
            check_layer_int(l, names[i], 2);
        }
    double *const wanted = check_layer_result(l, op->is_boolean ? boolean : l->dtype, ndim, shape);
    for (int64_t k = 0; k < count; ++k) {
        double numbers[4] = {0};
        int64_t wholes[4] = {0};
        for (int i = 0; op->kinds[i] != '\0'; ++i) {
            numbers[i] = values[i] != NULL ? values[i][is_one[i] ? 0 : k] : op->kinds[i] == 'G' ? 0 : 2;
            wholes[i] = (int64_t)numbers[i];
        }
        wanted[k] = check_is_float(l->dtype) ? check_elementwise_real(op, numbers)
                                             : (double)check_elementwise_whole(op, wholes);
    }
}

const check_layer_operator *
check_layer_find(const char *name)
{
    static const check_layer_operator elements = {"", build_elements};
    if (check_elementwise_find(name) != NULL)
        return &elements;
    if (check_reduction_find(name) != NULL)
        return check_reduction_layers;
    for (size_t p = 0; p < PLANS; ++p)
        for (const check_layer_operator *op = plans[p].operators; op->name != NULL; ++op)
            if (strcmp(op->name, name) == 0)
                return op;
    return NULL;
}

bool
check_layer_is_product(const char *name)
{
    const check_layer_operator *const op = check_layer_find(name);
    return op != NULL && op->build == check_product_layers[0].build;
}
