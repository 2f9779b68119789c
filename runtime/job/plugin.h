/* plugin.h - models that are files: plug-ins and .onnx, found by path, checked, and kept until the process
 * ends. */
#ifndef KEEL_JOB_PLUGIN_H
#define KEEL_JOB_PLUGIN_H

#include "onnx.h"

#include <keel/file.h>
#include <keel/model_plugin.h>

enum { KEEL_PLUGIN_DIGEST_BYTES = 33 };

struct keel_job_plugin {
    struct keel_job_plugin *next;
    char path[KEEL_PATH_BYTES];
    char digest[KEEL_PLUGIN_DIGEST_BYTES]; /* of the file, in hex */
    const struct keel_model_plugin *entry; /* of an .onnx file `own`, whose build is NULL */
    struct keel_model_plugin own;
    struct keel_onnx_file *onnx;                 /* NULL: a plug-in */
    struct keel_ini_key keys[KEEL_INI_KEYS_MAX]; /* the job's with it, in the order of the table */
    struct keel_ini_table table;
};

/* Whether model.kind = `kind` names a file. */
bool keel_plugin_is_path(const char *kind);

/* Load it, or find it loaded. `fill` completes keys and table; its status is passed on. NOT_FOUND, no such
 * file; INVALID, no shared object, or without its entry, or keys that cannot be; VERSION. Any thread. */
enum keel_status keel_plugin_load(const char *path, enum keel_status (*fill)(struct keel_job_plugin *plugin),
                                  const struct keel_job_plugin **out);

#endif
