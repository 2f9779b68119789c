/* failures.c - see failures.h. */
#include "failures.h"

#include <inttypes.h>
#include <keel/file.h>
#include <keel/kernels.h>
#include <keel/memory.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 28, WORDS_MAX = 8, WORDS_EACH = 8 /* random words of a failure */ };
#define TIME_MAX_NS (36525 * KEEL_FAILURE_DAY_NS)

static const char *const words[] = {
#define KEEL_FAILURE_WORD(name, word, help) word,
    KEEL_FAILURE_KIND_TABLE(KEEL_FAILURE_WORD)
#undef KEEL_FAILURE_WORD
};

/* ---- words --------------------------------------------------------------------------------------------- */

static uint64_t unit_of(const char *name, uint64_t bare_ns)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"ms", 1000000},
                 {"s", KEEL_FAILURE_SECOND_NS},
                 {"m", 60 * KEEL_FAILURE_SECOND_NS},
                 {"h", 3600 * KEEL_FAILURE_SECOND_NS},
                 {"d", KEEL_FAILURE_DAY_NS}};
    if (name[0] == '\0')
        return bare_ns;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(name, units[i].name) == 0)
            return units[i].ns;
    return 0;
}

enum keel_status keel_failure_time(const char *text, uint64_t unit_ns, uint64_t *out_ns)
{
    const size_t whole = strspn(text, "0123456789");
    const char *end = text + whole;
    const size_t decimals = end[0] == '.' ? strspn(end + 1, "0123456789") : 0;
    if (end[0] == '.')
        end += 1 + decimals;
    uint64_t unit = unit_of(end, unit_ns), ns = 0;
    if (whole == 0 || unit == 0 || (text[whole] == '.' && decimals == 0))
        return KEEL_INVALID;
    for (size_t i = 0; i < whole; i++) {
        ns = ns * 10 + (uint64_t)(text[i] - '0');
        if (ns > TIME_MAX_NS / unit)
            return KEEL_INVALID;
    }
    ns *= unit;
    for (size_t i = 0; i < decimals && unit > 1; i++) {
        unit /= 10;
        ns += (uint64_t)(text[whole + 1 + i] - '0') * unit;
    }
    if (ns > TIME_MAX_NS)
        return KEEL_INVALID;
    *out_ns = ns;
    return KEEL_OK;
}

/* A line, cut into its words. */
struct line {
    const char *name; /* of the file */
    uint32_t number, nodes;
    char *words[WORDS_MAX];
    uint32_t count;
};

static enum keel_status bad_line(const struct line *line, const char *what, const char *word,
                                 const char *wanted)
{
    return keel_fail(KEEL_INVALID, "%s:%u: %s `%.60s`; %s", line->name, line->number, what, word, wanted);
}

static enum keel_status read_time(const struct line *line, const char *what, const char *word, uint64_t *out)
{
    if (keel_failure_time(word, KEEL_FAILURE_SECOND_NS, out) != KEEL_OK)
        return bad_line(line, what, word, "seconds are wanted, or a unit: 250ms, 90s, 30m, 12.5h, 7d");
    return KEEL_OK;
}

static enum keel_status read_kind(const struct line *line, const char *word, enum keel_failure_kind *out)
{
    for (uint32_t kind = 0; kind < KEEL_FAILURE_KIND_COUNT; kind++)
        if (strcmp(word, words[kind]) == 0) {
            *out = (enum keel_failure_kind)kind;
            return KEEL_OK;
        }
    return bad_line(line, "unknown kind", word, "kinds are process, hang, node, stop, slow, corrupt, run");
}

static enum keel_status read_real(const struct line *line, const char *what, const char *word, double least,
                                  double most, double *out)
{
    char wanted[64], *end;
    const double value = strtod(word, &end);
    if (end == word || *end != '\0' || !(value >= least && value <= most)) {
        snprintf(wanted, sizeof wanted, "a number of %g to %g is wanted", least, most);
        return bad_line(line, what, word, wanted);
    }
    *out = value;
    return KEEL_OK;
}

static enum keel_status read_factor(const struct line *line, const char *word, uint32_t *out_ppm)
{
    double factor = 1;
    KEEL_TRY(read_real(line, "factor", word, 1, 1000, &factor));
    *out_ppm = (uint32_t)(factor * KEEL_FAILURE_FACTOR_PPM + 0.5);
    return KEEL_OK;
}

/* What is behind "name=" in a word, or NULL. */
static const char *value_of(const char *word, const char *name)
{
    const size_t length = strlen(name);
    return strncmp(word, name, length) == 0 && word[length] == '=' ? word + length + 1 : NULL;
}

static enum keel_status check_factor(const struct line *line, enum keel_failure_kind kind, uint32_t ppm)
{
    if ((kind == KEEL_FAILURE_SLOW) != (ppm > 0))
        return bad_line(line, "kind", words[kind],
                        kind == KEEL_FAILURE_SLOW ? "say how slow: factor=1.34" : "factor= is of slow alone");
    return KEEL_OK;
}

/* "12" or "64-127". */
static enum keel_status read_places(const struct line *line, const char *word, struct keel_failure *out)
{
    char *end;
    const unsigned long first = strtoul(word, &end, 10);
    const char *behind = *end == '-' ? end + 1 : NULL;
    const unsigned long last = behind != NULL ? strtoul(behind, &end, 10) : first;
    if (strspn(word, "0123456789-") != strlen(word) || word[0] == '-' || end == behind || *end != '\0' ||
        last < first)
        return bad_line(line, "node", word, "a number from 0 on is wanted, or two as in 64-127");
    if (last >= line->nodes)
        return keel_fail(
            KEEL_INVALID,
            "%s:%u: node %lu is beyond the %u nodes of the run, which count from 0; give --nodes", line->name,
            line->number, last, line->nodes);
    out->first = (uint32_t)first;
    out->count = (uint32_t)(last - first + 1);
    return KEEL_OK;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static enum keel_status append(struct keel_failures *list, const struct keel_failure *failure)
{
    if (list->count >= KEEL_FAILURES_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d failures; give a lower rate, fewer nodes or fewer days",
                         KEEL_FAILURES_MAX);
    KEEL_TRY(keel_grow(&list->at, &list->capacity, list->count + 1, sizeof *list->at));
    list->at[list->count++] = *failure;
    return KEEL_OK;
}

static enum keel_status read_failure(struct line *line, struct keel_failures *out)
{
    struct keel_failure failure = {.factor_ppm = 0};
    if (line->count < 4)
        return bad_line(line, "a line that begins", line->words[0],
                        "TIME NODE KIND REPAIR is wanted, or rate R KIND REPAIR");
    KEEL_TRY(read_time(line, "time", line->words[0], &failure.at_ns));
    KEEL_TRY(read_places(line, line->words[1], &failure));
    KEEL_TRY(read_kind(line, line->words[2], &failure.kind));
    KEEL_TRY(read_time(line, "repair time", line->words[3], &failure.repair_ns));
    for (uint32_t i = 4; i < line->count; i++) {
        const char *factor = value_of(line->words[i], "factor");
        if (factor == NULL)
            return bad_line(line, "word", line->words[i], "behind the repair time only factor=F may stand");
        KEEL_TRY(read_factor(line, factor, &failure.factor_ppm));
    }
    KEEL_TRY(check_factor(line, failure.kind, failure.factor_ppm));
    if (out->count > 0 && failure.at_ns < out->at[out->count - 1].at_ns)
        return bad_line(line, "time", line->words[0], "it is before that of the line above: sort by time");
    return append(out, &failure);
}

/* "3.8", or "419/110.592". */
static enum keel_status read_per_node(const struct line *line, char *word, double *out)
{
    double count = 0, over = 1;
    char *slash = strchr(word, '/');
    if (slash != NULL) {
        *slash = '\0';
        KEEL_TRY(read_real(line, "thousand node-days", slash + 1, 1e-9, 1e12, &over));
    }
    KEEL_TRY(read_real(line, "rate", word, 0, 1e9, &count));
    *out = count / over / 1000 / (double)KEEL_FAILURE_DAY_NS;
    return KEEL_OK;
}

/* A mix may hit more nodes at once than a small run has: then all. */
static enum keel_status read_rate_word(const struct line *line, const char *word,
                                       struct keel_failure_rate *rate)
{
    const char *value;
    double nodes = 1;
    if ((value = value_of(word, "mean")) != NULL)
        return read_time(line, "mean", value, &rate->mean_ns);
    if ((value = value_of(word, "shape")) != NULL)
        return read_real(line, "shape", value, 0.2, 10, &rate->shape);
    if ((value = value_of(word, "factor")) != NULL)
        return read_factor(line, value, &rate->factor_ppm);
    if ((value = value_of(word, "nodes")) == NULL)
        return bad_line(line, "word", word, "mean=, nodes=, shape= and factor= may stand here");
    KEEL_TRY(read_real(line, "nodes", value, 1, 1e6, &nodes));
    rate->count = nodes < line->nodes ? (uint32_t)nodes : line->nodes;
    return KEEL_OK;
}

static enum keel_status read_rate(struct line *line, struct keel_failures *out)
{
    struct keel_failure_rate rate = {.shape = 1, .count = 1};
    if (line->count < 4)
        return bad_line(line, "a line that begins", line->words[0], "rate R KIND REPAIR is wanted");
    if (out->rate_count == KEEL_FAILURE_RATES_MAX)
        return keel_fail(KEEL_LIMIT, "%s:%u: more than %d rates", line->name, line->number,
                         KEEL_FAILURE_RATES_MAX);
    KEEL_TRY(read_per_node(line, line->words[1], &rate.per_node_ns));
    KEEL_TRY(read_kind(line, line->words[2], &rate.kind));
    KEEL_TRY(read_time(line, "repair time", line->words[3], &rate.median_ns));
    rate.mean_ns = rate.median_ns;
    for (uint32_t i = 4; i < line->count; i++)
        KEEL_TRY(read_rate_word(line, line->words[i], &rate));
    if (rate.mean_ns < rate.median_ns || (rate.median_ns == 0 && rate.mean_ns > 0))
        return bad_line(line, "mean of", line->words[3],
                        "the mean is the median or more, and a median of 0 has no other");
    KEEL_TRY(check_factor(line, rate.kind, rate.factor_ppm));
    out->rates[out->rate_count++] = rate;
    return KEEL_OK;
}

static enum keel_status read_line(struct line *line, char *text, struct keel_failures *out)
{
    char *next = NULL;
    text[strcspn(text, "#")] = '\0';
    line->count = 0;
    for (char *word = strtok_r(text, " \t\r", &next); word != NULL; word = strtok_r(NULL, " \t\r", &next)) {
        if (line->count == WORDS_MAX)
            return bad_line(line, "word", word, "that is more than a line has");
        line->words[line->count++] = word;
    }
    if (line->count == 0)
        return KEEL_OK;
    return strcmp(line->words[0], "rate") == 0 ? read_rate(line, out) : read_failure(line, out);
}

enum keel_status keel_failures_parse(const char *text, const char *name, uint32_t nodes,
                                     struct keel_failures *out)
{
    struct line line = {.name = name, .nodes = nodes};
    char *copy;
    *out = (struct keel_failures){.at = NULL};
    KEEL_TRY(keel_strdup(text, &copy));
    enum keel_status status = KEEL_OK;
    for (char *at = copy, *end; at != NULL && status == KEEL_OK; at = end) {
        end = strchr(at, '\n');
        if (end != NULL)
            *end++ = '\0';
        line.number++;
        status = read_line(&line, at, out);
    }
    keel_free(copy);
    if (status != KEEL_OK)
        keel_failures_fini(out);
    return status;
}

static enum keel_status read_file(const char *path, uint32_t nodes, struct keel_failures *out)
{
    char *text;
    size_t bytes;
    enum keel_status status = keel_file_read(path, FILE_BYTES_MAX, &text, &bytes);
    if (status == KEEL_NOT_FOUND)
        return keel_fail(KEEL_NOT_FOUND,
                         "--failures %s: neither a file nor llama3, lanl or gray, nor failures per 1,000 "
                         "node-days as a number from 0 on",
                         path);
    if (status != KEEL_OK)
        return status;
    if (memchr(text, '\0', bytes) != NULL)
        status = keel_fail(KEEL_INVALID, "%s: no text; lines of TIME NODE KIND REPAIR are wanted", path);
    else
        status = keel_failures_parse(text, path, nodes, out);
    keel_free(text);
    if (status == KEEL_OK && out->count == 0 && out->rate_count == 0)
        return keel_fail(KEEL_INVALID,
                         "%s: names no failure and no rate; give --failures 0 for a run without any", path);
    return status;
}

enum keel_status keel_failures_read(const char *source, uint32_t nodes, struct keel_failures *out)
{
    char text[96], *end;
    const char *mix = keel_failures_mix(source);
    const double rate = strtod(source, &end);
    if (mix != NULL)
        return keel_failures_parse(mix, source, nodes, out);
    if (end == source || *end != '\0')
        return read_file(source, nodes, out);
    if (!(rate >= 0 && rate <= 1e9))
        return keel_fail(KEEL_INVALID, "--failures %.60s: a rate of 0 to 1e9 per 1,000 node-days is wanted",
                         source);
    snprintf(text, sizeof text, "rate %.17g node 64m mean=342m", rate); /* repaired as LANL's hardware */
    return keel_failures_parse(text, "--failures", nodes, out);
}

void keel_failures_fini(struct keel_failures *failures)
{
    keel_free(failures->at);
    *failures = (struct keel_failures){.at = NULL};
}

/* ---- drawing ------------------------------------------------------------------------------------------- */

/* ln and exp by operations whose results every machine has: those of C libraries differ in the last bit. */
#define LN2 0.69314718055994530942

static double natural_log(double x)
{
    int exponent;
    double mantissa = frexp(x, &exponent);
    if (mantissa < 0.70710678118654752) {
        mantissa *= 2;
        exponent--;
    }
    const double s = (mantissa - 1) / (mantissa + 1), square = s * s;
    double sum = 0;
    for (int n = 25; n > 0; n -= 2)
        sum = sum * square + 1.0 / n;
    return exponent * LN2 + 2 * s * sum;
}

static double exponential(double x)
{
    const int exponent = (int)floor(x / LN2 + 0.5);
    const double rest = x - exponent * LN2;
    double sum = 1;
    for (int n = 20; n > 0; n--)
        sum = 1 + sum * rest / n;
    return ldexp(sum, exponent);
}

struct dice {
    struct keel_control control;
    uint32_t stream;
    uint64_t number; /* of the failure */
};

/* In (0, 1), with 53 bits. */
static double uniform(const struct dice *dice)
{
    const uint64_t high = keel_random_u32(&dice->control, dice->stream, dice->number * WORDS_EACH);
    const uint64_t low = keel_random_u32(&dice->control, dice->stream, dice->number * WORDS_EACH + 1);
    return ((double)(high << 20 | low >> 12) + 0.5) * 0x1p-52;
}

static uint32_t draw_first(const struct dice *dice, uint32_t places)
{
    const uint64_t word = keel_random_u32(&dice->control, dice->stream, dice->number * WORDS_EACH + 2);
    return (uint32_t)(word * places >> 32);
}

static double normal(const struct dice *dice) /* words 4 and 5 */
{
    return (double)keel_random_normal(&dice->control, dice->stream, dice->number * (WORDS_EACH / 2) + 2);
}

static uint64_t draw_repair(const struct dice *dice, const struct keel_failure_rate *rate)
{
    if (rate->mean_ns == rate->median_ns)
        return rate->median_ns;
    const double sigma = sqrt(2 * natural_log((double)rate->mean_ns / (double)rate->median_ns));
    const double ns = (double)rate->median_ns * exponential(sigma * normal(dice));
    return ns < (double)TIME_MAX_NS ? (uint64_t)ns : TIME_MAX_NS;
}

/* Of a rate whose gaps have the mean 1; rounded, since C libraries differ in the last bits of gamma. */
static double weibull_scale(double shape)
{
    return 1 / (double)(float)tgamma(1 + 1 / shape);
}

static enum keel_status draw_rate(const struct keel_failure_rate *rate, uint32_t nodes, uint64_t duration_ns,
                                  struct dice *dice, struct keel_failures *out)
{
    const double per_ns = rate->per_node_ns * nodes;
    if (per_ns <= 0)
        return KEEL_OK;
    const double scale = (rate->shape == 1 ? 1 : weibull_scale(rate->shape)) / per_ns;
    double at = 0;
    for (dice->number = 0;; dice->number++) {
        double gap = -natural_log(uniform(dice));
        if (rate->shape != 1)
            gap = exponential(natural_log(gap) / rate->shape);
        at += gap * scale;
        if (!(at < (double)duration_ns))
            return KEEL_OK;
        const struct keel_failure failure = {.at_ns = (uint64_t)at,
                                             .repair_ns = draw_repair(dice, rate),
                                             .first = draw_first(dice, nodes - rate->count + 1),
                                             .count = rate->count,
                                             .kind = rate->kind,
                                             .factor_ppm = rate->factor_ppm};
        KEEL_TRY(append(out, &failure));
    }
}

static int by_time(const void *a, const void *b)
{
    const struct keel_failure *one = a, *other = b;
    if (one->at_ns != other->at_ns)
        return one->at_ns < other->at_ns ? -1 : 1;
    if (one->first != other->first)
        return one->first < other->first ? -1 : 1;
    return (int)one->kind - (int)other->kind;
}

enum keel_status keel_failures_draw(const struct keel_failures *source, uint32_t nodes, uint64_t duration_ns,
                                    uint64_t seed, struct keel_failures *out)
{
    enum keel_status status = KEEL_OK;
    *out = (struct keel_failures){.at = NULL};
    for (size_t i = 0; i < source->count && status == KEEL_OK; i++)
        if (source->at[i].at_ns < duration_ns)
            status = append(out, &source->at[i]);
    for (uint32_t i = 0; i < source->rate_count && status == KEEL_OK; i++) {
        struct dice dice = {.control = {.seed_lo = (uint32_t)seed, .seed_hi = (uint32_t)(seed >> 32)},
                            .stream = i};
        status = draw_rate(&source->rates[i], nodes, duration_ns, &dice, out);
    }
    if (status != KEEL_OK) {
        keel_failures_fini(out);
        return status;
    }
    if (out->count > 1)
        qsort(out->at, out->count, sizeof *out->at, by_time);
    return KEEL_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void put_time(FILE *out, uint64_t ns)
{
    fprintf(out, "%" PRIu64 ".%09" PRIu64 "s", ns / KEEL_FAILURE_SECOND_NS, ns % KEEL_FAILURE_SECOND_NS);
}

void keel_failures_write(const struct keel_failures *failures, FILE *out)
{
    fputs("# time node kind repair\n", out);
    if (failures->count == 0)
        fputs("rate 0 node 0 # none, which a file has to say\n", out);
    for (size_t i = 0; i < failures->count; i++) {
        const struct keel_failure *failure = &failures->at[i];
        put_time(out, failure->at_ns);
        fprintf(out, " %" PRIu32, failure->first);
        if (failure->count > 1)
            fprintf(out, "-%" PRIu32, failure->first + failure->count - 1);
        fprintf(out, " %s ", words[failure->kind]);
        put_time(out, failure->repair_ns);
        if (failure->kind == KEEL_FAILURE_SLOW)
            fprintf(out, " factor=%.6f", (double)failure->factor_ppm / KEEL_FAILURE_FACTOR_PPM);
        fputc('\n', out);
    }
}
