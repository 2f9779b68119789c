/* hosts.c - see hosts.h. */
#include "hosts.h"

#include <errno.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HOSTS_BYTES = 1 << 20, AGENT_WORDS = 11, NUMBER_BYTES = 12 };
static const uint64_t slurm_patience_ns = 30 * KEEL_NS_PER_S;

/* ---- which hosts --------------------------------------------------------------------------------------- */

static enum keel_status check_host(const char *name)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:@[]"; /* user@name, [::1] */
    if (name[0] == '-' || name[strspn(name, letters)] != '\0')
        return keel_fail(KEEL_INVALID, "cluster.hosts: `%.64s` is no host", name);
    return KEEL_OK;
}

/* Cuts the text at commas, blanks and ends of lines; a comment is from # to the end of its line. */
static enum keel_status split(struct keel_hosts *hosts)
{
    char *rest = hosts->text;
    for (char *at = hosts->text; (at = strchr(at, '#')) != NULL;)
        while (*at != '\0' && *at != '\n')
            *at++ = ' ';
    for (char *name = strtok_r(hosts->text, ", \t\r\n", &rest); name != NULL;
         name = strtok_r(NULL, ", \t\r\n", &rest)) {
        KEEL_TRY(check_host(name));
        if (hosts->count == KEEL_NODES_MAX - 1)
            return keel_fail(KEEL_LIMIT, "cluster.hosts: more than %d hosts", KEEL_NODES_MAX - 1);
        hosts->names[hosts->count++] = name;
    }
    return KEEL_OK;
}

/* What `scontrol show hostnames` makes of SLURM_JOB_NODELIST, which it does not look at by itself. */
static enum keel_status ask_slurm(char **out)
{
    const char *const list = getenv("SLURM_JOB_NODELIST");
    const char *const argv[] = {"/usr/bin/env", "scontrol", "show", "hostnames", list, NULL};
    if (list == NULL || list[0] == '\0')
        return keel_fail(KEEL_NOT_FOUND, "cluster.launch = slurm: this is no allocation of Slurm "
                                         "(SLURM_JOB_NODELIST is not set); use salloc or sbatch, or give "
                                         "cluster.hosts");
    int fd = memfd_create("hostnames", MFD_CLOEXEC);
    if (fd < 0)
        return keel_fail_errno(errno, "no memory for the names of hosts");
    struct keel_process_end end;
    enum keel_status status =
        keel_process_run(argv, NULL, 0, fd, keel_deadline_after_ns(slurm_patience_ns), &end);
    if (status == KEEL_OK)
        status = keel_process_succeeded(&end, "scontrol show hostnames");
    off_t bytes = status == KEEL_OK ? lseek(fd, 0, SEEK_END) : 0;
    if (status == KEEL_OK)
        status = keel_alloc(1, (uint64_t)bytes + 1, out);
    if (status == KEEL_OK)
        status = keel_pread_all(fd, *out, (uint64_t)bytes, 0, "scontrol");
    close(fd);
    return status;
}

static enum keel_status read_text(const struct keel_job *job, char **out)
{
    size_t bytes;
    if (job->hosts[0] == '\0')
        return job->launch == KEEL_LAUNCH_SLURM ? ask_slurm(out) : KEEL_OK;
    if (strchr(job->hosts, '/') != NULL) {
        KEEL_TRY(keel_file_read(job->hosts, HOSTS_BYTES, out, &bytes));
        return strlen(*out) == bytes
                   ? KEEL_OK
                   : keel_fail(KEEL_INVALID, "cluster.hosts = %s: is no text, names of hosts are wanted",
                               job->hosts);
    }
    KEEL_TRY(keel_alloc(1, strlen(job->hosts) + 1, out));
    memcpy(*out, job->hosts, strlen(job->hosts) + 1);
    return KEEL_OK;
}

enum keel_status keel_hosts_read(const struct keel_job *job, struct keel_hosts *out)
{
    *out = (struct keel_hosts){.count = 0};
    enum keel_status status = read_text(job, &out->text);
    if (status == KEEL_OK && out->text != NULL)
        status = split(out);
    if (status == KEEL_OK && out->text != NULL && out->count == 0)
        status = keel_fail(KEEL_INVALID, "cluster.hosts = %s: names no host", job->hosts);
    if (status != KEEL_OK)
        keel_hosts_free(out);
    return status;
}

enum keel_status keel_hosts_parse(const char *text, struct keel_hosts *out)
{
    *out = (struct keel_hosts){.count = 0};
    if (text[0] == '\0')
        return KEEL_OK;
    KEEL_TRY(keel_alloc(1, strlen(text) + 1, &out->text));
    memcpy(out->text, text, strlen(text) + 1);
    const enum keel_status status = split(out);
    if (status != KEEL_OK)
        keel_hosts_free(out);
    return status;
}

enum keel_status keel_hosts_text(const struct keel_hosts *hosts, char **out)
{
    size_t bytes = 1, used = 0;
    for (uint32_t i = 0; i < hosts->count; i++)
        bytes += strlen(hosts->names[i]) + 1;
    KEEL_TRY(keel_alloc(1, bytes, out));
    for (uint32_t i = 0; i < hosts->count; i++)
        used += (size_t)snprintf(*out + used, bytes - used, "%s%s", i > 0 ? "," : "", hosts->names[i]);
    return KEEL_OK;
}

void keel_hosts_free(struct keel_hosts *hosts)
{
    keel_free(hosts->text);
    *hosts = (struct keel_hosts){.count = 0};
}

const char *keel_hosts_of(const struct keel_hosts *hosts, const struct keel_job *job, uint16_t node)
{
    KEEL_ASSERT(node > 0 && node <= keel_job_node_count(job));
    return hosts->count == 0 ? "" : hosts->names[keel_job_host_of(job, hosts->count, node)];
}

/* ---- where the launcher is reached --------------------------------------------------------------------- */

void keel_hosts_list_networks(char *out, size_t out_bytes, const struct keel_net_place *but)
{
    struct keel_network networks[KEEL_NETWORKS_MAX];
    const uint32_t count = keel_networks_list(networks);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < count && used < out_bytes; i++) {
        char host[KEEL_HOST_BYTES];
        if (but != NULL && keel_net_place_same_ip(but, &networks[i].place))
            continue;
        keel_net_place_print_ip(&networks[i].place, host);
        const int wrote =
            snprintf(out + used, out_bytes - used, "%s%s %s", used > 0 ? ", " : "", networks[i].name, host);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

void keel_hosts_network_text(const struct keel_net_place *advertised, char *out, size_t out_bytes)
{
    struct keel_network network;
    char others[256];
    keel_hosts_list_networks(others, sizeof others, advertised);
    const bool known = keel_network_of(advertised, &network);
    const char *more = others[0] != '\0' && !keel_net_place_is_loopback(advertised) ? others : "";
    if (known)
        snprintf(out, out_bytes, " (%s, MTU %u)%s%s%s", network.name, network.mtu_bytes,
                 more[0] != '\0' ? "; also here: " : "", more,
                 more[0] != '\0' ? "; cluster.advertise chooses" : "");
    else
        snprintf(out, out_bytes, " (no address of this host itself)");
}

static enum keel_status refuse_loopback(const char *what, const char *name,
                                        const struct keel_net_place *place)
{
    char host[KEEL_HOST_BYTES], networks[256];
    keel_net_place_print_ip(place, host);
    keel_hosts_list_networks(networks, sizeof networks, NULL);
    return keel_fail(KEEL_INVALID,
                     "%s %s is %s, loopback: agents on other hosts do not reach the launcher there; give "
                     "cluster.advertise = an address of this host (%s)",
                     what, name, host, networks[0] != '\0' ? networks : "it has no network but loopback");
}

/* By this host's name; where that says loopback, as Debian writes it into /etc/hosts, by its only network. */
static enum keel_status own_address(struct keel_net_place *out)
{
    char name[256] = "";
    struct keel_net_place place = {.port = 0};
    struct keel_network networks[KEEL_NETWORKS_MAX];
    (void)gethostname(name, sizeof name - 1);
    const bool named = keel_net_place_resolve(name, &place) == KEEL_OK;
    if (named && !keel_net_place_is_loopback(&place)) {
        *out = place;
        return KEEL_OK;
    }
    if (keel_networks_list(networks) == 1) {
        *out = networks[0].place;
        return KEEL_OK;
    }
    if (!named)
        KEEL_TRY(keel_net_place_parse_ip("127.0.0.1", &place));
    return refuse_loopback("this host", name, &place);
}

/* A host that is not this one: an alias of ssh, which no resolver knows, may be. */
static const char *remote_host(const struct keel_hosts *hosts)
{
    struct keel_net_place place;
    for (uint32_t i = 0; i < hosts->count; i++) {
        const char *name =
            strrchr(hosts->names[i], '@') != NULL ? strrchr(hosts->names[i], '@') + 1 : hosts->names[i];
        if (keel_net_place_resolve(name, &place) == KEEL_OK && !keel_net_place_is_loopback(&place))
            return hosts->names[i];
    }
    return NULL;
}

static bool is_numeric(const char *text)
{
    return strchr(text, '[') != NULL || strspn(text, "0123456789.:") == strlen(text) ||
           strspn(text, "0123456789abcdefABCDEF:.") == strlen(text);
}

enum keel_status keel_hosts_listen(const struct keel_job *job, const struct keel_hosts *hosts,
                                   struct keel_listen *out)
{
    struct keel_listen listen = {.bind.port = 0};
    const bool bound = job->bind[0] != '\0', named = job->advertise[0] != '\0';
    if (bound)
        KEEL_TRY(keel_net_place_resolve(job->bind, &listen.bind));
    if (named)
        KEEL_TRY(keel_net_place_resolve(job->advertise, &listen.advertised));
    else if (bound && !keel_net_place_is_any(&listen.bind))
        listen.advertised = listen.bind;
    else
        KEEL_TRY(own_address(&listen.advertised));
    if (!bound)
        listen.bind = listen.advertised;
    if (keel_net_place_is_any(&listen.advertised))
        return keel_fail(KEEL_INVALID, "cluster.advertise = %s: is every address and so none",
                         job->advertise);
    if (keel_net_place_is_loopback(&listen.advertised)) {
        const char *far = remote_host(hosts);
        if (far != NULL)
            return refuse_loopback("cluster.hosts has others than this one, and the launcher at",
                                   named ? job->advertise : job->bind, &listen.advertised);
        if (named && !is_numeric(job->advertise))
            return refuse_loopback("cluster.advertise =", job->advertise, &listen.advertised);
    }
    *out = listen;
    return KEEL_OK;
}

/* ---- what runs there ----------------------------------------------------------------------------------- */

struct agent_words {
    const char *at[AGENT_WORDS + 1];
    char node[NUMBER_BYTES], wait[NUMBER_BYTES];
};

static void fill_words(const struct keel_host_command *command, struct agent_words *out)
{
    snprintf(out->node, sizeof out->node, "%u", command->node);
    snprintf(out->wait, sizeof out->wait, "%u", command->wait_s);
    const char *const words[AGENT_WORDS + 1] = {
        command->program, "agent",      "--join",
        command->place,   "--key-file", command->key_file,
        "--node",         out->node,    command->wait_s > 0 ? "--wait" : NULL,
        out->wait};
    memcpy(out->at, words, sizeof words);
}

/* Nothing in it that a shell would take for more than itself. */
static bool is_plain(const char *word)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/@%+,=";
    return word[0] != '\0' && word[strspn(word, letters)] == '\0';
}

static void add(char *out, size_t out_bytes, size_t *used, const char *text, size_t bytes)
{
    if (*used + bytes < out_bytes)
        memcpy(out + *used, text, bytes);
    *used += bytes;
}

enum keel_status keel_host_command_line(const struct keel_host_command *command, char *out, size_t out_bytes)
{
    struct agent_words words;
    size_t used = 0;
    fill_words(command, &words);
    for (uint32_t k = 0; words.at[k] != NULL; k++) {
        const char *word = words.at[k];
        const bool plain = is_plain(word);
        add(out, out_bytes, &used, " ", k > 0 ? 1 : 0);
        add(out, out_bytes, &used, "'", plain ? 0 : 1);
        for (; *word != '\0'; word++)
            add(out, out_bytes, &used, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
        add(out, out_bytes, &used, "'", plain ? 0 : 1);
    }
    if (used >= out_bytes)
        return keel_fail(KEEL_LIMIT, "the command of an agent is longer than %zu bytes", out_bytes);
    out[used] = '\0';
    return KEEL_OK;
}

/* The shell's words, %h in them replaced; they lie in `room`. */
static enum keel_status fill_shell(const char *shell, const char *host, char room[KEEL_HOST_COMMAND_BYTES],
                                   const char **words, uint32_t *count)
{
    size_t used = 0;
    const char *at = shell + strspn(shell, " ");
    while (*at != '\0') {
        if (*count == KEEL_HOST_WORDS_MAX)
            return keel_fail(KEEL_LIMIT, "cluster.shell: more than %d words", KEEL_HOST_WORDS_MAX);
        if (used >= KEEL_HOST_COMMAND_BYTES)
            break;
        words[(*count)++] = room + used;
        for (; *at != '\0' && *at != ' '; at++) {
            const bool named = at[0] == '%' && at[1] == 'h';
            add(room, KEEL_HOST_COMMAND_BYTES, &used, named ? host : at, named ? strlen(host) : 1);
            at += named;
        }
        add(room, KEEL_HOST_COMMAND_BYTES, &used, "", 1);
        at += strspn(at, " ");
    }
    if (used > KEEL_HOST_COMMAND_BYTES)
        return keel_fail(KEEL_LIMIT, "cluster.shell: longer than %d bytes", KEEL_HOST_COMMAND_BYTES);
    return KEEL_OK;
}

/* A file without a name that holds the key, to be read from its beginning. */
static enum keel_status key_descriptor(const char *key_text, int *out)
{
    int fd = memfd_create("keel-key", MFD_CLOEXEC);
    if (fd < 0)
        return keel_fail_errno(errno, "no memory for a key");
    enum keel_status status = keel_pwrite_all(fd, key_text, strlen(key_text), 0, "the key");
    if (status != KEEL_OK)
        close(fd);
    else
        *out = fd;
    return status;
}

/* ssh gives all its words, joined, to a shell of the host; others start them as they are. */
enum keel_status keel_host_start(const struct keel_job *job, const char *host,
                                 const struct keel_host_command *command, const char *key_text,
                                 struct keel_process *out)
{
    static const char ssh[] = "ssh -o BatchMode=yes %h";
    static const char srun[] =
        "srun --no-kill --kill-on-bad-exit=0 --overlap --nodes=1 --ntasks=1 --nodelist=%h";
    /* A child's standard input is /dev/null: this puts the descriptor that it was given there, and looks for
     * the program on the path. */
    static const char with_input[] = "exec \"$@\" <&3 3<&-";
    char room[KEEL_HOST_COMMAND_BYTES], line[KEEL_HOST_COMMAND_BYTES];
    const char *words[KEEL_HOST_WORDS_MAX + AGENT_WORDS + 6] = {"/bin/sh", "-c", with_input, "sh"};
    struct agent_words agent;
    uint32_t count = 4;
    const bool by_ssh = job->launch == KEEL_LAUNCH_SSH;
    KEEL_TRY(fill_shell(job->shell[0] != '\0' ? job->shell : by_ssh ? ssh : srun, host, room, words, &count));
    fill_words(command, &agent);
    if (by_ssh) {
        KEEL_TRY(keel_host_command_line(command, line, sizeof line));
        words[count++] = line;
    }
    for (uint32_t k = 0; !by_ssh && agent.at[k] != NULL; k++)
        words[count++] = agent.at[k];
    int fd = -1;
    KEEL_TRY(key_descriptor(key_text, &fd));
    char *const *argv = (char *const *)(uintptr_t)words;
    /* Where another may lead, its end is not theirs. */
    enum keel_status status = keel_job_holders(job) > 1 ? keel_process_spawn_apart(argv, &fd, 1, false, out)
                                                        : keel_process_spawn(argv, &fd, 1, -1, out);
    close(fd);
    return status;
}
