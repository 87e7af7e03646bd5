/* SPDX-License-Identifier: BSD-3-Clause */
/* openreg/word_copies.h: copies and fills of any bytes for a vendor that copies whole words only, at offsets that are multiples of
 * a word (WebGPU: 4 bytes). For drivers; defined in this header only. Not stable: it is version 0, and may change in any release;
 * a driver keeps the copy that it was built with. Valid C11 and C++17.
 *
 * The words in the middle of a range are copied directly; of the words at its ends the other bytes are read and written back.
 * So no other thread may write the same buffer during a call: one lock a device, held while these functions run, is enough. A
 * buffer's size is a multiple of the word. */
#ifndef OPENREG_WORD_COPIES_H
#define OPENREG_WORD_COPIES_H

#include <stdint.h>
#include <string.h>

#include <openreg/export.h>
#include <openreg/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPENREG_WORD_MAX 64u

/* The vendor's side. Offsets and sizes are multiples of `word`; each function works in the order of the calls, and returns once
 * the host's memory may be reused (write) or is filled (read). On an error it notes the text where the caller of the functions
 * below finds it, by `ctx`: in a slot it calls openreg_fail(), in the work of a stream it fills openreg_soft_failure. They return
 * the code in turn; what they have written until then stays. */
typedef struct openreg_words {
    uint32_t word; /* bytes, a power of two, at most OPENREG_WORD_MAX */
    void *ctx;     /* the first argument of the functions */
    openreg_status (*read)(void *ctx, void *handle, uint64_t offset, void *host, uint64_t size);
    openreg_status (*write)(void *ctx, void *handle, uint64_t offset, const void *host, uint64_t size);
    openreg_status (*move)(void *ctx, void *dst, uint64_t dst_offset, void *src, uint64_t src_offset, uint64_t size);
    openreg_status (*fill)(void *ctx, void *handle, uint64_t offset, uint8_t value, uint64_t size);
} openreg_words;

/* A range cut at words: `head` and `tail` are in words that it shares with other bytes. */
typedef struct openreg_word_cut {
    uint64_t head, body, tail; /* bytes */
} openreg_word_cut;

OPENREG_HELPER openreg_word_cut
openreg_words_cut(uint32_t word, uint64_t offset, uint64_t size)
{
    openreg_word_cut cut;
    cut.head = (word - offset % word) % word;
    if (cut.head > size)
        cut.head = size;
    cut.body = (size - cut.head) / word * word;
    cut.tail = size - cut.head - cut.body;
    return cut;
}

/* Writes bytes inside of one word; `host` NULL: `value` to each. */
OPENREG_HELPER openreg_status
openreg_words_patch(const openreg_words *words, void *handle, uint64_t offset, const void *host, uint8_t value,
                    uint64_t size)
{
    unsigned char bytes[OPENREG_WORD_MAX];
    const uint64_t first = offset % words->word;
    const openreg_status status = words->read(words->ctx, handle, offset - first, bytes, words->word);
    if (status != OPENREG_OK)
        return status;
    if (host != NULL)
        memcpy(bytes + first, host, (size_t)size);
    else
        memset(bytes + first, value, (size_t)size);
    return words->write(words->ctx, handle, offset - first, bytes, words->word);
}

/* Reads bytes inside of one word. */
OPENREG_HELPER openreg_status
openreg_words_peek(const openreg_words *words, void *handle, uint64_t offset, void *host, uint64_t size)
{
    unsigned char bytes[OPENREG_WORD_MAX];
    const uint64_t first = offset % words->word;
    const openreg_status status = words->read(words->ctx, handle, offset - first, bytes, words->word);
    if (status == OPENREG_OK)
        memcpy(host, bytes + first, (size_t)size);
    return status;
}

/* Copies `size` bytes at `offset` of a buffer to the host. */
OPENREG_HELPER openreg_status
openreg_words_read(const openreg_words *words, void *handle, uint64_t offset, void *host, uint64_t size)
{
    const openreg_word_cut cut = openreg_words_cut(words->word, offset, size);
    unsigned char *const to = (unsigned char *)host;
    openreg_status status = OPENREG_OK;
    if (cut.head > 0)
        status = openreg_words_peek(words, handle, offset, to, cut.head);
    if (cut.body > 0 && status == OPENREG_OK)
        status = words->read(words->ctx, handle, offset + cut.head, to + cut.head, cut.body);
    if (cut.tail > 0 && status == OPENREG_OK)
        status = openreg_words_peek(words, handle, offset + cut.head + cut.body, to + cut.head + cut.body, cut.tail);
    return status;
}

/* Copies `size` bytes of the host to `offset` of a buffer. */
OPENREG_HELPER openreg_status
openreg_words_write(const openreg_words *words, void *handle, uint64_t offset, const void *host, uint64_t size)
{
    const openreg_word_cut cut = openreg_words_cut(words->word, offset, size);
    const unsigned char *const from = (const unsigned char *)host;
    openreg_status status = OPENREG_OK;
    if (cut.head > 0)
        status = openreg_words_patch(words, handle, offset, from, 0, cut.head);
    if (cut.body > 0 && status == OPENREG_OK)
        status = words->write(words->ctx, handle, offset + cut.head, from + cut.head, cut.body);
    if (cut.tail > 0 && status == OPENREG_OK)
        status = openreg_words_patch(words, handle, offset + cut.head + cut.body, from + cut.head + cut.body, 0,
                                     cut.tail);
    return status;
}

/* Sets `size` bytes at `offset` of a buffer to `value`. */
OPENREG_HELPER openreg_status
openreg_words_fill(const openreg_words *words, void *handle, uint64_t offset, uint8_t value, uint64_t size)
{
    const openreg_word_cut cut = openreg_words_cut(words->word, offset, size);
    openreg_status status = OPENREG_OK;
    if (cut.head > 0)
        status = openreg_words_patch(words, handle, offset, NULL, value, cut.head);
    if (cut.body > 0 && status == OPENREG_OK)
        status = words->fill(words->ctx, handle, offset + cut.head, value, cut.body);
    if (cut.tail > 0 && status == OPENREG_OK)
        status = openreg_words_patch(words, handle, offset + cut.head + cut.body, NULL, value, cut.tail);
    return status;
}

/* Copies `size` bytes between buffers of one device, or inside of one, where the ranges don't overlap. Where source and target
 * lie differently in their words, all bytes go through the host, 16 KiB at a time. */
OPENREG_HELPER openreg_status
openreg_words_move(const openreg_words *words, void *dst, uint64_t dst_offset, void *src, uint64_t src_offset,
                   uint64_t size)
{
    unsigned char bytes[16384];
    const int is_aligned = dst_offset % words->word == src_offset % words->word;
    openreg_status status = OPENREG_OK;
    while (size > 0 && status == OPENREG_OK) {
        const openreg_word_cut cut = openreg_words_cut(words->word, dst_offset, size);
        uint64_t part = size < sizeof bytes ? size : sizeof bytes;
        if (is_aligned && cut.head == 0 && cut.body > 0) {
            part = cut.body;
            status = words->move(words->ctx, dst, dst_offset, src, src_offset, part);
        } else {
            if (is_aligned)
                part = cut.head > 0 ? cut.head : cut.tail;
            status = openreg_words_read(words, src, src_offset, bytes, part);
            if (status == OPENREG_OK)
                status = openreg_words_write(words, dst, dst_offset, bytes, part);
        }
        dst_offset += part;
        src_offset += part;
        size -= part;
    }
    return status;
}

#ifdef __cplusplus
}
#endif
#endif /* OPENREG_WORD_COPIES_H */
