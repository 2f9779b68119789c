/* serve_cmd.c - `keel serve JOB|SNAPSHOT`: texts by a snapshot for whoever asks over HTTP, until a signal
 * comes.
 *
 * Three threads: this one waits for the end and looks after clients, one of libmicrohttpd's speaks with them
 * (serve_http.c), and one computes (serve.c). Signals are held by the process's own handler and not read from
 * a signalfd: drivers have threads that do not block them, and would take them first. */
#include "serve_cmd.h"
#include "serve_http.h"
#include "trained.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PORT = 8080, SLOTS = 4, SLOTS_MAX = 64, QUEUE = 64, QUEUE_MAX = 65536, CONNECTIONS = 256 };
enum {
    CONNECTIONS_MAX = 65536,
    BODY_BYTES = 1 << 20,
    BODY_BYTES_MIN = 2,
    BODY_BYTES_MAX = 1 << 26,
    CLIENT_S = 10
};
enum { SWEEP_MS = 1000, DRAIN_MS = 50 };

struct own {
    struct keel_trained_options trained; /* first */
    const char *bind;
    uint64_t port, slots, queue, connections, body_bytes, client_ns;
};

struct serving {
    const struct own *own;
    struct keel_trained trained;
    struct keel_serve *serve;
    struct keel_http *http;
    int ended; /* a descriptor, which is read from once the computing thread has ended; -1: not open */
    bool over; /* it has */
};

static enum keel_status check_options(const struct own *own)
{
    const struct {
        const char *name;
        uint64_t value, most;
    } limits[] = {{"--port", own->port, UINT16_MAX},
                  {"--slots", own->slots, SLOTS_MAX},
                  {"--queue", own->queue, QUEUE_MAX},
                  {"--connections", own->connections, CONNECTIONS_MAX},
                  {"--max-body", own->body_bytes, BODY_BYTES_MAX}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value > limits[i].most)
            return keel_fail(KEEL_INVALID, "%s %" PRIu64 ": at most %" PRIu64, limits[i].name,
                             limits[i].value, limits[i].most);
    if (own->body_bytes < BODY_BYTES_MIN)
        return keel_fail(KEEL_INVALID, "--max-body %" PRIu64 ": at least %d", own->body_bytes,
                         BODY_BYTES_MIN);
    return KEEL_OK;
}

/* ---- what there is to wait for ------------------------------------------------------------------------- */

/* From now on the first signal is noted, and another one a second later ends the process (keel/process.h). */
static enum keel_status take_signals(struct serving *serving)
{
    (void)keel_process_hold_interrupts(true);
    signal(SIGPIPE, SIG_IGN);
    serving->ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return serving->ended >= 0 ? KEEL_OK
                               : keel_fail_errno(errno, "keel serve: no descriptor for the computing thread");
}

static void on_ended(void *context)
{
    const uint64_t one = 1;
    (void)!write(((const struct serving *)context)->ended, &one, sizeof one);
}

static void wait_ms(struct serving *serving, int ms)
{
    struct pollfd look = {.fd = serving->over ? -1 : serving->ended, .events = POLLIN};
    serving->over = poll(&look, 1, ms) > 0 || serving->over;
}

/* ---- serving ------------------------------------------------------------------------------------------- */

static enum keel_status open_model(struct serving *serving, const char *path)
{
    struct keel_trained *trained = &serving->trained;
    char identity[KEEL_IDENTITY_BYTES];
    KEEL_TRY(keel_trained_find_text(&serving->own->trained, path, trained, identity));
    trained->decode =
        keel_inference_decodes(&trained->job, trained->data) ? (uint32_t)serving->own->slots : 0;
    trained->only_decode = trained->decode > 0;
    if (trained->decode > 0)
        trained->prompt_rows = trained->job.block < KEEL_PROMPT_ROWS ? trained->job.block : KEEL_PROMPT_ROWS;
    return keel_trained_open(trained, &serving->own->trained, identity);
}

static enum keel_status start(struct serving *serving)
{
    const struct own *own = serving->own;
    const struct keel_trained *trained = &serving->trained;
    const struct keel_serve_config config = {.inference = trained->inference,
                                             .data = trained->data,
                                             .block = trained->job.block,
                                             .slots = (uint32_t)own->slots,
                                             .prompt_rows = trained->prompt_rows,
                                             .queue_max = (uint32_t)own->queue,
                                             .decodes = trained->decode > 0,
                                             .ended = on_ended,
                                             .context = serving};
    KEEL_TRY(keel_serve_create(&config, &serving->serve));
    const struct keel_http_config http = {.serve = serving->serve,
                                          .model = trained->job.name,
                                          .step = trained->info.step,
                                          .seed = trained->job.seed,
                                          .address = own->bind,
                                          .port = (uint16_t)own->port,
                                          .connections_max = (uint32_t)own->connections,
                                          .body_max = (size_t)own->body_bytes,
                                          .client_ns = own->client_ns};
    return keel_http_create(&http, &serving->http);
}

static void tell_address(const struct serving *serving)
{
    const bool six = strchr(serving->own->bind, ':') != NULL;
    fprintf(stderr, "keel serve: %s, step %" PRIu64 ", at http://%s%s%s:%u, %" PRIu64 " texts at once%s\n",
            serving->trained.job.name, serving->trained.info.step, six ? "[" : "", serving->own->bind,
            six ? "]" : "", keel_http_port(serving->http), serving->own->slots,
            serving->trained.decode > 0 ? "" : ", each computed whole for each token");
}

/* Until a signal, or a failure of the device. */
static void serve(struct serving *serving)
{
    while (!keel_process_interrupted() && !serving->over) {
        wait_ms(serving, SWEEP_MS);
        keel_http_sweep(serving->http);
    }
}

/* What was taken is done, or has failed, and its clients take it. */
static void drain(struct serving *serving)
{
    keel_http_drain(serving->http);
    keel_serve_drain(serving->serve);
    while (!serving->over || keel_http_is_busy(serving->http)) {
        wait_ms(serving, DRAIN_MS);
        keel_http_sweep(serving->http);
    }
}

static void print_figures(const struct serving *serving, bool as_json)
{
    const struct keel_serve_figures figures = keel_serve_figures(serving->serve);
    if (!as_json) {
        fprintf(stderr,
                "keel serve: %" PRIu64 " requests, %" PRIu64 " done, %" PRIu64 " given up, %" PRIu64
                " refused; %" PRIu64 " tokens in %.1f s of steps\n",
                figures.taken, figures.done, figures.given_up, figures.refused, figures.tokens,
                figures.busy_s);
        return;
    }
    struct keel_json json = keel_command_json(stdout);
    keel_json_text(&json, "job", serving->trained.job.name);
    keel_json_number(&json, "step", serving->trained.info.step);
    keel_json_number(&json, "requests", figures.taken);
    keel_json_number(&json, "done", figures.done);
    keel_json_number(&json, "given_up", figures.given_up);
    keel_json_number(&json, "failed", figures.failed);
    keel_json_number(&json, "refused", figures.refused);
    keel_json_number(&json, "prompt_tokens", figures.prompt_tokens);
    keel_json_number(&json, "tokens", figures.tokens);
    keel_json_number(&json, "steps", figures.steps);
    keel_json_real(&json, "busy_s", figures.busy_s, 6);
    keel_command_json_end(&json);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static enum keel_status run_all(struct serving *serving, const struct keel_command *command)
{
    KEEL_TRY(check_options(serving->own));
    KEEL_TRY(open_model(serving, command->operands[0]));
    KEEL_TRY(take_signals(serving));
    KEEL_TRY(start(serving));
    tell_address(serving);
    serve(serving);
    drain(serving);
    print_figures(serving, command->json);
    return KEEL_OK;
}

static enum keel_status unmake(struct serving *serving)
{
    keel_http_destroy(serving->http);
    const enum keel_status status = keel_serve_destroy(serving->serve);
    keel_trained_close(&serving->trained);
    if (serving->ended >= 0)
        close(serving->ended);
    return status;
}

static int run(const struct keel_command *command)
{
    struct serving *serving;
    enum keel_status status = keel_alloc(1, sizeof *serving, &serving);
    if (status != KEEL_OK)
        return keel_command_report(command->set, status);
    serving->own = keel_command_own(command);
    serving->ended = -1;
    status = run_all(serving, command);
    int code = status == KEEL_OK ? 0 : keel_command_report(command->set, status);
    status = unmake(serving);
    if (code == 0 && status != KEEL_OK)
        code = keel_command_report(command->set, status);
    keel_free(serving);
    return code;
}

static void begin(void *own)
{
    struct own *out = own;
    out->bind = "127.0.0.1";
    out->port = PORT;
    out->slots = SLOTS;
    out->queue = QUEUE;
    out->connections = CONNECTIONS;
    out->body_bytes = BODY_BYTES;
    out->client_ns = CLIENT_S * KEEL_NS_PER_S;
}

static const struct keel_command_option options[] = {
    {"--port", "N", KEEL_COMMAND_COUNT, offsetof(struct own, port),
     "to listen at; 0: one that is free, which is told; default 8080"},
    {"--bind", "ADDRESS", KEEL_COMMAND_TEXT, offsetof(struct own, bind),
     "of this host to listen at, by its numbers; default 127.0.0.1: clients of this host alone"},
    {"--slots", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, slots),
     "texts that are computed at once; default 4"},
    {"--queue", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, queue),
     "requests that wait for that; more get status 503; default 64"},
    {"--connections", "N", KEEL_COMMAND_POSITIVE, offsetof(struct own, connections),
     "of clients at once; default 256"},
    {"--max-body", "BYTES", KEEL_COMMAND_BYTES, offsetof(struct own, body_bytes), "of a request; default 1M"},
    {"--client-timeout", "TIME", KEEL_COMMAND_DURATION, offsetof(struct own, client_ns),
     "in which a client sends its request, or takes its answer; default 10s"},
    KEEL_TRAINED_OPTIONS,
    {.name = NULL}};

static const struct keel_command_kind serve_kind = {
    .name = "serve",
    .operands = "JOB.conf|PATH",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "write texts by a snapshot of a language model for clients over HTTP",
    .details =
        "PATH is the directory of a run, a snapshot in it, or a store or run of snapshots; JOB.conf means "
        "the\n"
        "run's directory that keel run makes for it. POST /v1/completions takes a JSON object (prompt, "
        "max_tokens,\n"
        "temperature, top_k, top_p, seed, stop, stream) and answers by one, or by events as the text comes "
        "(stream); "
        "GET\n"
        "/health and /metrics (for Prometheus) say how it is. The same request gives the same text whatever "
        "else\n"
        "is served: that of keel sample. SIGTERM or Ctrl-C: nothing more is taken, what was taken is done, "
        "and\n"
        "keel serve ends. There is no password: whoever reaches --bind may ask.\n",
    .examples =
        "  keel serve runs/demo --port 8080\n"
        "  curl -s localhost:8080/v1/completions -d '{\"prompt\":\"In the \",\"max_tokens\":20}' | jq -r "
        ".choices[0].text\n"
        "  curl -sN localhost:8080/v1/completions -d '{\"max_tokens\":20,\"seed\":7,\"stream\":true}'\n"
        "  keel serve demo.conf --step 200 --slots 8 --queue 256\n",
    .options = options,
    .begin = begin,
    .run = run};
static const struct keel_command_kind *const kinds[] = {&serve_kind};
static const struct keel_command_set set = {.name = "keel", .kinds = kinds, .kind_count = 1};

int keel_serve_main(int argc, char **argv)
{
    return keel_command_main(&set, argc + 1,
                             argv - 1); /* main's own words, of which ours begins with "serve" */
}
