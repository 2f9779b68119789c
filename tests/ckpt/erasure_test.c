/* erasure_test.c - any m nodes of an erasure set may be lost, any cell may be damaged: what they held is
 * computed, byte for byte, or refused. */
#include "erasure_rig.h"
#include <keel/thread.h>

/* What is not `make test-long` looks at a part of the larger sets' patterns, and of the flipped bits. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { THINNER = 8 };
#else
enum { THINNER = 4 };
#endif

/* ---- all patterns of lost nodes ------------------------------------------------------------------------ */

static uint32_t bits(uint32_t mask)
{
    return (uint32_t)__builtin_popcount(mask);
}

/* The tiers of the nodes that are not in `lost`. */
static uint32_t survivors(const struct node_set *nodes, uint32_t lost, struct keel_tier **out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < nodes->n; i++)
        if ((lost >> i & 1) == 0)
            out[count++] = nodes->tiers[i];
    return count;
}

static void lose_and_compute(const struct node_set *nodes, uint32_t lost)
{
    struct keel_tier *left[NODES_MAX], *set;
    uint32_t count = survivors(nodes, lost, left);
    ck_ok(keel_tier_erasure_open(left, count, 5, 2, nodes->set, &set));
    for (uint32_t i = 0; i < nodes->n; i++)
        if ((lost >> i & 1) != 0)
            ck_ok(node_as_before(nodes, set, i));
    keel_tier_end(set);
}

enum { THREADS = 4, SMALL_BYTES = 8000, PATTERN_NODES_MAX = 12 };

/* All patterns of some m of one set of shards: thread `first` of THREADS. */
struct pattern_worker {
    struct keel_thread thread;
    const struct node_set *sets; /* one for each m, at m */
    uint32_t n, first;
    uint64_t patterns;
};

static void *try_patterns(void *argument)
{
    struct pattern_worker *worker = argument;
    uint32_t thinner = thinned(THINNER);
    for (uint32_t m = 1; m < worker->n; m++)
        for (uint32_t lost = 1; lost < 1U << worker->n; lost++) {
            bool left_out = worker->n > 8 && lost / THREADS % thinner != m % thinner;
            if (lost % THREADS != worker->first || bits(lost) > m || left_out)
                continue;
            lose_and_compute(&worker->sets[m], lost);
            worker->patterns++;
        }
    return NULL;
}

START_TEST(any_m_nodes_of_up_to_twelve_may_be_lost)
{
    uint64_t patterns = 0, state = 5;
    for (uint32_t n = 2; n <= PATTERN_NODES_MAX; n++) {
        struct origin origin = make_empty_origin();
        struct node_set sets[PATTERN_NODES_MAX] = {make_nodes(&origin, n, SMALL_BYTES, &state)};
        struct pattern_worker workers[THREADS];
        for (uint32_t m = 1; m < n; m++) {
            sets[m] = sets[0]; /* the same tiers and shards, other parity */
            protect_nodes(&sets[m], m, KEEL_PARITY_CELL_BYTES_MIN);
        }
        for (uint32_t i = 0; i < THREADS; i++) {
            workers[i] = (struct pattern_worker){.sets = sets, .n = n, .first = i};
            ck_ok(keel_thread_create(&workers[i].thread, "patterns", try_patterns, &workers[i]));
        }
        for (uint32_t i = 0; i < THREADS; i++) {
            keel_thread_join(&workers[i].thread);
            patterns += workers[i].patterns;
        }
        for (uint32_t m = 1; m < n; m++)
            for (uint32_t i = 0; i < n; i++)
                keel_free(sets[m].parities[i].data);
        end_nodes(&sets[0]);
        end_origin(&origin);
    }
    printf("note: %llu patterns of lost nodes, n = 2 .. %d, m = 1 .. n - 1: all computed\n",
           (unsigned long long)patterns, PATTERN_NODES_MAX);
}
END_TEST

/* Each node a tier of its own, up to the largest set: what may be written may be read, whichever are lost,
 * and repaired into a store that has nothing. */
START_TEST(a_set_of_the_most_nodes_is_read_and_repaired)
{
    const uint32_t sizes[] = {16, 17, 18, KEEL_ERASURE_NODES_MAX - 1, KEEL_ERASURE_NODES_MAX};
    const uint32_t loses[] = {1, 3};
    uint64_t state = 23;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct origin origin = make_empty_origin();
        struct node_set nodes = make_nodes(&origin, sizes[s], 30000, &state);
        const struct keel_object manifest = manifest_object(5, 2);
        for (size_t l = 0; l < sizeof loses / sizeof *loses; l++) {
            const uint32_t m = loses[l], first = (uint32_t)draw(&state, sizes[s] - m);
            struct origin empty = make_empty_origin();
            struct keel_tier *tiers[KEEL_ERASURE_NODES_MAX + 1] = {empty.tier}, *set;
            uint32_t count = 1;
            protect_nodes(&nodes, m, KEEL_PARITY_CELL_BYTES_MIN);
            for (uint32_t i = 0; i < sizes[s]; i++) { /* an empty tier stands for each that is lost */
                tiers[count] = nodes.tiers[i];
                if (i >= first && i < first + m)
                    ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "a fresh node", &tiers[count]));
                count++;
            }
            ck_ok(keel_tier_erasure_open(tiers, count, 5, 2, nodes.set, &set));
            for (uint32_t i = first; i < first + m; i++)
                ck_ok(node_as_before(&nodes, set, i));
            keel_tier_end(set);
            ck_ok(keel_tier_copy(origin.tier, &manifest, tiers[count - 1]));
            struct keel_repair_config config = {
                .step = 5, .attempt = 2, .sources = tiers + 1, .source_count = count - 1};
            struct keel_repair_result result;
            ck_ok(keel_store_repair(empty.store, &config, &result));
            ck_assert_uint_eq(result.lost, 0);
            for (uint32_t i = 0; i < sizes[s]; i++) {
                struct keel_object shard = shard_object(5, 2, nodes.ranks[i]);
                if (nodes.ranks[i] != KEEL_ERASURE_NO_SHARD)
                    ck_ok(same_as_before(empty.tier, &shard, &nodes.shards[i]));
            }
            for (uint32_t i = first; i < first + m; i++)
                keel_tier_end(tiers[1 + i]);
            end_origin(&empty);
        }
        end_nodes(&nodes);
        end_origin(&origin);
    }
}
END_TEST

/* More than m: refused; or right after all, where the shards that are lost had ended before others. */
START_TEST(one_node_too_many_is_refused_and_named)
{
    uint64_t refused = 0, state = 6;
    for (uint32_t n = 2; n <= 8; n++) {
        struct origin origin = make_empty_origin();
        struct node_set nodes = make_nodes(&origin, n, 30000, &state);
        for (uint32_t m = 1; m + 1 < n; m++) {
            protect_nodes(&nodes, m, KEEL_PARITY_CELL_BYTES_MIN);
            for (uint32_t lost = 1; lost < 1U << n; lost++) {
                struct keel_tier *left[NODES_MAX], *set;
                if (bits(lost) != m + 1)
                    continue;
                ck_ok(keel_tier_erasure_open(left, survivors(&nodes, lost, left), 5, 2, nodes.set, &set));
                for (uint32_t i = 0; i < n; i++) {
                    enum keel_status status = (lost >> i & 1) != 0 ? node_as_before(&nodes, set, i) : KEEL_OK;
                    ck_assert(status == KEEL_OK || status == KEEL_CORRUPT || status == KEEL_NOT_FOUND);
                    if (status != KEEL_OK) {
                        refused++;
                        ck_assert_ptr_nonnull(strstr(keel_detail(), "erasure set"));
                    }
                }
                keel_tier_end(set);
            }
        }
        end_nodes(&nodes);
        end_origin(&origin);
    }
    ck_assert_uint_gt(refused, 100);
    printf("note: %llu nodes that were lost with m others: refused\n", (unsigned long long)refused);
}
END_TEST

START_TEST(large_cells_sizes_and_sets_work_as_small_ones)
{
    uint64_t state = 7;
    struct origin origin = make_empty_origin();
    struct node_set nodes = make_nodes(&origin, 10, 3 << 20, &state);
    for (uint32_t cell = KEEL_PARITY_CELL_BYTES_MIN; cell <= KEEL_PARITY_CELL_BYTES_MAX; cell *= 16) {
        protect_nodes(&nodes, 2, cell);
        for (uint32_t i = 0; i < 10; i++)
            lose_and_compute(&nodes, 1U << i | 1U << (i * 7 + 1) % 10);
    }
    protect_nodes(&nodes, 3, 0);
    lose_and_compute(&nodes, 1U << 2 | 1U << 7 | 1U << 9);
    end_nodes(&nodes);
    end_origin(&origin);
}
END_TEST

START_TEST(lost_nodes_are_rebuilt_onto_others_and_the_set_is_whole_again)
{
    uint64_t state = 8;
    struct origin origin = make_empty_origin();
    struct node_set nodes = make_nodes(&origin, 6, 50000, &state);
    protect_nodes(&nodes, 2, KEEL_PARITY_CELL_BYTES_MIN);
    for (uint32_t round = 0; round < 6; round++) { /* in the end no node is one of those that began */
        uint32_t gone[2] = {round, (round + 3) % 6};
        struct keel_tier *left[NODES_MAX], *set, *fresh[2];
        uint32_t count = survivors(&nodes, 1U << gone[0] | 1U << gone[1], left);
        ck_ok(keel_tier_erasure_open(left, count, 5, 2, nodes.set, &set));
        for (uint32_t g = 0; g < 2; g++) {
            struct keel_object parity = parity_object(nodes.set, gone[g]);
            ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "a new node", &fresh[g]));
            ck_ok(keel_tier_copy(set, &parity, fresh[g]));
            if (nodes.ranks[gone[g]] == KEEL_ERASURE_NO_SHARD)
                continue;
            struct keel_object shard = shard_object(5, 2, nodes.ranks[gone[g]]);
            ck_ok(keel_tier_copy(set, &shard, fresh[g]));
        }
        keel_tier_end(set);
        for (uint32_t g = 0; g < 2; g++) {
            keel_tier_end(nodes.tiers[gone[g]]);
            nodes.tiers[gone[g]] = fresh[g];
            ck_ok(node_as_before(&nodes, fresh[g], gone[g]));
        }
    }
    end_nodes(&nodes);
    end_origin(&origin);
}
END_TEST

/* ---- damage -------------------------------------------------------------------------------------------- */

/* A set in one directory, as `keel ckpt repair` meets it. */
struct directory_set {
    struct origin origin;
    struct node_set nodes; /* their tiers are all origin.tier */
};

static struct directory_set make_directory_set(uint32_t n, uint32_t m)
{
    struct directory_set set = {.origin = make_empty_origin(), .nodes = {.n = n}};
    uint64_t state = 21;
    save_ragged(set.origin.store, n, 9000, &state, set.nodes.ranks);
    for (uint32_t i = 0; i < n; i++) {
        set.nodes.tiers[i] = set.origin.tier;
        if (set.nodes.ranks[i] == KEEL_ERASURE_NO_SHARD)
            continue;
        struct keel_object object = shard_object(5, 2, set.nodes.ranks[i]);
        ck_ok(read_object(set.origin.tier, &object, &set.nodes.shards[i].data, &set.nodes.shards[i].bytes));
    }
    protect_nodes(&set.nodes, m, KEEL_PARITY_CELL_BYTES_MIN);
    return set;
}

static void end_directory_set(struct directory_set *set)
{
    for (uint32_t i = 0; i < set->nodes.n; i++) {
        keel_free(set->nodes.shards[i].data);
        keel_free(set->nodes.parities[i].data);
    }
    end_origin(&set->origin);
}

static enum keel_status all_as_before(const struct directory_set *set)
{
    struct keel_tier *erasure, *tiers[1] = {set->origin.tier};
    KEEL_TRY(keel_tier_erasure_open(tiers, 1, 5, 2, set->nodes.set, &erasure));
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < set->nodes.n && status == KEEL_OK; i++)
        status = node_as_before(&set->nodes, erasure, i);
    keel_tier_end(erasure);
    return status;
}

/* Every byte of headers, checks, indexes and footers that means something; some of all others. */
static uint64_t next_place(uint64_t at, uint64_t file_bytes, bool parity)
{
    uint64_t block = at / 4096;
    bool means = block == 0 || block == (file_bytes - 1) / 4096 || (parity && block % 2 == 1);
    bool used = at % 4096 < 600 || at % 4096 >= 3960;
    return at + (means && used ? 1U : 61U) * thinned(THINNER);
}

START_TEST(a_flipped_bit_anywhere_is_found_placed_and_mended)
{
    struct directory_set set = make_directory_set(5, 2);
    uint64_t flips = 0;
    for (uint32_t i = 0; i < set.nodes.n; i++) {
        struct keel_object objects[2] = {parity_object(set.nodes.set, i),
                                         shard_object(5, 2, set.nodes.ranks[i])};
        const struct blob *blobs[2] = {&set.nodes.parities[i], &set.nodes.shards[i]};
        for (uint32_t o = 0; o < 2; o++) {
            if (o == 1 && set.nodes.ranks[i] == KEEL_ERASURE_NO_SHARD)
                continue;
            for (uint64_t at = 0; at < blobs[o]->bytes; at = next_place(at, blobs[o]->bytes, o == 0)) {
                uint8_t mask = (uint8_t)(1 << (at + flips) % 8);
                char name[KEEL_OBJECT_NAME_BYTES];
                flip_byte(&set.origin, &objects[o], at, mask);
                enum keel_status status = keel_tier_verify(set.origin.tier, &objects[o]);
                ck_assert_msg(status == KEEL_CORRUPT, "byte %llu: %s", (unsigned long long)at,
                              keel_status_name(status));
                keel_object_name(&objects[o], name);
                ck_assert_ptr_nonnull(strstr(keel_detail(), name));
                if (flips % 8 == 0)
                    ck_ok(all_as_before(&set));
                struct keel_tier *erasure, *tiers[1] = {set.origin.tier};
                ck_ok(keel_tier_erasure_open(tiers, 1, 5, 2, set.nodes.set, &erasure));
                ck_ok(same_as_before(erasure, &objects[o], blobs[o]));
                keel_tier_end(erasure);
                flip_byte(&set.origin, &objects[o], at, mask);
                flips++;
            }
        }
    }
    printf("note: %llu flipped bits in parity and shards: found, placed, computed\n",
           (unsigned long long)flips);
    end_directory_set(&set);
}
END_TEST

START_TEST(damage_to_many_files_at_once_is_mended_in_place_where_each_stripe_has_enough)
{
    struct directory_set set = make_directory_set(6, 2);
    uint64_t state = 77, mended = 0, refused = 0;
    for (uint32_t round = 0; round < 400; round++) {
        struct keel_object hit[6];
        uint64_t at[6];
        uint8_t mask[6];
        uint32_t count = 1 + (uint32_t)draw(&state, 6);
        for (uint32_t c = 0; c < count; c++) {
            uint32_t i = (uint32_t)draw(&state, 6);
            bool shard = draw(&state, 2) != 0 && set.nodes.ranks[i] != KEEL_ERASURE_NO_SHARD;
            hit[c] = shard ? shard_object(5, 2, set.nodes.ranks[i]) : parity_object(set.nodes.set, i);
            at[c] = draw(&state, shard ? set.nodes.shards[i].bytes : set.nodes.parities[i].bytes);
            mask[c] = (uint8_t)(1 + draw(&state, 255));
            flip_byte(&set.origin, &hit[c], at[c], mask[c]);
        }
        enum keel_status status = all_as_before(&set); /* compares: never wrong bytes */
        ck_assert(status == KEEL_OK || status == KEEL_CORRUPT);
        mended += status == KEEL_OK;
        refused += status == KEEL_CORRUPT;
        for (uint32_t c = count; c-- > 0;)
            flip_byte(&set.origin, &hit[c], at[c], mask[c]);
    }
    ck_ok(all_as_before(&set));
    ck_assert_uint_gt(mended, 300);
    printf("note: up to 6 files damaged at once: %llu mended, %llu refused\n", (unsigned long long)mended,
           (unsigned long long)refused);
    end_directory_set(&set);
}
END_TEST

START_TEST(mending_is_a_copy_onto_itself)
{
    struct directory_set set = make_directory_set(5, 2);
    struct keel_tier *tiers[1] = {set.origin.tier}, *erasure;
    struct keel_object parity = parity_object(set.nodes.set, 1), shard = shard_object(5, 2, 0);
    flip_byte(&set.origin, &parity, 10, 1);
    flip_byte(&set.origin, &parity, 4200, 1);
    flip_byte(&set.origin, &shard, 100, 1);
    ck_ok(keel_tier_erasure_open(tiers, 1, 5, 2, set.nodes.set, &erasure));
    ck_ok(keel_tier_copy(erasure, &parity, set.origin.tier));
    ck_ok(keel_tier_copy(erasure, &shard, set.origin.tier));
    keel_tier_end(erasure);
    ck_ok(keel_tier_verify(set.origin.tier, &parity));
    ck_ok(same_as_before(set.origin.tier, &parity, &set.nodes.parities[1]));
    ck_ok(same_as_before(set.origin.tier, &shard, &set.nodes.shards[0]));
    end_directory_set(&set);
}
END_TEST

START_TEST(too_much_damage_names_what_is_lost)
{
    struct directory_set set = make_directory_set(4, 1);
    struct keel_tier *tiers[1] = {set.origin.tier}, *erasure;
    struct keel_object first = shard_object(5, 2, 1), second = shard_object(5, 2, 2);
    flip_byte(&set.origin, &first, 3, 1); /* both in stripe 0, which has one parity cell */
    flip_byte(&set.origin, &second, 3, 1);
    ck_ok(keel_tier_erasure_open(tiers, 1, 5, 2, set.nodes.set, &erasure));
    ck_status(keel_tier_verify(erasure, &first), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(
        strstr(keel_detail(), "erasure set 1 of step-5.2: stripe 0: the cells of members 1, 2"));
    ck_status(keel_tier_copy(erasure, &first, set.origin.tier), KEEL_CORRUPT);
    keel_tier_end(erasure);
    end_directory_set(&set);
}
END_TEST

/* ---- golden files -------------------------------------------------------------------------------------- */

/* tests/golden/ckpt, run `parity`: three shards and four nodes, two of parity, written by the first version
 * of the format, kept for ever. KEEL_WRITE_GOLDEN=1 writes them where they are missing. */
enum { GOLDEN_NODES = 4, GOLDEN_PARITY = 2, GOLDEN_CELL = 4096 };

static const uint32_t golden_ranks[GOLDEN_NODES] = {0, KEEL_ERASURE_NO_SHARD, 1, 2};

static enum keel_status protect_golden(struct keel_tier *from, struct keel_tier *to)
{
    struct keel_tier *all_from[GOLDEN_NODES] = {from, from, from, from},
                     *all_to[GOLDEN_NODES] = {to, to, to, to};
    struct keel_erasure_config config = {.step = 5,
                                         .attempt = 2,
                                         .set = 7,
                                         .node_count = GOLDEN_NODES,
                                         .parity_count = GOLDEN_PARITY,
                                         .cell_bytes = GOLDEN_CELL,
                                         .ranks = golden_ranks,
                                         .from = all_from,
                                         .to = all_to};
    return keel_erasure_protect(&config);
}

static void write_golden(struct keel_store *store, struct keel_tier *tier)
{
    struct keel_shard_summary shards[3];
    for (uint32_t r = 0; r < 3; r++) {
        struct keel_region tensor = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){3000});
        struct sample_save how = {.step = 5, .attempt = 2, .salt = 5, .rank = r, .rank_count = 3};
        tensor.offset[0] = 1000 * r;
        tensor.extent[0] = 1000;
        ck_ok(save_rank(store, &how, &tensor, 1, &shards[r]));
    }
    ck_ok(commit_all(store, 5, 2, shards, 3));
    ck_ok(protect_golden(tier, tier));
}

/* A reader that knows only the specification: multiplication in GF(2^8) bit by bit. */
static uint8_t times(uint8_t a, uint8_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 0; bit < 8; bit++)
        product ^= (b >> bit & 1) != 0 ? (uint32_t)a << bit : 0;
    for (uint32_t bit = 15; bit >= 8; bit--)
        product ^= (product >> bit & 1) != 0 ? 0x11dU << (bit - 8) : 0;
    return (uint8_t)product;
}

static uint8_t inverse(uint8_t a)
{
    uint32_t b = 1;
    while (times(a, (uint8_t)b) != 1)
        b++;
    return (uint8_t)b;
}

/* Walk over the stripes as the specification says, and compute each parity cell. */
static uint32_t check_parity_by_hand(const struct blob shards[GOLDEN_NODES],
                                     const struct blob parities[GOLDEN_NODES])
{
    const uint32_t n = GOLDEN_NODES, m = GOLDEN_PARITY, k = n - m;
    size_t taken[GOLDEN_NODES] = {0}, written[GOLDEN_NODES] = {4096, 4096, 4096, 4096};
    uint32_t cells = 0;
    for (uint32_t j = 0; written[j % n] + 4096 < parities[j % n].bytes; j++) {
        uint8_t data[GOLDEN_NODES][GOLDEN_CELL] = {{0}}, sum[GOLDEN_CELL];
        uint32_t columns = 0;
        for (uint32_t node = 0; node < n; node++) {
            if ((node + n - j % n) % n < m)
                continue;
            size_t left = taken[node] < shards[node].bytes ? shards[node].bytes - taken[node] : 0;
            if (left > 0)
                memcpy(data[columns], shards[node].data + taken[node],
                       left < GOLDEN_CELL ? left : GOLDEN_CELL);
            taken[node] += GOLDEN_CELL;
            columns++;
        }
        for (uint32_t i = 0; i < m; i++, cells++) {
            uint32_t node = (j + i) % n;
            memset(sum, 0, sizeof sum);
            for (uint32_t c = 0; c < k; c++)
                for (uint32_t b = 0; b < GOLDEN_CELL; b++)
                    sum[b] ^= times(data[c][b], inverse((uint8_t)((k + i) ^ c)));
            ck_assert_mem_eq(parities[node].data + written[node] + 4096, sum, GOLDEN_CELL);
            written[node] += 4096 + GOLDEN_CELL;
        }
    }
    return cells;
}

START_TEST(parity_of_the_first_version_is_read_and_made_again)
{
    struct keel_store *store;
    struct keel_tier *golden, *again, *set;
    struct blob shards[GOLDEN_NODES] = {{0}}, parities[GOLDEN_NODES] = {{0}};
    bool write = getenv("KEEL_WRITE_GOLDEN") != NULL && !keel_path_exists("tests/golden/ckpt/parity");
    struct keel_store_config config = {
        .root = "tests/golden/ckpt", .run = "parity", .create = write, .read_only = !write};
    ck_ok(keel_store_open(&config, &store));
    ck_ok(keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, "the golden files", &golden));
    if (write)
        write_golden(store, golden);
    ck_ok(keel_tier_memory_open("parity", NODE_BYTES, NULL, &again));
    ck_ok(protect_golden(golden, again));
    ck_ok(keel_tier_erasure_open(&golden, 1, 5, 2, 7, &set));
    for (uint32_t i = 0; i < GOLDEN_NODES; i++) {
        struct keel_object parity = parity_object(7, i), shard = shard_object(5, 2, golden_ranks[i]);
        ck_ok(keel_tier_verify(golden, &parity));
        ck_ok(read_object(golden, &parity, &parities[i].data, &parities[i].bytes));
        ck_ok(same_as_before(again, &parity, &parities[i]));
        ck_ok(same_as_before(set, &parity, &parities[i]));
        if (golden_ranks[i] == KEEL_ERASURE_NO_SHARD)
            continue;
        ck_ok(read_object(golden, &shard, &shards[i].data, &shards[i].bytes));
        ck_ok(same_as_before(set, &shard, &shards[i]));
    }
    ck_assert_uint_gt(check_parity_by_hand(shards, parities), 2 * GOLDEN_NODES);
    for (uint32_t i = 0; i < GOLDEN_NODES; i++) {
        keel_free(shards[i].data);
        keel_free(parities[i].data);
    }
    keel_tier_end(set);
    keel_tier_end(again);
    keel_tier_end(golden);
    keel_store_close(store);
}
END_TEST

/* ---- bad input ----------------------------------------------------------------------------------------- */

START_TEST(sets_that_cannot_be_are_refused)
{
    struct origin origin = make_origin();
    struct keel_tier *tiers[3] = {origin.tier, origin.tier, origin.tier}, *set;
    struct keel_tier_sink *sink;
    uint32_t ranks[3] = {0, 1, 2}, twice[3] = {0, 1, 0};
    const struct keel_erasure_config good = {.step = 5,
                                             .attempt = 2,
                                             .node_count = 3,
                                             .parity_count = 1,
                                             .ranks = ranks,
                                             .from = tiers,
                                             .to = tiers};
    struct keel_erasure_config bad = good;
    bad.node_count = 1;
    ck_status(keel_erasure_protect(&bad), KEEL_INVALID);
    bad = good, bad.node_count = KEEL_ERASURE_NODES_MAX + 1;
    ck_status(keel_erasure_protect(&bad), KEEL_INVALID);
    bad = good, bad.parity_count = 0;
    ck_status(keel_erasure_protect(&bad), KEEL_INVALID);
    bad = good, bad.parity_count = 3;
    ck_status(keel_erasure_protect(&bad), KEEL_INVALID);
    bad = good, bad.cell_bytes = 5000;
    ck_status(keel_erasure_protect(&bad), KEEL_INVALID);
    bad = good, bad.ranks = twice;
    ck_status(keel_erasure_protect(&bad), KEEL_INVALID);
    bad = good, bad.step = 6;
    ck_status(keel_erasure_protect(&bad), KEEL_NOT_FOUND);
    ck_status(keel_tier_erasure_open(tiers, 1, 5, 2, 0, &set), KEEL_NOT_FOUND);
    struct keel_object shard = shard_object(5, 2, 1);
    flip_byte(&origin, &shard, 4100, 1); /* a damaged shard gets no parity */
    ck_status(keel_erasure_protect(&good), KEEL_CORRUPT);
    ck_assert_uint_eq(list_tier(origin.tier).count, RIG_RANKS + 1);
    flip_byte(&origin, &shard, 4100, 1);
    ck_ok(keel_erasure_protect(&good));
    ck_ok(keel_tier_erasure_open(tiers, 1, 5, 2, 0, &set));
    ck_status(keel_tier_create(set, &shard, 10, &sink), KEEL_UNSUPPORTED);
    ck_status(keel_tier_remove(set, &shard), KEEL_UNSUPPORTED);
    ck_assert_uint_eq(list_tier(set).count, 6);
    keel_tier_end(set);
    end_origin(&origin);
}
END_TEST

/* The parity of a set of another time, under the right names: it is not mixed in. */
START_TEST(parity_of_another_set_is_not_mixed_in)
{
    struct directory_set set = make_directory_set(5, 1);
    struct keel_object lost = shard_object(5, 2, 2), parity = parity_object(set.nodes.set, 0);
    struct keel_tier *other, *tiers[1] = {set.origin.tier}, *erasure;
    ck_ok(keel_tier_memory_open("sample", NODE_BYTES, "elsewhere", &other));
    struct keel_tier *to[5] = {other, other, other, other, other};
    struct keel_erasure_config config = {.step = 5,
                                         .attempt = 2,
                                         .set = set.nodes.set,
                                         .node_count = 5,
                                         .parity_count = 1,
                                         .cell_bytes = 8192,
                                         .ranks = set.nodes.ranks,
                                         .from = set.nodes.tiers,
                                         .to = to};
    ck_ok(keel_erasure_protect(&config));
    ck_ok(keel_tier_copy(other, &parity, set.origin.tier));
    ck_ok(keel_tier_erasure_open(tiers, 1, 5, 2, set.nodes.set, &erasure));
    ck_ok(
        same_as_before(erasure, &parity, &set.nodes.parities[0])); /* computed, as what is there is foreign */
    ck_ok(same_as_before(erasure, &lost, &set.nodes.shards[2]));
    keel_tier_end(erasure);
    keel_tier_end(other);
    end_directory_set(&set);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, any_m_nodes_of_up_to_twelve_may_be_lost);
    tcase_add_test(tc, a_set_of_the_most_nodes_is_read_and_repaired);
    tcase_add_test(tc, one_node_too_many_is_refused_and_named);
    tcase_add_test(tc, large_cells_sizes_and_sets_work_as_small_ones);
    tcase_add_test(tc, lost_nodes_are_rebuilt_onto_others_and_the_set_is_whole_again);
    tcase_add_test(tc, a_flipped_bit_anywhere_is_found_placed_and_mended);
    tcase_add_test(tc, damage_to_many_files_at_once_is_mended_in_place_where_each_stripe_has_enough);
    tcase_add_test(tc, mending_is_a_copy_onto_itself);
    tcase_add_test(tc, too_much_damage_names_what_is_lost);
    tcase_add_test(tc, parity_of_the_first_version_is_read_and_made_again);
    tcase_add_test(tc, sets_that_cannot_be_are_refused);
    tcase_add_test(tc, parity_of_another_set_is_not_mixed_in);
}

KEEL_TEST_MAIN("erasure", cases, 600)
