/* memcheck.c - the passes over a board's memory, and the host's part of the kernel. */
#include "memcheck.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 4096, LOCAL_ITEMS = 64, CHUNK_BYTES = 1 << 20, PIECES_MAX = 1024, WALKS = 32 };
enum pattern { NONE, ADDRESS, SOLID, WALK, RANDOM, INVERTED = 8 };
#define PIECE_BYTES_MAX (UINT64_C(1) << 33) /* a kernel counts words in 32 bits */

struct pass {
    const char *name;
    uint32_t expect, expect_seed, write, write_seed;
    bool down;
};

/* Before and after the walking bits, which are made by counting. */
static const struct pass address_passes[] = {
    {"address", NONE, 0, ADDRESS, 0, false},
    {"address", ADDRESS, 0, ADDRESS | INVERTED, 0, false},
    {"address, inverted", ADDRESS | INVERTED, 0, SOLID, 0, false},
    {"moving inversions", SOLID, 0, SOLID, 0xffffffff, false},
    {"moving inversions", SOLID, 0xffffffff, SOLID, 0x55555555, true},
    {"moving inversions", SOLID, 0x55555555, SOLID, 0xaaaaaaaa, false},
    {"moving inversions", SOLID, 0xaaaaaaaa, WALK, 0, true},
};
static const struct pass random_passes[] = {
    {"walking bits", WALK, WALKS, RANDOM, 0x6b65656c, false},
    {"random", RANDOM, 0x6b65656c, RANDOM | INVERTED, 0x6b65656c, false},
    {"random", RANDOM | INVERTED, 0x6b65656c, NONE, 0, false},
};
enum {
    ADDRESS_PASSES = sizeof address_passes / sizeof address_passes[0],
    RANDOM_PASSES = sizeof random_passes / sizeof random_passes[0],
    PASSES = ADDRESS_PASSES + 2 * WALKS + RANDOM_PASSES
};

static struct pass pass_of(uint32_t number)
{
    if (number < ADDRESS_PASSES)
        return address_passes[number];
    number -= ADDRESS_PASSES;
    if (number >= 2 * WALKS)
        return random_passes[number - 2 * WALKS];
    uint32_t shift = number / 2; /* a one walks through zeros, then its complement */
    if (number % 2 == 0)
        return (struct pass){"walking bits", WALK, shift, WALK | INVERTED, shift, false};
    return (struct pass){"walking bits", WALK | INVERTED, shift, WALK, shift + 1, true};
}

/* ---- the kernel on the host ---------------------------------------------------------------------------- */

static uint32_t pattern_word(uint32_t pattern, uint32_t seed, uint64_t address)
{
    uint32_t kind = pattern & 7, low = (uint32_t)address, high = (uint32_t)(address >> 32), word = seed;
    if (kind == ADDRESS) {
        word = low ^ (high * 0x9e3779b9u);
    } else if (kind == WALK) {
        word = UINT32_C(1) << ((low + seed) & 31);
    } else if (kind == RANDOM) {
        word = (low * 0x9e3779b1u) ^ high ^ seed;
        word = (word ^ (word >> 16)) * 0x85ebca6bu;
        word = (word ^ (word >> 13)) * 0xc2b2ae35u;
        word ^= word >> 16;
    }
    return (pattern & INVERTED) != 0 ? ~word : word;
}

/* Does words [first, first + turns) of the piece. */
static void host_span(uint32_t *words, uint32_t report[4], uint64_t base, uint64_t first, uint32_t turns,
                      const struct pass *pass)
{
    for (uint32_t turn = 0; turn < turns; turn++) {
        uint64_t index = first + (pass->down ? turns - 1 - turn : turn);
        if (pass->expect != NONE) {
            uint32_t word = words[index];
            uint32_t right = pattern_word(pass->expect, pass->expect_seed, base + index);
            if (word != right && report[0]++ == 0) {
                report[1] = (uint32_t)index;
                report[2] = word;
                report[3] = right;
            }
        }
        if (pass->write != NONE)
            words[index] = pattern_word(pass->write, pass->write_seed, base + index);
    }
}

static void host_pass(void *const *arguments, const struct keel_range *range)
{
    uint32_t numbers[7]; /* count, expect, its seed, write, its seed, down, span */
    uint64_t base;
    memcpy(&base, arguments[2], sizeof base);
    for (uint32_t i = 0; i < 7; i++)
        memcpy(&numbers[i], arguments[3 + i], sizeof numbers[i]);
    struct pass pass = {"", numbers[1], numbers[2], numbers[3], numbers[4], numbers[5] != 0};
    uint32_t *words = arguments[0], *report = arguments[1], items = (uint32_t)range->global[0];
    uint64_t count = numbers[0], span = numbers[6], stride = items * span,
             blocks = (count + stride - 1) / stride;
    memset(report, 0, (size_t)items * 4 * sizeof *report);
    for (uint64_t at = 0; at < blocks * items; at++) {
        uint64_t block = at / items, item = at % items;
        uint64_t start = (pass.down ? blocks - 1 - block : block) * stride + item * span;
        uint64_t turns = start >= count ? 0 : count - start < span ? count - start : span;
        host_span(words, report + item * 4, base, start, (uint32_t)turns, &pass);
    }
}

extern const struct keel_packed_text keel_cl_memcheck;
static const struct keel_module_kernel kernels[] = {{"keel_memcheck_pass", host_pass}};
const struct keel_module keel_memcheck_module = {
    .name = "memcheck", .packed = &keel_cl_memcheck, .kernels = kernels, .kernel_count = 1};

/* ---- one run ------------------------------------------------------------------------------------------- */

struct piece {
    struct keel_buffer *buffer;
    uint64_t base_words;
    uint32_t count, bank;
    uint64_t best_ns; /* of its passes that read and write; 0: none yet */
};

struct memcheck {
    struct memcheck *next; /* in kept */
    struct keel_device *device;
    const struct keel_memcheck_options *options;
    struct keel_memcheck_result *result;
    struct keel_queue *queue;
    struct keel_program *program; /* NULL: by copies */
    struct keel_kernel *kernel;
    struct keel_buffer *report_buffer;
    uint32_t (*report)[4]; /* ITEMS */
    uint32_t *chunk;       /* CHUNK_BYTES, by copies */
    struct piece pieces[PIECES_MAX];
    uint32_t piece_count;
};

/* As much of one bank as is its share, in pieces. OK: so much, or all that there was. */
static enum keel_status take_bank(struct memcheck *check, uint32_t bank, uint64_t largest, uint64_t share)
{
    uint64_t taken = 0;
    while (taken < share && check->piece_count < PIECES_MAX) {
        uint64_t left = share - taken, bytes = left < largest ? left : largest;
        struct piece *piece = &check->pieces[check->piece_count];
        struct keel_buffer_options options = {.bytes = bytes, .memory = KEEL_MEMORY_DEVICE, .bank = bank};
        enum keel_status status = keel_buffer_create_in(check->device, &options, &piece->buffer);
        if (status == KEEL_NO_MEMORY)
            return KEEL_OK;
        KEEL_TRY(status);
        piece->base_words = check->result->tested_bytes / 4;
        piece->count = (uint32_t)(bytes / 4);
        piece->bank = bank;
        taken += bytes;
        check->result->tested_bytes += bytes;
        check->piece_count++;
    }
    return KEEL_OK;
}

static enum keel_status take_pieces(struct memcheck *check)
{
    const struct keel_memcheck_options *options = check->options;
    const struct keel_device_info *info = keel_device_info(check->device);
    uint64_t largest = info->max_buffer_bytes, banks = info->memory_banks > 1 ? info->memory_banks : 1;
    uint64_t share = options->bytes / banks & ~UINT64_C(3);
    if (options->piece_bytes != 0 && options->piece_bytes < largest)
        largest = options->piece_bytes;
    largest = (largest < PIECE_BYTES_MAX ? largest : PIECE_BYTES_MAX) & ~UINT64_C(3);
    if (share == 0 || largest == 0)
        return keel_fail(KEEL_INVALID, "memory check: nothing to test");
    /* The report lies in bank 0, and there is no pattern where it lies. */
    uint64_t own = check->report_buffer != NULL ? keel_buffer_bytes(check->report_buffer) : 0;
    own = own < share ? own : 0;
    check->result->wanted_bytes = share * banks - own;
    check->result->banks = (uint32_t)banks;
    for (uint32_t bank = 0; bank < banks; bank++)
        KEEL_TRY(take_bank(check, bank, largest, bank == 0 ? share - own : share));
    check->result->pieces = check->piece_count;
    if (check->piece_count == 0)
        return keel_fail(KEEL_NO_MEMORY, "memory check: not one piece of %llu bytes could be had",
                         (unsigned long long)largest);
    return KEEL_OK;
}

/* The kernel, or the copies where the board has no code for it. */
static enum keel_status make_kernel(struct memcheck *check)
{
    enum keel_status status = keel_program_create(check->device, &keel_memcheck_module, "", &check->program);
    if (status == KEEL_UNSUPPORTED || status == KEEL_NOT_FOUND) {
        check->program = NULL;
        check->result->by_copies = true;
        return keel_alloc_aligned(KEEL_PAGE_BYTES, CHUNK_BYTES, &check->chunk);
    }
    KEEL_TRY(status);
    KEEL_TRY(keel_kernel_create(check->program, "keel_memcheck_pass", &check->kernel));
    return keel_buffer_create(check->device, ITEMS * sizeof check->report[0], &check->report_buffer);
}

static enum keel_status pass_by_kernel(struct memcheck *check, const struct piece *piece,
                                       const struct pass *pass)
{
    enum keel_device_kind kind = keel_device_info(check->device)->kind;
    bool alone = kind == KEEL_DEVICE_CPU || kind == KEEL_DEVICE_HOST;
    const struct keel_arg args[] = {
        {.kind = KEEL_ARG_BUFFER, .as.buffer = piece->buffer},
        {.kind = KEEL_ARG_BUFFER, .as.buffer = check->report_buffer},
        {.kind = KEEL_ARG_U64, .as.u64 = piece->base_words},
        {.kind = KEEL_ARG_U32, .as.u32 = piece->count},
        {.kind = KEEL_ARG_U32, .as.u32 = pass->expect},
        {.kind = KEEL_ARG_U32, .as.u32 = pass->expect_seed},
        {.kind = KEEL_ARG_U32, .as.u32 = pass->write},
        {.kind = KEEL_ARG_U32, .as.u32 = pass->write_seed},
        {.kind = KEEL_ARG_U32, .as.u32 = pass->down},
        {.kind = KEEL_ARG_U32, .as.u32 = alone ? (piece->count + ITEMS - 1) / ITEMS : 1},
    };
    struct keel_range range = {.global = {ITEMS, 1, 1}, .local = {LOCAL_ITEMS, 1, 1}};
    const uint32_t most = keel_device_line_items(keel_device_info(check->device));
    while (range.local[0] > 1 && range.local[0] > most)
        range.local[0] /= 2;
    KEEL_TRY(keel_queue_launch(check->queue, check->kernel, args, sizeof args / sizeof args[0], &range, NULL,
                               NULL));
    KEEL_TRY(keel_queue_read(check->queue, check->report_buffer, 0, check->report,
                             ITEMS * sizeof check->report[0], NULL, NULL));
    return keel_queue_finish(check->queue, check->options->deadline_ns);
}

static void note_faults(struct memcheck *check, const struct piece *piece, const struct pass *pass,
                        uint32_t first_word, uint32_t items)
{
    struct keel_memcheck_result *result = check->result;
    for (uint32_t i = 0; i < items; i++) {
        const uint32_t *report = check->report[i];
        uint64_t address = (piece->base_words + first_word + report[1]) * 4;
        bool first = report[0] != 0 && result->faults == 0;
        result->faults += report[0];
        if (!first)
            continue;
        snprintf(result->pass, sizeof result->pass, "%s", pass->name);
        result->address_bytes = address;
        result->got = report[2];
        result->wanted = report[3];
    }
}

static enum keel_status pass_by_copies(struct memcheck *check, const struct piece *piece,
                                       const struct pass *pass)
{
    for (uint64_t offset = 0; offset < (uint64_t)piece->count * 4; offset += CHUNK_BYTES) {
        uint64_t left = (uint64_t)piece->count * 4 - offset, bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        uint32_t first = (uint32_t)(offset / 4);
        if (pass->expect != NONE) {
            KEEL_TRY(keel_queue_read(check->queue, piece->buffer, offset, check->chunk, bytes, NULL, NULL));
            KEEL_TRY(keel_queue_finish(check->queue, check->options->deadline_ns));
        }
        memset(check->report[0], 0, sizeof check->report[0]);
        host_span(check->chunk, check->report[0], piece->base_words + first, 0, (uint32_t)(bytes / 4), pass);
        note_faults(check, piece, pass, first, 1);
        if (pass->write == NONE)
            continue;
        KEEL_TRY(keel_queue_write(check->queue, piece->buffer, offset, check->chunk, bytes, NULL, NULL));
        KEEL_TRY(keel_queue_finish(check->queue, check->options->deadline_ns));
    }
    return KEEL_OK;
}

static enum keel_status run_pass(struct memcheck *check, const struct pass *pass)
{
    for (uint32_t i = 0; i < check->piece_count; i++) {
        struct piece *piece = &check->pieces[i];
        uint64_t since_ns = keel_now_ns();
        if (check->program != NULL) {
            KEEL_TRY(pass_by_kernel(check, piece, pass));
            note_faults(check, piece, pass, 0, ITEMS);
        } else {
            KEEL_TRY(pass_by_copies(check, piece, pass));
        }
        uint64_t took_ns = keel_now_ns() - since_ns;
        if (pass->expect != NONE && pass->write != NONE && (piece->best_ns == 0 || took_ns < piece->best_ns))
            piece->best_ns = took_ns;
    }
    return KEEL_OK;
}

static int by_speed(const void *left, const void *right)
{
    const struct piece *a = left, *b = right;
    double speed_a = (double)a->count / (double)(a->best_ns + 1);
    double speed_b = (double)b->count / (double)(b->best_ns + 1);
    return (speed_a > speed_b) - (speed_a < speed_b);
}

static double piece_speed(const struct piece *piece)
{
    return (double)piece->count * 8 * 1e9 / (double)(piece->best_ns + 1);
}

/* The last use of the pieces: they are put in the order of their speeds. */
static void note_speed(struct memcheck *check)
{
    struct keel_memcheck_result *result = check->result;
    qsort(check->pieces, check->piece_count, sizeof check->pieces[0], by_speed);
    result->slowest_bytes_per_s = piece_speed(&check->pieces[0]);
    result->bytes_per_s = piece_speed(&check->pieces[check->piece_count / 2]);
    result->slowest_bank = check->pieces[0].bank;
    result->slowest_address_bytes = check->pieces[0].base_words * 4;
}

static enum keel_status run_passes(struct memcheck *check)
{
    const struct keel_memcheck_options *options = check->options;
    KEEL_TRY(keel_queue_create(check->device, &check->queue));
    KEEL_TRY(keel_alloc(ITEMS, sizeof check->report[0], &check->report));
    KEEL_TRY(make_kernel(check));
    KEEL_TRY(take_pieces(check));
    for (uint32_t i = 0; i < PASSES; i++) {
        struct pass pass = pass_of(i);
        if (options->progress != NULL)
            options->progress(options->context, i, PASSES, pass.name);
        KEEL_TRY(run_pass(check, &pass));
    }
    note_speed(check);
    return KEEL_OK;
}

/* What devices that were left alone may yet write into. */
static _Atomic(struct memcheck *) kept;

/* After its queue is destroyed: a device that nobody waited for may yet write what it was told to read. */
static bool still_runs(struct keel_device *device)
{
    struct keel_health_report report;
    keel_device_health(device, &report);
    return report.health == KEEL_HEALTH_HUNG || report.health == KEEL_HEALTH_LOST;
}

enum keel_status keel_memcheck_run(struct keel_device *device, const struct keel_memcheck_options *options,
                                   struct keel_memcheck_result *out)
{
    struct memcheck *check;
    memset(out, 0, sizeof *out);
    KEEL_TRY(keel_alloc(1, sizeof *check, &check));
    check->device = device;
    check->options = options;
    check->result = out;
    enum keel_status status = run_passes(check);
    keel_queue_destroy(check->queue);
    for (uint32_t i = 0; i < check->piece_count; i++)
        keel_buffer_destroy(check->pieces[i].buffer);
    keel_buffer_destroy(check->report_buffer);
    keel_kernel_destroy(check->kernel);
    keel_program_destroy(check->program);
    if (still_runs(device)) {
        check->next = atomic_exchange(&kept, check);
        return status;
    }
    keel_free(check->chunk);
    keel_free(check->report);
    keel_free(check);
    return status;
}
