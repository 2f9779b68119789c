/* job_members.h - `keel job drain DIR NODE` and `keel job add DIR NODE`: nodes leave a run in order, and come
 * back. */
#ifndef KEEL_JOB_MEMBERS_H
#define KEEL_JOB_MEMBERS_H

#include <keel/command.h>

extern const struct keel_command_kind keel_job_drain_kind, keel_job_add_kind;

#endif
