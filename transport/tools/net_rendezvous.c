/* net_rendezvous.c - the host's side of working together: starting ranks, hearing them, saying who failed.
 * A rank's side is net_member.c. */
#include "net_rendezvous.h"
#include "net_member.h"
#include "provider.h"

#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <keel/process.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RANKS_HERE = 4, /* where nobody says */
    ARGUMENTS_MAX = 64,
    HOST_BYTES = 256,
    COMMAND_BYTES = 8192,
    SHELL_WORDS_MAX = 16,
    HOSTS_FILE_BYTES = 1 << 20,
    MEMINFO_BYTES = 1 << 16,
    TIMEOUT_MAX_S = 86400,
    KEY_FD = 3 /* of a child: the first descriptor that is kept */
};
#define LOOK_NS  (100 * KEEL_NS_PER_MS) /* how often children are looked after */
#define GRACE_NS (2 * KEEL_NS_PER_S)    /* for those that are left when one has failed, beyond the timeout */

struct rank_here {
    struct keel_process process;
    bool started, ended, gone, failed;
    char host[HOST_BYTES]; /* started through a shell; "" for this machine */
};

struct hosting {
    const struct keel_command *cmd;
    const struct keel_net_rendezvous *rendezvous;
    const struct keel_net_work *work;
    struct keel_rendezvous_host *host;
    struct rank_here *ranks;
    uint32_t world, gone;
    int key_fd; /* -1: a key file was named */
    uint8_t key[KEEL_KEY_BYTES];
    enum keel_status status; /* the first that was not OK */
    uint64_t give_up_ns;
};

void keel_net_rendezvous_begin(struct keel_net_rendezvous *rendezvous)
{
    *rendezvous = (struct keel_net_rendezvous){
        .timeout_s = 30, .carrier = "shared", .ranks = UINT64_MAX, .rank = UINT64_MAX};
}

static uint64_t ranks_here(const struct keel_net_rendezvous *rendezvous)
{
    return rendezvous->ranks != UINT64_MAX ? rendezvous->ranks : RANKS_HERE;
}

/* UINT64_MAX where the kernel does not say. */
static uint64_t memory_left_bytes(void)
{
    char *text;
    size_t bytes;
    uint64_t left = UINT64_MAX;
    if (keel_file_read("/proc/meminfo", MEMINFO_BYTES, &text, &bytes) != KEEL_OK)
        return left;
    const char *at = strstr(text, "MemAvailable:");
    if (at != NULL)
        left = strtoull(at + strlen("MemAvailable:"), NULL, 10) << 10;
    keel_free(text);
    return left;
}

enum keel_status keel_net_rendezvous_can(const struct keel_net_rendezvous *rendezvous, uint64_t bytes,
                                         const char *path)
{
    uint64_t left = memory_left_bytes();
    uint64_t ranks =
        rendezvous->join != NULL ? 1 : ranks_here(rendezvous); /* at a meeting every rank asks for itself */
    if (bytes > left / 2 / (ranks > 0 ? ranks : 1))
        return keel_fail(KEEL_LIMIT,
                         "%" PRIu64 " ranks here need twice %" PRIu64 " bytes each, %" PRIu64
                         " are left; take fewer ranks or a smaller --max",
                         ranks, bytes, left);
    return path == NULL || rendezvous->member ? KEEL_OK : keel_command_may_write(path);
}

/* ---- who there is -------------------------------------------------------------------------------------- */

static enum keel_status one_host(struct hosting *hosting, char *line, uint32_t *count)
{
    char *rest = line, *end;
    line[strcspn(line, "#")] = '\0';
    const char *name = strtok_r(line, " \t\r", &rest);
    if (name == NULL)
        return KEEL_OK;
    if (name[0] == '-' || strlen(name) >= HOST_BYTES)
        return keel_fail(KEEL_INVALID, "%s: `%s` is no host", hosting->rendezvous->hosts, name);
    const char *slots_word = strtok_r(NULL, " \t\r", &rest);
    uint64_t slots = slots_word != NULL ? strtoull(slots_word, &end, 10) : 1;
    if (slots_word != NULL && (*end != '\0' || slots == 0))
        return keel_fail(KEEL_INVALID, "%s: %s: `%s` is no number of ranks", hosting->rendezvous->hosts, name,
                         slots_word);
    const char *more = strtok_r(NULL, " \t\r", &rest);
    if (more != NULL)
        return keel_fail(KEEL_INVALID, "%s: %s: `%s`: a line is HOST [SLOTS]", hosting->rendezvous->hosts,
                         name, more);
    for (uint64_t k = 0; k < slots; k++) {
        if (*count == KEEL_GROUP_RANKS_MAX)
            return keel_fail(KEEL_LIMIT, "%s: more than %d ranks", hosting->rendezvous->hosts,
                             KEEL_GROUP_RANKS_MAX);
        memcpy(hosting->ranks[(*count)++].host, name, strlen(name) + 1);
    }
    return KEEL_OK;
}

static enum keel_status read_hosts(struct hosting *hosting)
{
    char *text, *at = NULL;
    size_t bytes;
    enum keel_status status = KEEL_OK;
    KEEL_TRY(keel_file_read(hosting->rendezvous->hosts, HOSTS_FILE_BYTES, &text, &bytes));
    if (strlen(text) != bytes)
        status = keel_fail(KEEL_INVALID, "%s: byte %zu is NUL; a file of hosts is text",
                           hosting->rendezvous->hosts, strlen(text));
    for (char *line = strtok_r(text, "\n", &at); line != NULL && status == KEEL_OK;
         line = strtok_r(NULL, "\n", &at))
        status = one_host(hosting, line, &hosting->world);
    keel_free(text);
    if (status == KEEL_OK && hosting->world == 0)
        status = keel_fail(KEEL_INVALID, "%s: names no host", hosting->rendezvous->hosts);
    return status;
}

static enum keel_status count_ranks(struct hosting *hosting)
{
    const struct keel_net_rendezvous *rendezvous = hosting->rendezvous;
    uint64_t world = rendezvous->join != NULL ? rendezvous->world : ranks_here(rendezvous);
    if (rendezvous->hosts != NULL)
        return read_hosts(hosting);
    if (world == 0 || world > KEEL_GROUP_RANKS_MAX)
        return keel_fail(KEEL_LIMIT, "%" PRIu64 " ranks; there may be 1 to %d", world, KEEL_GROUP_RANKS_MAX);
    hosting->world = (uint32_t)world;
    return KEEL_OK;
}

/* ---- the key ------------------------------------------------------------------------------------------- */

/* Nobody but this process and its children sees it: it lies in memory without a name. */
static enum keel_status make_key(struct hosting *hosting)
{
    char text[2 * KEEL_KEY_BYTES + 1];
    if (sodium_init() < 0)
        return keel_fail(KEEL_UNSUPPORTED, "libsodium cannot start: no source of random numbers");
    randombytes_buf(hosting->key, sizeof hosting->key);
    sodium_bin2hex(text, sizeof text, hosting->key, sizeof hosting->key);
    hosting->key_fd = memfd_create("keel-net-key", MFD_CLOEXEC);
    if (hosting->key_fd < 0 || fchmod(hosting->key_fd, 0600) != 0)
        return keel_fail_errno(errno, "no memory for a key");
    enum keel_status status = keel_pwrite_all(hosting->key_fd, text, sizeof text - 1, 0, "the key");
    sodium_memzero(text, sizeof text);
    return status;
}

static enum keel_status find_key(struct hosting *hosting)
{
    const struct keel_net_rendezvous *rendezvous = hosting->rendezvous;
    if (rendezvous->key_file != NULL)
        return keel_rendezvous_key_read(rendezvous->key_file, hosting->key);
    if (rendezvous->join != NULL || rendezvous->hosts != NULL)
        return keel_fail(KEEL_INVALID, "several nodes need --key FILE (make one: openssl rand -hex 32)");
    return make_key(hosting);
}

/* ---- starting ranks ------------------------------------------------------------------------------------ */

struct arguments {
    char *at[ARGUMENTS_MAX];
    char words[3][24];
    char self[KEEL_PATH_BYTES];
};

/* The command again, with what makes it rank `rank`: later options win. */
static enum keel_status arguments_of(const struct hosting *hosting, uint32_t rank, struct arguments *out)
{
    static char join[] = "--join", rank_word[] = "--rank", world[] = "--world", key[] = "--key",
                member[] = "--member", key_path[] = "/proc/self/fd/3";
    uint32_t count = 0;
    if (hosting->cmd->argc > ARGUMENTS_MAX - 12)
        return keel_fail(KEEL_LIMIT, "more than %d words", ARGUMENTS_MAX - 12);
    KEEL_TRY(keel_self_path(out->self, sizeof out->self));
    out->at[count++] = out->self;
    for (int k = 0; k < hosting->cmd->argc; k++)
        out->at[count++] = hosting->cmd->argv[k];
    snprintf(out->words[0], sizeof out->words[0], "%" PRIu32, rank);
    snprintf(out->words[1], sizeof out->words[1], "%" PRIu32, hosting->world);
    out->at[count++] = join;
    out->at[count++] = (char *)(uintptr_t)keel_rendezvous_host_place(hosting->host);
    out->at[count++] = rank_word;
    out->at[count++] = out->words[0];
    out->at[count++] = world;
    out->at[count++] = out->words[1];
    out->at[count++] = member;
    if (hosting->key_fd >= 0) {
        out->at[count++] = key;
        out->at[count++] = key_path;
    }
    out->at[count] = NULL;
    return KEEL_OK;
}

/* One string for a remote shell: every word in single quotes. */
static enum keel_status quote_all(char *const *words, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (uint32_t k = 0; words[k] != NULL; k++) {
        for (const char *at = words[k]; used + 8 < out_bytes; at++) {
            if (at == words[k])
                out[used++] = '\'';
            if (*at == '\0')
                break;
            if (*at == '\'') {
                memcpy(&out[used], "'\\'", 3);
                used += 3;
            }
            out[used++] = *at;
        }
        if (used + 8 >= out_bytes)
            return keel_fail(KEEL_LIMIT, "the command is longer than %zu bytes", out_bytes);
        out[used++] = '\'';
        out[used++] = ' ';
    }
    out[used] = '\0';
    return KEEL_OK;
}

static enum keel_status start_through_shell(struct hosting *hosting, struct rank_here *rank,
                                            const struct arguments *arguments)
{
    const char *given = hosting->rendezvous->shell;
    char command[COMMAND_BYTES], shell[COMMAND_BYTES] = "ssh -o BatchMode=yes", env[] = "/usr/bin/env";
    char *words[SHELL_WORDS_MAX + 4] = {env}, *rest = NULL;
    uint32_t count = 1;
    KEEL_TRY(quote_all(arguments->at, command, sizeof command));
    if (given != NULL && strlen(given) >= sizeof shell)
        return keel_fail(KEEL_LIMIT, "--shell: longer than %d bytes", COMMAND_BYTES);
    if (given != NULL)
        memcpy(shell, given, strlen(given) + 1);
    for (char *word = strtok_r(shell, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        if (count > SHELL_WORDS_MAX)
            return keel_fail(KEEL_LIMIT, "--shell: more than %d words", SHELL_WORDS_MAX);
        words[count++] = word;
    }
    if (count == 1)
        return keel_fail(KEEL_INVALID, "--shell: names no command");
    words[count++] = rank->host;
    words[count++] = command;
    words[count] = NULL;
    return keel_process_spawn(words, NULL, 0, -1, &rank->process);
}

static enum keel_status start(struct hosting *hosting, uint32_t number)
{
    struct rank_here *rank = &hosting->ranks[number];
    struct arguments arguments;
    uint32_t kept = hosting->key_fd >= 0 ? 1 : 0;
    KEEL_TRY(arguments_of(hosting, number, &arguments));
    if (rank->host[0] != '\0')
        KEEL_TRY(start_through_shell(hosting, rank, &arguments));
    else
        KEEL_TRY(keel_process_spawn(arguments.at, &hosting->key_fd, kept, -1, &rank->process));
    rank->started = true;
    return KEEL_OK;
}

/* Of a meeting that the user arranged only rank 0 is ours to start. */
static enum keel_status start_all(struct hosting *hosting)
{
    uint32_t ours =
        hosting->rendezvous->join != NULL && hosting->rendezvous->hosts == NULL ? 1 : hosting->world;
    for (uint32_t rank = 0; rank < ours; rank++)
        KEEL_TRY(start(hosting, rank));
    return KEEL_OK;
}

/* ---- hearing them -------------------------------------------------------------------------------------- */

static void fail(struct hosting *hosting, enum keel_status status)
{
    if (hosting->status == KEEL_OK)
        hosting->status = status;
    uint64_t last_ns = keel_deadline_after_ns(hosting->rendezvous->timeout_s * KEEL_NS_PER_S + GRACE_NS);
    if (last_ns < hosting->give_up_ns)
        hosting->give_up_ns = last_ns;
}

static void rank_failed(struct hosting *hosting, uint32_t rank, enum keel_status status, const char *why)
{
    char reason[KEEL_DETAIL_BYTES];
    hosting->ranks[rank].failed = true;
    snprintf(reason, sizeof reason, "%s", why); /* it may be this thread's detail */
    keel_net_report(keel_fail(status, "rank %" PRIu32 ": %s", rank, reason));
    fail(hosting, status);
}

static void heard(struct hosting *hosting, const struct keel_rendezvous_event *event)
{
    const struct keel_net_failure *failure = (const void *)event->payload;
    bool sense;
    if (event->frame_kind == KEEL_NET_FRAME_FAILED) {
        sense = event->bytes == sizeof *failure && failure->text[sizeof failure->text - 1] == '\0' &&
                failure->status < KEEL_STATUS_COUNT && failure->status != KEEL_OK;
        if (sense)
            rank_failed(hosting, event->rank, failure->status, failure->text);
    } else if (event->frame_kind == KEEL_NET_FRAME_ALIVE) {
        sense = event->bytes == 0;
    } else {
        sense = hosting->work->frame(hosting->work->context, event->rank, event->frame_kind, event->payload,
                                     event->bytes);
    }
    if (!sense)
        rank_failed(hosting, event->rank, KEEL_MISMATCH, "says what this program does not understand");
}

static void left(struct hosting *hosting, const struct keel_rendezvous_event *event)
{
    struct rank_here *rank = &hosting->ranks[event->rank];
    rank->gone = true;
    hosting->gone++;
    if (!event->orderly && !rank->failed)
        rank_failed(hosting, event->rank, KEEL_PEER_LOST, "ended without a word");
}

/* A process that ended before it could join says nothing over a connection. */
static void look_after(struct hosting *hosting, bool met)
{
    for (uint32_t k = 0; k < hosting->world; k++) {
        struct rank_here *rank = &hosting->ranks[k];
        struct keel_process_end end;
        char why[HOST_BYTES + 64];
        if (!rank->started || rank->ended || keel_process_wait(&rank->process, 0, &end) != KEEL_OK)
            continue;
        rank->ended = true;
        if (end.signaled || (!met && !rank->failed)) {
            snprintf(why, sizeof why, "its process%s%s ended: %s %d", rank->host[0] != '\0' ? " on " : "",
                     rank->host, end.signaled ? "signal" : "exit code", end.code);
            bool could_not = !end.signaled && end.code == keel_status_exit_code(KEEL_UNSUPPORTED);
            rank_failed(hosting, k, could_not ? KEEL_UNSUPPORTED : KEEL_PEER_LOST, why);
        }
        if (!met)
            hosting->give_up_ns = 0;
    }
}

static void missing(struct hosting *hosting, bool met)
{
    uint32_t rank;
    uint32_t joined = keel_rendezvous_host_joined(hosting->host, &rank);
    if (!met && hosting->status == KEEL_OK)
        keel_net_report(keel_fail(KEEL_TIMEOUT,
                                  "%" PRIu32 " of %" PRIu32 " ranks came; rank %" PRIu32 " did not", joined,
                                  hosting->world, rank));
    for (rank = 0; met && rank < hosting->world; rank++)
        if (!hosting->ranks[rank].gone)
            keel_net_report(keel_fail(KEEL_TIMEOUT, "rank %" PRIu32 " says nothing any more", rank));
    fail(hosting, KEEL_TIMEOUT);
}

static void listen_to_all(struct hosting *hosting)
{
    uint64_t patience_ns = hosting->rendezvous->timeout_s * KEEL_NS_PER_S;
    bool met = false;
    hosting->give_up_ns = keel_deadline_after_ns(patience_ns);
    while (hosting->gone < hosting->world) {
        struct keel_rendezvous_event event;
        uint64_t look_ns = keel_deadline_after_ns(LOOK_NS);
        enum keel_status status = keel_rendezvous_host_next(
            hosting->host, look_ns < hosting->give_up_ns ? look_ns : hosting->give_up_ns, &event);
        look_after(hosting, met);
        if (status != KEEL_OK && keel_remaining_ns(hosting->give_up_ns) == 0) {
            missing(hosting, met);
            return;
        }
        if (status != KEEL_OK)
            continue;
        if (event.kind == KEEL_RENDEZVOUS_COMPLETE) {
            met = true;
            hosting->work->met(hosting->work->context, hosting->world);
        } else if (event.kind == KEEL_RENDEZVOUS_FRAME) {
            heard(hosting, &event);
        } else if (met) {
            left(hosting, &event);
        }
        if (met && hosting->status == KEEL_OK) /* every operation ends in time, so somebody speaks in time */
            hosting->give_up_ns = keel_deadline_after_ns(2 * patience_ns + GRACE_NS);
    }
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

static void end_all(struct hosting *hosting)
{
    struct keel_process_end end;
    uint64_t soon_ns = keel_deadline_after_ns(GRACE_NS);
    for (uint32_t k = 0; k < KEEL_GROUP_RANKS_MAX; k++) {
        struct rank_here *rank = &hosting->ranks[k];
        if (!rank->started)
            continue;
        if (!rank->ended &&
            (hosting->status != KEEL_OK || keel_process_wait(&rank->process, soon_ns, &end) != KEEL_OK)) {
            keel_process_signal(&rank->process, SIGKILL);
            keel_process_wait(&rank->process, soon_ns, &end);
        }
        keel_process_close(&rank->process);
    }
}

static enum keel_status host_all(struct hosting *hosting)
{
    const char *place = hosting->rendezvous->join != NULL ? hosting->rendezvous->join : "127.0.0.1:0";
    if (hosting->rendezvous->hosts != NULL && hosting->rendezvous->join == NULL)
        return keel_fail(KEEL_INVALID,
                         "--hosts needs --join HOST:0, an address of this machine that all reach");
    KEEL_TRY(keel_alloc(KEEL_GROUP_RANKS_MAX, sizeof *hosting->ranks, &hosting->ranks));
    KEEL_TRY(count_ranks(hosting));
    KEEL_TRY(find_key(hosting));
    KEEL_TRY(keel_rendezvous_host_open(place, hosting->key, hosting->world, &hosting->host));
    enum keel_status status = start_all(hosting);
    if (status != KEEL_OK)
        hosting->status = status;
    else
        listen_to_all(hosting);
    end_all(hosting);
    return status;
}

/* NULL, or what does not go together. A member has the words of its host before its own. */
static const char *wrong_words(const struct keel_net_rendezvous *rendezvous)
{
    bool by_hand = rendezvous->join != NULL && rendezvous->hosts == NULL;
    if (rendezvous->timeout_s == 0 || rendezvous->timeout_s > TIMEOUT_MAX_S)
        return "--timeout is 1 to 86400 seconds";
    if (by_hand && (rendezvous->world == 0 || rendezvous->rank >= rendezvous->world))
        return "--join needs --rank R and --world N, R below N";
    if (rendezvous->join == NULL && (rendezvous->world != 0 || rendezvous->rank != UINT64_MAX))
        return "--rank and --world need --join, where the ranks meet";
    if (rendezvous->shell != NULL && rendezvous->hosts == NULL)
        return "--shell is how --hosts starts ranks: give --hosts, or leave it out";
    if (!rendezvous->member && rendezvous->join != NULL && rendezvous->ranks != UINT64_MAX)
        return "--ranks is of this machine alone; --join wants --world, --hosts a number behind each host";
    return NULL;
}

/* 0, or the exit code: no need to start processes that could not. */
static int check_carrier(const char *carrier)
{
    const struct keel_provider *provider = keel_provider_find(carrier);
    if (strcmp(carrier, "shared") == 0)
        return 0;
    if (provider == NULL)
        return keel_net_wrong_use("--carrier is shared or tcp, --provider one that is known, not ", carrier);
    if (keel_provider_lacks(provider) == NULL)
        return 0;
    return keel_net_report(
        keel_fail(KEEL_UNSUPPORTED, "provider \"%s\" has no %s", carrier, keel_provider_lacks(provider)));
}

bool keel_net_rendezvous_run(const struct keel_command *cmd, const struct keel_net_rendezvous *rendezvous,
                             const struct keel_net_work *work, int *out_code, enum keel_status *out_status)
{
    if (rendezvous->member)
        keel_command_leave_output();
    *out_code = check_carrier(rendezvous->carrier);
    if (*out_code != 0)
        return false;
    if (wrong_words(rendezvous) != NULL) {
        *out_code = keel_net_wrong_use(wrong_words(rendezvous), "");
        return false;
    }
    if (rendezvous->member ||
        (rendezvous->join != NULL && rendezvous->hosts == NULL && rendezvous->rank > 0)) {
        *out_code = keel_net_member_run(cmd, rendezvous, work);
        return false;
    }
    struct keel_cost_model costs;
    enum keel_status status =
        rendezvous->costs != NULL ? keel_costs_read(rendezvous->costs, &costs) : KEEL_OK;
    if (status != KEEL_OK) {
        *out_code = keel_net_report(status);
        return false;
    }
    struct hosting hosting = {.cmd = cmd, .rendezvous = rendezvous, .work = work, .key_fd = -1};
    status = host_all(&hosting);
    keel_rendezvous_host_close(hosting.host);
    keel_free(hosting.ranks);
    if (hosting.key_fd >= 0)
        close(hosting.key_fd);
    sodium_memzero(hosting.key, sizeof hosting.key);
    if (status != KEEL_OK) {
        *out_code = keel_net_report(status);
        return false;
    }
    *out_status = hosting.status;
    return true;
}
