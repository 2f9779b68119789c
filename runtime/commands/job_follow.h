/* job_follow.h - a run told as it goes on, to a terminal that it did not begin in. */
#ifndef KEEL_JOB_FOLLOW_H
#define KEEL_JOB_FOLLOW_H

#include <keel/status.h>
#include <stdbool.h>

/* Print what happens from now on, and where it stands, until nobody holds the directory any more; `quiet`:
 * wait for that alone. Blocks; looks once a second, so that a directory on another host's disk will do. */
enum keel_status keel_job_follow(const char *directory, bool quiet);

#endif
