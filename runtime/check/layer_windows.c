/* SPDX-License-Identifier: BSD-3-Clause */
/* layer_windows.c: pooling and convolutions, and their gradients, against a reference in C (layer_bench.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layer_bench.h"

/* Windows over images in up to two dimensions. */
typedef struct windows {
    int32_t spatial;
    int64_t size[2], kernel[2], stride[2], padding[2], dilation[2], out[2];
} windows;

static void
pick_windows(check_layer *l, windows *w, int32_t spatial)
{
    *w = (windows){.spatial = spatial};
    for (int d = 0; d < 2; ++d) {
        const bool is_there = d < spatial;
        w->kernel[d] = is_there ? check_layer_between(l, 1, 3) : 1;
        w->stride[d] = is_there ? check_layer_between(l, 1, 3) : 1;
        w->padding[d] = is_there ? check_layer_between(l, 0, w->kernel[d] / 2) : 0;
        w->dilation[d] = is_there ? check_layer_between(l, 1, 2) : 1;
        w->size[d] = is_there ? w->dilation[d] * (w->kernel[d] - 1) + check_layer_between(l, 1, 5) : 1;
        w->out[d] = (w->size[d] + 2 * w->padding[d] - w->dilation[d] * (w->kernel[d] - 1) - 1) / w->stride[d] + 1;
    }
}

/* A list as programs give it: one number for all dimensions where that is the same. */
static void
add_list(check_layer *l, const char *name, const windows *w, const int64_t *numbers)
{
    const bool is_one = w->spatial == 2 && numbers[0] == numbers[1] && check_layer_toss(l);
    check_layer_ints(l, name, is_one ? 1 : w->spatial, numbers);
}

static void
add_pool(check_layer *l, windows *w, bool is_ceiled)
{
    const bool is_stride_kernel = w->stride[0] == w->kernel[0] && w->stride[1] == w->kernel[1] && check_layer_toss(l);
    add_list(l, "kernel_size", w, w->kernel);
    if (is_stride_kernel)
        check_layer_ints(l, "stride", 0, NULL); /* none: the kernel's */
    else
        add_list(l, "stride", w, w->stride);
    add_list(l, "padding", w, w->padding);
    add_list(l, "dilation", w, w->dilation);
    check_layer_bool(l, "ceil_mode", is_ceiled);
}

/* Sizes, and the place of the greatest of each window. */
typedef struct pool {
    windows w;
    int32_t ndim;
    int64_t planes, shape[4], out_shape[4];
    bool is_ceiled;
} pool;

static void
pick_pool(check_layer *l, pool *p)
{
    pick_windows(l, &p->w, 2);
    p->is_ceiled = check_layer_toss(l);
    for (int d = 0; d < 2 && p->is_ceiled; ++d) { /* a last window may reach over the end, where it begins inside */
        windows *const w = &p->w;
        const int64_t room = w->size[d] + 2 * w->padding[d] - w->dilation[d] * (w->kernel[d] - 1) - 1;
        const int64_t out = (room + w->stride[d] - 1) / w->stride[d] + 1;
        w->out[d] = (out - 1) * w->stride[d] >= w->size[d] + w->padding[d] ? out - 1 : out;
    }
    p->ndim = (int32_t)check_layer_between(l, 3, 4);
    p->planes = check_bench_shape(&l->b, p->ndim - 2, 3, p->shape);
    memcpy(p->out_shape, p->shape, sizeof p->out_shape);
    memcpy(p->shape + p->ndim - 2, p->w.size, sizeof p->w.size);
    memcpy(p->out_shape + p->ndim - 2, p->w.out, sizeof p->w.out);
}

static void
pool_reference(const pool *p, const double *x, double *most, double *at)
{
    const windows *const w = &p->w;
    const int64_t outs = w->out[0] * w->out[1];
    for (int64_t i = 0; i < p->planes * outs; ++i) {
        const double *const plane = x + i / outs * w->size[0] * w->size[1];
        most[i] = -INFINITY;
        for (int64_t k = 0; k < w->kernel[0] * w->kernel[1]; ++k) {
            const int64_t row = i / w->out[1] % w->out[0] * w->stride[0] - w->padding[0] +
                                k / w->kernel[1] * w->dilation[0];
            const int64_t column = i % w->out[1] * w->stride[1] - w->padding[1] + k % w->kernel[1] * w->dilation[1];
            if (row < 0 || row >= w->size[0] || column < 0 || column >= w->size[1] ||
                plane[row * w->size[1] + column] <= most[i])
                continue;
            most[i] = plane[row * w->size[1] + column];
            at[i] = (double)(row * w->size[1] + column);
        }
    }
}

/* Each number once: which of two equal ones counts is nobody's promise. */
static void
make_distinct(double *x, int64_t count)
{
    int64_t step = 37;
    while (count % step == 0)
        ++step;
    for (int64_t i = 0; i < count; ++i)
        x[i] = (double)(i * step % count - count / 2) / 4;
}

static void
max_pool(check_layer *l)
{
    pool p;
    pick_pool(l, &p);
    double *const x = check_layer_tensor(l, "self", l->dtype, p.ndim, p.shape);
    make_distinct(x, p.planes * p.w.size[0] * p.w.size[1]);
    add_pool(l, &p.w, p.is_ceiled);
    double *const most = check_layer_result(l, l->dtype, p.ndim, p.out_shape);
    pool_reference(&p, x, most, check_layer_result(l, CHECK_INT64, p.ndim, p.out_shape));
}

static void
max_pool_backward(check_layer *l)
{
    pool p;
    pick_pool(l, &p);
    const int64_t outs = p.w.out[0] * p.w.out[1], inputs = p.w.size[0] * p.w.size[1];
    const double *const grad = check_layer_tensor(l, "grad_output", l->dtype, p.ndim, p.out_shape);
    double *const x = check_layer_tensor(l, "self", l->dtype, p.ndim, p.shape);
    make_distinct(x, p.planes * inputs);
    add_pool(l, &p.w, p.is_ceiled);
    double *const indices = check_layer_tensor(l, "indices", CHECK_INT64, p.ndim, p.out_shape);
    double *const out = check_layer_result(l, l->dtype, p.ndim, p.shape);
    double *const most = malloc(sizeof *most * (size_t)(p.planes * outs));
    pool_reference(&p, x, most, indices);
    free(most);
    for (int64_t i = 0; i < p.planes * outs; ++i)
        out[i / outs * inputs + (int64_t)indices[i]] += grad[i];
}

/* Of images (batch, groups * per_image, size) and filters to results (batch, groups * per_result, out). A transposed one
 * makes images of results. */
typedef struct convolution {
    windows w;
    int64_t batch, groups, per_image, per_result, extra[2];
    bool is_transposed;
    int64_t image_shape[4], filter_shape[4], result_shape[4];
    int32_t ndim;
    const int64_t *from, *to; /* the operator's input and output, of these shapes */
} convolution;

static void
pick_convolution(check_layer *l, convolution *c)
{
    memset(c, 0, sizeof *c);
    pick_windows(l, &c->w, check_layer_between(l, 0, 3) == 0 ? 1 : 2);
    c->batch = check_layer_between(l, 1, 3);
    c->groups = check_layer_between(l, 0, 3) == 0 ? 2 : 1;
    c->per_image = check_layer_between(l, 1, 3);
    c->per_result = check_layer_between(l, 1, 3);
    c->is_transposed = check_layer_between(l, 0, 3) == 0;
    const int64_t images = c->groups * c->per_image, results = c->groups * c->per_result;
    for (int d = 0; d < 2; ++d) { /* what the results' size doesn't say of the images': below the stride */
        const int64_t least = (c->w.out[d] - 1) * c->w.stride[d] - 2 * c->w.padding[d] +
                              c->w.dilation[d] * (c->w.kernel[d] - 1) + 1;
        c->extra[d] = c->w.size[d] - least;
    }
    const int64_t shapes[3][2] = {{c->batch, images}, {results, c->per_image}, {c->batch, results}};
    int64_t *const all[] = {c->image_shape, c->filter_shape, c->result_shape};
    const int64_t *const spatial[] = {c->w.size, c->w.kernel, c->w.out};
    for (int i = 0; i < 3; ++i) {
        memcpy(all[i], shapes[i], sizeof shapes[i]);
        memcpy(all[i] + 2, spatial[i], sizeof c->w.size);
    }
    c->ndim = c->w.spatial + 2;
    c->from = c->is_transposed ? c->result_shape : c->image_shape;
    c->to = c->is_transposed ? c->image_shape : c->result_shape;
}

/* into += a * b over every image number, filter number and result number that meet; one of the three is written. */
static void
convolve(const convolution *c, double *images, double *filters, double *results, int written)
{
    const windows *const w = &c->w;
    const int64_t outs = w->out[0] * w->out[1], taps = w->kernel[0] * w->kernel[1], size = w->size[0] * w->size[1];
    const int64_t of_results = c->groups * c->per_result, of_images = c->groups * c->per_image;
    for (int64_t r = 0; r < c->batch * of_results * outs; ++r)
        for (int64_t k = 0; k < c->per_image * taps; ++k) {
            const int64_t channel = r / outs % of_results, tap = k % taps;
            const int64_t row = r / w->out[1] % w->out[0] * w->stride[0] - w->padding[0] +
                                tap / w->kernel[1] * w->dilation[0];
            const int64_t column = r % w->out[1] * w->stride[1] - w->padding[1] + tap % w->kernel[1] * w->dilation[1];
            if (row < 0 || row >= w->size[0] || column < 0 || column >= w->size[1])
                continue;
            const int64_t of_image = channel / c->per_result * c->per_image + k / taps;
            double *const image = images + (r / (outs * of_results) * of_images + of_image) * size + row * w->size[1] +
                                  column;
            double *const filter = filters + channel * c->per_image * taps + k;
            if (written == 0)
                *image += *filter * results[r];
            else if (written == 1)
                *filter += *image * results[r];
            else
                results[r] += *image * *filter;
        }
}

static void
add_convolution(check_layer *l, const convolution *c)
{
    static const int64_t none[2] = {0, 0};
    const int32_t n = c->w.spatial;
    check_layer_ints(l, "stride", n, c->w.stride);
    check_layer_ints(l, "padding", n, c->w.padding);
    check_layer_ints(l, "dilation", n, c->w.dilation);
    check_layer_bool(l, "transposed", c->is_transposed);
    check_layer_ints(l, "output_padding", n, c->is_transposed ? c->extra : none);
    check_layer_int(l, "groups", c->groups);
}

static void
convolution_forward(check_layer *l)
{
    convolution c;
    pick_convolution(l, &c);
    double *const x = check_layer_tensor(l, "input", l->dtype, c.ndim, c.from);
    double *const filters = check_layer_tensor(l, "weight", l->dtype, c.ndim, c.filter_shape);
    const double *const bias = check_layer_maybe_tensor(l, "bias", check_layer_toss(l), 1, c.to + 1);
    add_convolution(l, &c);
    double *const out = check_layer_result(l, l->dtype, c.ndim, c.to);
    const int64_t plane = c.to[2] * c.to[3];
    for (int64_t i = 0; bias != NULL && i < c.to[0] * c.to[1] * plane; ++i)
        out[i] = bias[i / plane % c.to[1]];
    if (c.is_transposed)
        convolve(&c, out, filters, x, 0);
    else
        convolve(&c, x, filters, out, 2);
}

static void
convolution_backward(check_layer *l)
{
    convolution c;
    pick_convolution(l, &c);
    double *const grad = check_layer_tensor(l, "grad_output", l->dtype, c.ndim, c.to),
                  *const x = check_layer_tensor(l, "input", l->dtype, c.ndim, c.from),
                  *const filters = check_layer_tensor(l, "weight", l->dtype, c.ndim, c.filter_shape);
    const bool mask[] = {check_layer_toss(l), check_layer_toss(l), check_layer_toss(l)};
    if (mask[2])
        check_layer_ints(l, "bias_sizes", 1, c.to + 1);
    else
        (void)check_layer_value(l, "bias_sizes", OPENREG_VALUE_NONE);
    add_convolution(l, &c);
    double *out[3];
    check_layer_gradients(l, mask, (const int32_t[]){c.ndim, c.ndim, 1},
                          (const int64_t *const[]){c.from, c.filter_shape, c.to + 1}, out);
    if (out[0] != NULL && c.is_transposed)
        convolve(&c, grad, filters, out[0], 2);
    else if (out[0] != NULL)
        convolve(&c, out[0], filters, grad, 0);
    if (out[1] != NULL)
        convolve(&c, c.is_transposed ? grad : x, out[1], c.is_transposed ? x : grad, 1);
    const int64_t plane = c.to[2] * c.to[3];
    for (int64_t i = 0; out[2] != NULL && i < c.to[0] * c.to[1] * plane; ++i)
        out[2][i / plane % c.to[1]] += grad[i];
}

const check_layer_operator check_window_layers[] = {
    {"aten::max_pool2d_with_indices", max_pool},
    {"aten::max_pool2d_with_indices_backward", max_pool_backward},
    {"aten::convolution", convolution_forward},
    {"aten::convolution_backward", convolution_backward},
    {NULL, NULL},
};
