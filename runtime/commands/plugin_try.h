/* plugin_try.h - a plug-in of a model is tried in a process of its own before it is loaded in the one that
 * commands others: it is code of the user's, of which some runs when it is loaded and some when it builds its
 * graph, and what ends a process there ends a child. */
#ifndef KEEL_PLUGIN_TRY_H
#define KEEL_PLUGIN_TRY_H

#include <keel/job.h>

/* Before keel_job_load of the same: load the file that model.kind names, if it names one. INVALID: that
 * crashes, ends the process or takes too long; the detail has its path and the signal. What else is wrong
 * with it keel_job_load says. Blocks. */
enum keel_status keel_plugin_try_load(const char *job_path, const char *const *overrides,
                                      uint32_t override_count);
/* The job has one: let it build its graph, by `keel plan`. Likewise. */
enum keel_status keel_plugin_try_graph(const struct keel_job *job);

/* The child's part: keel COMMAND FILE. */
#define KEEL_PLUGIN_TRY_COMMAND "try-plugin"
int keel_plugin_try_main(int argc, char **argv);

#endif
