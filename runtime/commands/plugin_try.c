/* plugin_try.c - see plugin_try.h. */
#include "plugin_try.h"
#include "plugin.h"
#include <keel/clock.h>
#include <keel/process.h>
#include <stdio.h>
#include <string.h>

#define TRY_NS (120 * KEEL_NS_PER_S) /* in which it is loaded, or builds its graph */
enum { LOADED = 77 };                /* exit code of the child: a plug-in that ends it gives another */

/* Run keel with these words, the output to nowhere; descriptor 3 is `keep`, if not -1. */
static enum keel_status run_child(const char *const words[2], int keep, struct keel_process_end *out)
{
    char self[KEEL_PATH_BYTES];
    KEEL_TRY(keel_self_path(self, sizeof self));
    const char *const argv[] = {self, words[0], words[1], NULL};
    FILE *nowhere = fopen("/dev/null", "w");
    if (nowhere == NULL)
        return keel_fail(KEEL_IO, "/dev/null: cannot be opened");
    const enum keel_status status = keel_process_run(argv, &keep, keep >= 0 ? 1 : 0, fileno(nowhere),
                                                     keel_deadline_after_ns(TRY_NS), out);
    fclose(nowhere);
    return status;
}

static enum keel_status judge(const char *path, enum keel_status ran, const struct keel_process_end *end,
                              const char *what)
{
    if (ran == KEEL_TIMEOUT)
        return keel_fail(KEEL_INVALID, "model.kind = %s: is not done after %d s when it %s; mend the plug-in",
                         path, (int)(TRY_NS / KEEL_NS_PER_S), what);
    KEEL_TRY(ran);
    if (!end->signaled)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "model.kind = %s: crashes when it %s (signal %d, %s); mend the plug-in",
                     path, what, end->code, strsignal(end->code));
}

enum keel_status keel_plugin_try_load(const char *job_path, const char *const *overrides,
                                      uint32_t override_count)
{
    static const char what[] = "is loaded";
    struct keel_process_end end = {.signaled = false};
    char file[KEEL_PATH_BYTES];
    KEEL_TRY(keel_job_plugin_file(job_path, overrides, override_count, file));
    if (file[0] == '\0' || !keel_path_is_file(file))
        return KEEL_OK;
    const char *const words[] = {KEEL_PLUGIN_TRY_COMMAND, file};
    KEEL_TRY(judge(file, run_child(words, -1, &end), &end, what));
    if (end.code == LOADED)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "model.kind = %s: ends the process when it %s (exit code %d); mend the plug-in", file,
                     what, end.code);
}

enum keel_status keel_plugin_try_graph(const struct keel_job *job)
{
    struct keel_process_end end = {.signaled = false};
    FILE *copy = tmpfile();
    const char *const words[] = {"plan", "/dev/fd/3"};
    if (copy == NULL)
        return keel_fail(KEEL_IO, "cannot make a temporary file to try %s; look at TMPDIR", job->plugin_path);
    enum keel_status status = keel_job_write(job, copy);
    if (status == KEEL_OK && fflush(copy) == 0)
        status = judge(job->plugin_path, run_child(words, fileno(copy), &end), &end,
                       keel_job_plugin(job)->data == KEEL_PLUGIN_OWN ? "reads its data or builds its graph"
                                                                     : "builds its graph");
    fclose(copy);
    return status; /* what else is wrong is told where the graph is built */
}

static enum keel_status take_as_it_is(struct keel_job_plugin *plugin)
{
    (void)plugin;
    return KEEL_OK;
}

int keel_plugin_try_main(int argc, char **argv)
{
    const struct keel_job_plugin *plugin;
    if (argc == 2)
        (void)keel_plugin_load(argv[1], take_as_it_is, &plugin);
    return LOADED;
}
